"""What is answered to a request that fails: problem+json for programs, a page or the way to sign in for browsers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from holdfast import ConfigurationError, HoldfastError, Indeterminate
from holdfast.adapters.problems import MEDIA_TYPE, TYPES, Problem, problem

log = logging.getLogger("holdfast.node")


class Refused(Exception):
    """A request that is not even looked at."""

    def __init__(self, status: int, name: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(status, TYPES + name, TITLES.get(status, "Refused"), detail, dict(headers or {}))


TITLES = {
    400: "This cannot work", 401: "Who are you?", 403: "Not allowed", 404: "Not found", 405: "Not this method",
    408: "Too slow", 409: "Somebody else has it", 413: "Too large", 415: "Not this type", 421: "Not this host",
    422: "This cannot be used", 429: "Too many requests", 500: "It failed", 503: "Not available now",
}  # fmt: skip


NAMES = {400: "wrong-request", 404: "not-found", 405: "wrong-method", 410: "gone"}


def told(error: BaseException) -> Problem:
    """What to tell of an error. Of one that is not ours, nothing: it is logged."""
    if isinstance(error, Refused):
        return error.problem
    if isinstance(error, HoldfastError):
        return problem(error, direct=True)
    if isinstance(error, HTTPException):
        status = error.status_code
        detail = "look at /docs: there is no such address" if error.detail == "Not Found" else error.detail
        name = NAMES.get(status, "refused")
        return Problem(status, TYPES + name, TITLES.get(status, "It failed"), detail, dict(error.headers or {}))
    if isinstance(error, ClientDisconnect):  # nobody reads this
        return Problem(400, TYPES + "gone", TITLES[400], "send the whole request")
    log.error("a request failed", exc_info=error)
    return Problem(500, TYPES + "error", "It failed", "look into the node's log, and report this")


def answer(found: Problem) -> Response:
    return Response(found.encode(), found.status, dict(found.headers), MEDIA_TYPE)


async def handle(request: Request, error: Exception) -> Response:
    """The answer to any error: a browser that is nobody yet is asked to sign in."""
    if type(error) is ConfigurationError and request.scope["holdfast.node"].closing:
        # Its client is closed.
        error = Refused(503, "stopping", "try again: this node is stopping", {"Retry-After": "1"})
    if isinstance(error, Indeterminate) and request.method in ("GET", "HEAD"):
        error = Refused(503, "unavailable", "try again later: the server gave no answer", {"Retry-After": "2"})
    found = told(error)
    wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    root = request.scope.get("root_path", "")
    if found.status == 401 and wants_page:
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{root}/login?next={quote(back, safe='')}", 303)
    return answer(found)

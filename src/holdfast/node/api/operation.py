"""One operation of the HTTP API: where it is, what it takes and answers, and who may. The documentation reads the same.

Ids are in paths percent-encoded, a `/` in them as %2F. Bodies are JSON; bytes in answers are base64.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.datastructures import URLPath
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from holdfast import ConfigurationError, Indeterminate, InvalidId
from holdfast.adapters.problems import MEDIA_TYPE
from holdfast.node.access import Caller, require
from holdfast.node.problems import Refused, answer, told
from holdfast.node.state import Node, node_of

IDEMPOTENCY = "idempotency-key"
LONGEST_KEY = 255
KEY = re.compile(rf"[!-~]{{1,{LONGEST_KEY}}}")
REMEMBERED = 86_400.0
BESIDES = 256
"""Bytes of a kept answer that are not its body."""
JSON = "application/json"


class Nothing(msgspec.Struct):
    """No parameters, or no body."""


class Created:
    """An answer with a status of its own."""

    def __init__(self, body: Any, status: int = 201) -> None:
        self.body = body
        self.status = status


@dataclass(slots=True)
class Call:
    """One request, read and checked."""

    node: Node
    caller: Caller
    request: Request
    path: dict[str, str]
    query: Any
    body: Any


Work = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """See the module."""

    method: str
    path: str
    scope: str
    work: Work
    query: type[msgspec.Struct] = Nothing
    body: Any = Nothing
    answer: Any = None
    """The type of the answer; None: no body, 204."""
    status: int = 200
    empty: str = ""
    """When there may be nothing to answer: what that means."""
    stream: bool = False
    """Server-Sent Events; it answers a Response of its own."""
    repeatable: bool = False
    """It takes an idempotency key: repeated with the same one, it is done once."""
    errors: tuple[int, ...] = field(default=())
    cost: float = 0.0
    """For how many further requests it counts: it is that much more work."""

    @property
    def name(self) -> str:
        return f"{self.work.__module__.rpartition('.')[2]}_{self.work.__name__}"

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.work) or "").partition("\n")[0].rstrip(".")

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class Routes(BaseRoute):
    """All operations, found by the path as it was sent: `%2F` in an id does not divide it."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        places: dict[str, dict[str, Operation]] = {}
        for one in operations:
            places.setdefault(one.path, {})[one.method] = one
        self._table: dict[tuple[str, int], list[tuple[re.Pattern[str], dict[str, Operation]]]] = {}
        for path, found in places.items():
            parts = path.split("/")
            pattern = re.compile("/".join(f"(?P<{part[1:-1]}>[^/]+)" if part[:1] == "{" else part for part in parts))
            self._table.setdefault((parts[2], len(parts)), []).append((pattern, found))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        # Without the path as it was sent a `/` in an id is lost, but an id is never another one's.
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        path = raw.decode("latin-1").removeprefix(scope.get("root_path", ""))
        parts = path.split("/")
        if len(parts) < 3 or parts[1] != "v1":
            return Match.NONE, {}
        # An id may be a word of another address: a run may be called `stop-all`. So the method decides, too.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        allowed: list[str] = []
        for pattern, found in self._table.get((parts[2], len(parts)), ()):
            known = pattern.fullmatch(path)
            if known and method in found:
                return Match.FULL, {"path_params": known.groupdict(), "holdfast.operation": found[method]}
            if known:
                allowed = allowed or sorted(found)
        return (Match.FULL, {"holdfast.operation": allowed}) if allowed else (Match.NONE, {})

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation: Operation | list[str] = scope["holdfast.operation"]
        if isinstance(operation, list):
            allowed = [*operation, *(["HEAD"] if "GET" in operation else [])]
            raise HTTPException(405, "use a method that this address has", {"Allow": ", ".join(allowed)})
        request = Request(scope, receive, send)
        response = await serve(operation, request)
        if operation.stream:
            caller: Caller = scope["holdfast.caller"]
            await node_of(request).streaming(caller.name, lambda: response(scope, receive, send))
        else:
            await response(scope, receive, send)


async def serve(operation: Operation, request: Request) -> Response:
    """Check, read, do, answer. What fails is answered by the handler of problems."""
    caller, node = require(request, operation.scope), node_of(request)
    if operation.cost:
        node.access.charge(caller, operation.cost)
    if operation.stream and request.method == "HEAD":  # it would send nothing, and keep the connection busy
        raise HTTPException(405, "use GET: a stream has nothing to tell before it is read", {"Allow": "GET"})
    if operation.stream and (node.closing or node.streams >= node.config.max_streams):
        raise Refused(503, "too-many-streams", "come back later: too many streams are open", {"Retry-After": "5"})
    path = {name: _id(name, value) for name, value in request.path_params.items()}
    query = _read_query(operation, request)
    raw, body = b"", None
    if operation.body is not Nothing:
        raw = await request.body()
        body = _read_body(operation, request, raw)
    call = Call(node, caller, request, path, query, body)
    key = request.headers.get(IDEMPOTENCY)
    if key is not None and operation.repeatable:
        return await _once(operation, call, key, raw)
    result = await operation.work(call)
    return result if isinstance(result, Response) else _answer(operation, result)


def _answer(operation: Operation, result: Any) -> Response:
    status = operation.status
    if isinstance(result, Created):
        status, result = result.status, result.body
    if result is None:
        return Response(status_code=204)
    return Response(encode(result), status, media_type=JSON)


def encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except (OverflowError, UnicodeEncodeError):  # large whole numbers, ids with what is no text
        return json.dumps(msgspec.to_builtins(value, enc_hook=_plain), default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise NotImplementedError(f"cannot answer with {type(value).__name__}")


def _id(name: str, value: str) -> str:
    """An id of a path. Text only: bytes that are none have no place in JSON either."""
    raw = unquote_to_bytes(value.encode("latin-1"))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidId(f"pass {name} as UTF-8, percent-encoded") from None


def _read_query(operation: Operation, request: Request) -> Any:
    found: dict[str, Any] = dict(request.query_params)
    if len(found) < len(request.query_params.multi_items()):
        raise Refused(400, "wrong-parameter", "mend the parameters: name each of them once")
    known = operation.query.__struct_fields__
    for name in found:
        if name not in known:
            raise Refused(400, "unknown-parameter", f"remove the parameter {name[:80]!r}: it is not known here")
    try:
        query = msgspec.convert(found, operation.query, strict=False)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Refused(400, "wrong-parameter", f"mend the parameters: {error}") from None
    for name in found:
        if getattr(query, name) is None:  # the word null
            raise Refused(400, "wrong-parameter", f"mend the parameters: leave {name} out instead of passing none")
    return query


def _read_body(operation: Operation, request: Request, raw: bytes) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        # A form of another site cannot send this type, whatever browser it is.
        raise Refused(415, "not-json", f"send the body as Content-Type: {JSON}")
    try:
        return msgspec.json.decode(raw, type=operation.body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused(400, "wrong-body", f"mend the body: {error}") from None


def _canonical(body: Any, raw: bytes) -> bytes:
    try:
        return msgspec.json.encode(body, order="deterministic", enc_hook=_plain)
    except (OverflowError, UnicodeEncodeError):
        return raw


async def _once(operation: Operation, call: Call, key: str, raw: bytes) -> Response:
    """The same key again answers the same, for a day; with another request it is refused."""
    if not KEY.fullmatch(key):
        raise ConfigurationError(f"pass an idempotency key of 1 to {LONGEST_KEY} visible ASCII characters")
    # The ids as they were read: an address with %2F, %3F or %23 in it looks like another one when it is decoded.
    # And the body as it was understood: a client that writes the same otherwise means the same.
    mark = hashlib.sha256(encode([operation.name, call.path]) + _canonical(call.body, raw)).hexdigest()
    room = call.node.hf.settings.max_message_bytes - BESIDES
    answered: Response | None = None

    begun = asyncio.Event()

    async def work(key: str, mark: str) -> dict[str, Any]:
        nonlocal answered
        begun.set()
        try:
            answered = _answer(operation, await operation.work(call))
        except Indeterminate as error:  # it may have been done: with this key it is not done again
            answered = answer(told(error))
        body = bytes(answered.body)
        return {"status": answered.status_code, "body": body if len(body) <= room else None}

    once = call.node.hf.idempotent("{key}", space="holdfast.http", ttl=REMEMBERED, wait=call.node.config.max_wait)
    found = await call.node.to_its_end(once(work)(f"{call.caller.name} {key}", mark), begun)
    if answered is not None:
        return answered
    status = found["status"]
    if found["body"] is None:
        raise Refused(
            409, "answer-not-kept", "look at what came of it: this was done, and its answer was too large to keep"
        )
    if status == 204:
        return Response(status_code=204)
    return Response(found["body"], status, media_type=JSON if status < 400 else MEDIA_TYPE)

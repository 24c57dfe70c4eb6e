"""What operators do: each action is a page that asks for a reason, and does it when that is sent.

With a script the same form opens as a dialog over the page; without one it is a page of its own. Nothing changes by
GET.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from holdfast import HoldfastError
from holdfast.node import access
from holdfast.node.dashboard.site import KINDS, Site, form_of, goto
from holdfast.node.dashboard.text import Id, same_id, shown, untoken

LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Given:
    """What came with the request to do it."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One action on one thing."""

    action: str
    """The word in the audit log."""
    title: str
    thing: Id
    """What it is done to, as people know it."""
    target: str
    """The same in the audit log."""
    tells: str
    """What will happen, and what will not."""
    button: str
    work: Callable[[Given], Awaitable[str]]
    """Does it, and answers what came of it."""
    back: str
    """Where the reader goes after it."""
    typed: bool = False
    """Must the id be typed? For what cannot be undone."""


@dataclass(frozen=True, slots=True)
class Action:
    """Where an action is, and how to make its question."""

    path: str
    section: str
    make: Callable[[Request], Awaitable[Ask]]


def endpoint(site: Site, action: Action) -> Callable[[Request], Awaitable[Response]]:
    """GET asks, POST does."""

    async def answer(request: Request) -> Response:
        caller = access.require(request, "operate")
        ask = await action.make(request)
        if request.method != "POST":
            return _page(site, action, request, ask, {})
        form = await form_of(request)
        wrong = _wrong(ask, form)
        if wrong:
            return _page(site, action, request, ask, form, wrong, 422)
        given = Given(form["reason"].strip(), caller.name)
        try:
            outcome = await access.operate(request, ask.action, ask.target, given.reason, lambda: ask.work(given))
        except HoldfastError as error:
            return _page(site, action, request, ask, form, str(error), 409)
        return goto(request, ask.back, f"{ask.title}: {outcome}.")

    return answer


def _wrong(ask: Ask, form: dict[str, str]) -> str:
    reason = form.get("reason", "").strip()
    if not reason:
        return "Give a reason: it goes into the audit log."
    if len(reason) > LONGEST_REASON:
        return f"Give a shorter reason: at most {LONGEST_REASON} characters."
    if ask.typed and not same_id(form.get("typed", ""), ask.thing):
        return f"Type the id as it stands here to confirm: {shown(ask.thing)}"
    return ""


def _here(request: Request) -> str:
    """Where the form goes: to this address, with what it says beside the path."""
    kept = {name: value for name, value in request.query_params.items() if name != "dialog"}
    return request.url.path + (f"?{urlencode(kept)}" if kept else "")


def _page(
    site: Site, action: Action, request: Request, ask: Ask, form: dict[str, str], wrong: str = "", status: int = 200
) -> Response:
    dialog = request.query_params.get("dialog") == "1" and request.method == "GET"
    context: dict[str, Any] = {
        **site.context(request, action.section), "ask": ask, "form": form, "wrong": wrong, "here": _here(request),
        "page_title": ask.title, "dialog": dialog,
    }  # fmt: skip
    return site.html(request, "ask_form.html" if dialog else "ask.html", context, status)


# -- a look at what is hidden -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reveal:
    """A page with somebody's data on it: shown to operators, on request, and written down."""

    path: str
    template: str
    section: str
    look: Callable[[Request], Awaitable[dict[str, Any]]]
    """With `target`: what was looked at, for the audit log."""


def reveal_endpoint(site: Site, reveal: Reveal) -> Callable[[Request], Awaitable[Response]]:
    """POST draws the page with the data. There is no address that shows it: a link cannot leak it."""

    async def answer(request: Request) -> Response:
        found: dict[str, Any] = {}

        async def look() -> str:
            found.update(await reveal.look(request))
            return "shown"

        kind = KINDS.get(reveal.section, reveal.section)
        target = f"{kind}:{' '.join(shown(untoken(value)) for value in request.path_params.values())}"
        await access.operate(request, "show", target, "show payloads", look)
        context = {**site.context(request, reveal.section), **found, "live": False}
        return site.html(request, reveal.template, context)

    return answer

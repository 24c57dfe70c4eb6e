"""Monitors: what changed, who is told, how telling went, and how a thing was over time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast import ConfigurationError, Monitor, Push, Snapshot
from holdfast.node.dashboard.asking import Action, Ask, Given
from holdfast.node.dashboard.site import Page, count_of, goto, json_or_text, measured, named, piece, root_of
from holdfast.node.dashboard.text import shown, token
from holdfast.node.state import node_of

PUSHES = 20
CHANGES = 20
THINGS = 30
LETTERS = 50
HISTORY = 50
PLOTTED = 1000
MOST_MONITORS = 100
MOST_FIELDS = 12
PLOT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"

Key = str | int | tuple[str | int, ...]


async def look(request: Request) -> dict[str, Any]:
    """Every monitor with its numbers, as the node measured them last."""
    found, left_out = await measured(request, "monitors", MOST_MONITORS)
    return {
        "page_title": "Monitors", "now": await node_of(request).now(), "left_out": left_out, "monitors": found,
    }  # fmt: skip


async def look_at_one(request: Request) -> dict[str, Any]:
    """A monitor: subscribers, deliveries, dead letters."""
    node, name = node_of(request), named(request, "monitor")
    monitor = node.monitor(name)
    status = await monitor.status()
    who = request.query_params.get("subscriber", "")
    pushes = await _pushes(monitor, who)
    return {
        "page_title": shown(name), "now": await node.now(), "name": name, "status": status,
        "subscribers": await monitor.subscribers(), "who": who, "pushes": pushes or [], "stored": pushes is not None,
        "letters": await monitor.dead_letters(LETTERS) if status.dead_letters else [],
        "things": await _things(monitor), "changes": await monitor.changes(CHANGES), "thing_token": thing_token,
    }  # fmt: skip


async def _pushes(monitor: Monitor, subscriber: str) -> Sequence[Push] | None:
    """None: this node knows no store of it."""
    try:
        return await monitor.pushes(subscriber or None, PUSHES)
    except ConfigurationError:
        return None


async def _things(monitor: Monitor) -> Sequence[tuple[str, Key]]:
    """Some of what has a history, to click on; nothing without a store."""
    try:
        return await monitor.things(count=THINGS)
    except ConfigurationError:
        return ()


# -- one thing --------------------------------------------------------------------------------------------------------


def thing_token(source: str, key: Key) -> str:
    """A source and a key as one segment of an address."""
    return token(json.dumps([source, list(key) if isinstance(key, tuple) else key], ensure_ascii=False))


def _thing(request: Request) -> tuple[str, Key]:
    try:
        source, key = json.loads(piece(request, "thing"))
    except (ValueError, TypeError, RecursionError):
        raise ConfigurationError("follow a link of the dashboard: this address names no thing") from None
    return str(source), tuple(key) if isinstance(key, list) else key


def typed_key(given: str) -> Key:
    """A key as somebody typed it: a list in JSON for one of several parts, else text."""
    found = json_or_text(given) if given.startswith("[") else given
    return tuple(found) if isinstance(found, list) else found


async def find(request: Request) -> Response:
    """From the search fields to the thing."""
    name, query = named(request, "monitor"), request.query_params
    source, key = query.get("source", ""), query.get("key", "")
    base = f"{root_of(request)}/monitors/{token(name)}"
    if not source or not key:
        return goto(request, base, "Type a source and a key.")
    return goto(request, f"{base}/things/{thing_token(source, typed_key(key))}")


async def look_at_thing(request: Request) -> dict[str, Any]:
    """What is known of a thing, and what it was."""
    node, name = node_of(request), named(request, "monitor")
    monitor = node.monitor(name)
    source, key = _thing(request)
    history: Sequence[Snapshot] | None
    try:
        history = await monitor.history(source, key, limit=HISTORY)
    except ConfigurationError:
        history = None
    known = await monitor.get(source, key)
    return {
        "page_title": f"{shown(source)} {shown(key)}", "now": await node.now(), "name": name, "source": source,
        "key": key, "known": known, "history": history or [], "stored": history is not None,
        "fields": _numeric(known), "place": request.path_params["thing"],
    }  # fmt: skip


def _numeric(state: Any) -> list[str]:
    """Fields that can be drawn. "" is the state itself."""
    if isinstance(state, dict):
        return [name for name, value in state.items() if _is_number(value) and name][:MOST_FIELDS]
    return [""] if _is_number(state) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


async def plot(request: Request) -> Response:
    """How a field of a thing went, as a picture. Its text is somebody's: it is sent so that it can do nothing."""
    source, key = _thing(request)
    limit = count_of(request, "limit", PLOTTED, 1, PLOTTED)
    monitor = node_of(request).monitor(named(request, "monitor"))
    picture = await monitor.plot(source, key, request.query_params.get("field", ""), limit=limit)
    headers = {
        "Content-Security-Policy": PLOT_POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
    }  # fmt: skip
    return Response(picture.encode("utf-8", "replace"), 200, headers, "image/svg+xml")


# -- what operators do ------------------------------------------------------------------------------------------------


async def replay(request: Request) -> Ask:
    """Tell a dead letter once more."""
    node, name, letter = node_of(request), named(request, "monitor"), str(request.path_params["letter"])

    async def work(given: Given) -> str:
        count = await node.monitor(name).replay(letter)
        return f"{count} changes will be told again" if count else "there is no such letter"

    return Ask(
        "replay", "Replay", letter, f"monitor:{name} letter {letter}",
        "The subscriber is told these changes once more, after what waits for it already.",
        "Replay", work, f"{root_of(request)}/monitors/{token(name)}",
    )  # fmt: skip


async def purge(request: Request) -> Ask:
    """Throw a dead letter away."""
    node, name, letter = node_of(request), named(request, "monitor"), str(request.path_params["letter"])

    async def work(given: Given) -> str:
        return "it is gone" if await node.monitor(name).purge(letter) else "there is no such letter"

    return Ask(
        "purge", "Purge", letter, f"monitor:{name} letter {letter}",
        "This letter is thrown away: its subscriber is never told. This cannot be undone.",
        "Purge", work, f"{root_of(request)}/monitors/{token(name)}",
    )  # fmt: skip


_THING, _LETTER = "/monitors/{monitor}/things/{thing}", "/monitors/{monitor}/letters/{letter}"
PAGES = (
    Page("/monitors", "monitors.html", "monitors", look, sampled=True),
    Page("/monitors/{monitor}", "monitor.html", "monitors", look_at_one, every=3.0),
    Page(_THING, "thing.html", "monitors", look_at_thing),
)
OTHERS = (("/find/thing/{monitor}", find), (_THING + "/plot.svg", plot))
ACTIONS = (Action(_LETTER + "/replay", "monitors", replay), Action(_LETTER + "/purge", "monitors", purge))

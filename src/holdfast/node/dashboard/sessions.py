"""Sessions: found by their id or by a user; what was said needs a click and a right."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.node.dashboard.asking import Action, Ask, Given, Reveal
from holdfast.node.dashboard.site import Page, count_of, goto, named, piece, root_of
from holdfast.node.dashboard.text import Id, shown, token
from holdfast.node.state import node_of

PAGE, MOST = 50, 1000
MOST_SESSIONS = 200


async def look(request: Request) -> dict[str, Any]:
    """Every collection, with its search fields: there is no list of all sessions, and none is made by scanning."""
    node = node_of(request)
    return {"page_title": "Sessions", "now": await node.now(), "names": sorted(await node.names("sessions"))}


async def find(request: Request) -> Response:
    """From a search field to a session, or to the sessions of a user."""
    name, query = named(request, "sessions"), request.query_params
    base = f"{root_of(request)}/sessions"
    if query.get("session"):
        return goto(request, _path(request, name, query["session"]))
    if query.get("user"):
        return goto(request, f"{base}/{token(name)}/users/{token(query['user'])}")
    return goto(request, base, "Type the whole id of a session, or of a user.")


def _path(request: Request, name: str, session: Id) -> str:
    return f"{root_of(request)}/sessions/{token(name)}/of/{token(session)}"


async def look_at_session(request: Request) -> dict[str, Any]:
    """The newest entries of a session, without what they say."""
    node, name, session = node_of(request), named(request, "sessions"), piece(request, "session")
    sessions, limit = node.sessions(name), count_of(request, "count", PAGE, 1, MOST)
    return {
        "page_title": shown(session), "now": await node.now(), "name": name, "session": session,
        "entries": await sessions.context(session, limit), "count": await sessions.count(session), "payloads": False,
        "limit": limit, "most": MOST,
    }  # fmt: skip


async def reveal(request: Request) -> dict[str, Any]:
    """The same, with what they say."""
    return {**await look_at_session(request), "payloads": True}


async def look_at_user(request: Request) -> dict[str, Any]:
    """The sessions of a user, from its index."""
    node, name, user = node_of(request), named(request, "sessions"), piece(request, "user")
    found = await node.sessions(name).sessions_of(user)
    return {
        "page_title": shown(user), "now": await node.now(), "name": name, "user": user,
        "found": sorted(found, key=shown)[:MOST_SESSIONS], "left_out": max(0, len(found) - MOST_SESSIONS),
    }  # fmt: skip


async def clear(request: Request) -> Ask:
    """Remove a session."""
    node, name, session = node_of(request), named(request, "sessions"), piece(request, "session")

    async def work(given: Given) -> str:
        count = await node.sessions(name).count(session)
        await node.sessions(name).clear(session)
        return f"{count} entries removed"

    return Ask(
        "clear", "Clear session", session, f"sessions:{name} {shown(session)}",
        "All entries of this session are removed. This cannot be undone.",
        "Clear", work, _path(request, name, session),
    )  # fmt: skip


async def forget(request: Request) -> Ask:
    """Remove every session of a user."""
    node, name, user = node_of(request), named(request, "sessions"), piece(request, "user")

    async def work(given: Given) -> str:
        return f"{await node.sessions(name).forget(user)} sessions removed"

    return Ask(
        "forget", "Forget user", user, f"sessions:{name} {shown(user)}",
        "Every session in which something was saved for this user goes, also what others said in it. This cannot be "
        "undone.",
        "Forget", work, f"{root_of(request)}/sessions/{token(name)}/users/{token(user)}", typed=True,
    )  # fmt: skip


_SESSION, _USER = "/sessions/{sessions}/of/{session}", "/sessions/{sessions}/users/{user}"
PAGES = (
    Page("/sessions", "sessions.html", "sessions", look, every=0.0),
    Page(_SESSION, "session.html", "sessions", look_at_session),
    Page(_USER, "session_user.html", "sessions", look_at_user, every=5.0),
)
OTHERS = (("/find/session/{sessions}", find),)
ACTIONS = (Action(_SESSION + "/clear", "sessions", clear), Action(_USER + "/forget", "sessions", forget))
REVEALS = (Reveal(_SESSION + "/show", "session.html", "sessions", reveal),)

"""Short-term memory over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.node.access import operate
from holdfast.node.api.operation import Call, Created, Operation
from holdfast.node.api.shapes import Limit, Named, Text, Why, plain, shape


class Entry(msgspec.Struct):
    id: str
    role: str
    content: Any
    at: float
    tokens: int
    tool_calls: list[Any]
    tool_call_id: str | None
    extra: dict[str, Any]


class Context(msgspec.Struct):
    """Entries, oldest first. `unreadable`, `newer`: how many were left out: damaged, or of a newer version."""

    entries: list[Entry]
    unreadable: int
    newer: int


class Newest(msgspec.Struct):
    limit: Limit = 50


class Save(msgspec.Struct, forbid_unknown_fields=True):
    """`ttl`: seconds the session lives at least from now on. `user`: who `forget` will ask for."""

    content: Any
    role: Annotated[str, Meta(min_length=1, max_length=64)] = "user"
    user: Text | None = None
    ttl: Annotated[float, Meta(ge=0.05, le=31_622_400)] | None = None
    tool_calls: list[Any] = []
    tool_call_id: Text | None = None
    extra: dict[str, Any] | None = None


class Saved(msgspec.Struct):
    """`id`: null if it is not in the session, because it does not fit by itself."""

    id: str | None
    count: int


class Whose(msgspec.Struct):
    user: Text


class Counted(msgspec.Struct):
    entries: int


async def names(call: Call) -> list[Named]:
    """Collections of sessions that the fleet uses."""
    return [Named(one.name, one.seen) for one in await call.node.hf.fleet.names() if one.kind == "sessions"]


async def of_user(call: Call) -> list[Any]:
    """The sessions in which something was saved with this user."""
    return [plain(one) for one in await call.node.sessions(call.path["collection"]).sessions_of(call.query.user)]


async def context(call: Call) -> Context:
    """The newest entries of a session, oldest first; empty if there is none."""
    sessions = call.node.sessions(call.path["collection"])
    found = await sessions.context(call.path["session"], call.query.limit)
    return Context([shape(Entry, one) for one in found], found.unreadable, found.newer)


async def save(call: Call) -> Created:
    """Store an entry, trim the session and prolong its life, in one step."""
    body: Save = call.body
    found = await call.node.sessions(call.path["collection"]).save(
        call.path["session"], body.content, role=body.role, user=body.user, ttl=body.ttl, tool_calls=body.tool_calls,
        tool_call_id=body.tool_call_id, extra=body.extra,
    )  # fmt: skip
    return Created(Saved(found.id, found.count))


async def clear(call: Call) -> Counted:
    """Remove a session, with a reason for the audit log."""
    sessions, session, number = call.node.sessions(call.path["collection"]), call.path["session"], 0

    async def go() -> str:
        nonlocal number
        number = await sessions.count(session)
        await sessions.clear(session)
        return f"{number} entries"

    await operate(call.request, "clear", f"sessions:{call.path['collection']} {session}"[:1000], call.body.reason, go)
    return Counted(number)


AT = "/v1/sessions"
OPERATIONS = [
    Operation("GET", AT, "read", names, answer=list[Named]),
    Operation("GET", f"{AT}/{{collection}}", "read", of_user, query=Whose, answer=list[Any]),
    Operation("GET", f"{AT}/{{collection}}/{{session}}", "operate", context, query=Newest, answer=Context),
    Operation("POST", f"{AT}/{{collection}}/{{session}}", "write", save, body=Save, answer=Saved, status=201,
              repeatable=True, errors=(413, 422)),
    Operation("POST", f"{AT}/{{collection}}/{{session}}/clear", "operate", clear, body=Why, answer=Counted,
              repeatable=True),
]  # fmt: skip

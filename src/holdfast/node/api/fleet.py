"""The fleet over HTTP: processes, what they did, the audit log, and forgetting a user everywhere."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast import HoldfastError
from holdfast.node.access import operate
from holdfast.node.api.operation import Call, Operation
from holdfast.node.api.shapes import Limit, Reason, Text, shape


class Process(msgspec.Struct):
    id: str
    host: str
    pid: int
    label: str
    version: str
    since: float
    seen: float
    alive: bool
    works: list[str]
    uses: list[str]
    leases: int
    batches: int
    runs: int


class Named(msgspec.Struct):
    kind: str
    name: str
    seen: float


class Fleet(msgspec.Struct):
    processes: list[Process]
    names: list[Named]
    totals: dict[str, int]


class Span(msgspec.Struct):
    seconds: Annotated[float, Meta(ge=1, le=172_800)] = 1800.0


class Times(msgspec.Struct):
    count: int
    p50: float
    p99: float


class Slot(msgspec.Struct):
    at: float
    counts: dict[str, int]
    times: dict[str, Times]
    gauges: dict[str, float]


class Series(msgspec.Struct):
    step: float
    now: float
    slots: list[Slot]


class Log(msgspec.Struct):
    limit: Limit = 100
    before: Annotated[str, Meta(pattern=r"^\d{1,15}-\d{1,10}$")] | None = None


class Action(msgspec.Struct):
    id: str
    at: float
    action: str
    target: str
    reason: str
    by: str
    outcome: str


class ForgetUser(msgspec.Struct, forbid_unknown_fields=True):
    """Without `buffers` and `sessions`: in all that the fleet uses."""

    user: Text
    reason: Reason
    buffers: Annotated[list[Text], Meta(max_length=1000)] | None = None
    sessions: Annotated[list[Text], Meta(max_length=1000)] | None = None


class Forgotten(msgspec.Struct):
    """`fences`: of each buffer, a number higher than any fence that was given out for the user: record it where you
    check fences, and a worker that was paused cannot write the user back. `sessions`: how many went, by collection."""

    fences: dict[str, int]
    sessions: dict[str, int]
    failed: dict[str, str]


async def fleet(call: Call) -> Fleet:
    """Processes, collections in use, and everything that was counted."""
    known = call.node.hf.fleet
    return Fleet(
        [shape(Process, one) for one in await known.processes()], [shape(Named, one) for one in await known.names()],
        await known.totals(),
    )  # fmt: skip


async def series(call: Call) -> Series:
    """What the fleet did in the last seconds, in pieces of time."""
    found = await call.node.hf.fleet.series(call.query.seconds)
    slots = [
        shape(Slot, one, times={name: shape(Times, times) for name, times in one.times.items()}) for one in found.slots
    ]
    return Series(found.step, found.now, slots)


async def audit(call: Call) -> list[Action]:
    """What operators did, newest first."""
    return [shape(Action, one) for one in await call.node.hf.fleet.actions(call.query.limit, before=call.query.before)]


async def forget(call: Call) -> Forgotten:
    """Remove every trace of a user from buffers and sessions. Safe to repeat; do so for what failed."""
    body: ForgetUser = call.body
    node, done = call.node, Forgotten({}, {}, {})
    buffers = body.buffers if body.buffers is not None else await node.names("buffer")
    sessions = body.sessions if body.sessions is not None else await node.names("sessions")

    async def one(kind: str, name: str, into: dict[str, int], collection: Any) -> None:
        try:
            into[name] = await collection(name).forget(body.user)
        except HoldfastError as error:
            done.failed[f"{kind}:{name}"] = str(error)

    async def go() -> str:
        for name in buffers:
            await one("buffer", name, done.fences, node.buffer)
        for name in sessions:
            await one("sessions", name, done.sessions, node.sessions)
        return f"{len(buffers)} buffers, {sum(done.sessions.values())} sessions, {len(done.failed)} failed"

    await operate(call.request, "forget", f"user:{body.user}", body.reason, go)
    return done


OPERATIONS = [
    Operation("GET", "/v1/fleet", "read", fleet, answer=Fleet),
    Operation("GET", "/v1/fleet/series", "read", series, query=Span, answer=Series, cost=20.0),
    Operation("GET", "/v1/audit", "read", audit, query=Log, answer=list[Action]),
    Operation("POST", "/v1/forget", "operate", forget, body=ForgetUser, answer=Forgotten),
]

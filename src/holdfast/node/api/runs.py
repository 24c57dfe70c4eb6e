"""Runs over HTTP: start, stop, look, wait, and their events as a stream that resumes."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast import Runs
from holdfast.adapters.starlette import event_stream
from holdfast.node.api.operation import Call, Created, Operation
from holdfast.node.api.shapes import Limit, Named, Reason, Text, shape

State = Literal["queued", "running", "stopping", "completed", "failed", "stopped"]
Conflict = Literal["reject", "queue", "replace", "join"]


class Run(msgspec.Struct):
    """Times are seconds since 1970 by the server's clock. `input` and `result` are null in lists, and for a token that
    has the scope read only."""

    id: Any
    state: State
    key: Any
    kind: str
    owner: str
    attempt: int
    fence: int
    created: float
    started: float | None
    ended: float | None
    progress: float | None
    heartbeat: float | None
    remaining: float
    reason: str
    stop_reason: str
    waits: bool
    events: int
    dropped: int
    last_event: str
    input: Any
    result: Any


class Collection(msgspec.Struct):
    totals: dict[str, int]
    runs: list[Run]


class Which(msgspec.Struct):
    state: State | None = None
    key: Text | None = None
    owner: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    stuck: bool = False
    limit: Limit = 50


class Start(msgspec.Struct, forbid_unknown_fields=True):
    """Without `id` one is made. Runs with a `key` share its slots; where none is free, `conflict` decides; by default
    as the node's file says of this collection, else "reject"."""

    id: Text | None = None
    input: Any = None
    key: Text | None = None
    conflict: Conflict | None = None


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    reason: Reason


class StopAll(msgspec.Struct, forbid_unknown_fields=True):
    key: Text
    reason: Reason


class Stopped(msgspec.Struct):
    runs: int


class After(msgspec.Struct):
    """The last event seen; the header Last-Event-ID wins."""

    after: Annotated[str, Meta(max_length=40)] | None = None


class Patience(msgspec.Struct):
    timeout: Annotated[float, Meta(ge=0, le=3600)] = 30.0


def _runs(call: Call) -> Runs:
    return call.node.runs(call.path["collection"])


def _run(call: Call, found: Any) -> Run:
    """What it was started with and what came of it is not for whoever may only look."""
    if call.caller.scopes <= {"read"}:
        return shape(Run, found, input=None, result=None)
    return shape(Run, found)


async def names(call: Call) -> list[Named]:
    """Collections of runs that the fleet uses."""
    return [Named(one.name, one.seen) for one in await call.node.hf.fleet.names() if one.kind == "runs"]


async def collection(call: Call) -> Collection:
    """How many runs there are in each state, and the latest of them."""
    runs, query = _runs(call), call.query
    found = await runs.list(state=query.state, key=query.key, owner=query.owner, stuck=query.stuck, count=query.limit)
    return Collection(await runs.totals(), [_run(call, one) for one in found])


async def start(call: Call) -> Created:
    """Put a run in the queue. The same id again answers the same run."""
    body: Start = call.body
    run_id = body.id or secrets.token_hex(8)
    return Created(_run(call, await _runs(call).start(run_id, body.input, key=body.key, conflict=body.conflict)))


async def get(call: Call) -> Run:
    """The run as it is now."""
    return _run(call, await _runs(call).get(call.path["run"]))


async def wait(call: Call) -> Run:
    """The run when it has ended, or as it is after `timeout` seconds."""
    runs, run_id = _runs(call), call.path["run"]
    try:
        return _run(
            call,
            await call.node.patiently(runs.wait(run_id, timeout=min(call.query.timeout, call.node.config.max_wait))),
        )
    except TimeoutError:
        return _run(call, await runs.get(run_id))


async def stop(call: Call) -> Run:
    """Stop a run wherever it is: it ends `stopped`, whatever its handler makes of it."""
    return _run(call, await _runs(call).stop(call.path["run"], call.body.reason))


async def stop_all(call: Call) -> Stopped:
    """Stop every run of a key that has not ended."""
    return Stopped(await _runs(call).stop_all(call.body.key, call.body.reason))


async def events(call: Call) -> Response:
    """The run's events as Server-Sent Events, until its end. Come back with the last id, and none is missed."""
    return await event_stream(_runs(call), call.path["run"], call.request)


AT = "/v1/runs"
OPERATIONS = [
    Operation("GET", AT, "read", names, answer=list[Named]),
    Operation("GET", f"{AT}/{{collection}}", "read", collection, query=Which, answer=Collection),
    Operation("POST", f"{AT}/{{collection}}", "write", start, body=Start, answer=Run, status=201, repeatable=True,
              errors=(409, 413, 422)),
    Operation("POST", f"{AT}/{{collection}}/stop-all", "write", stop_all, body=StopAll, answer=Stopped,
              repeatable=True),
    Operation("GET", f"{AT}/{{collection}}/{{run}}", "read", get, answer=Run, errors=(404,)),
    Operation("GET", f"{AT}/{{collection}}/{{run}}/wait", "read", wait, query=Patience, answer=Run, errors=(404,)),
    Operation("POST", f"{AT}/{{collection}}/{{run}}/stop", "write", stop, body=Stop, answer=Run, repeatable=True,
              errors=(404,)),
    Operation("GET", f"{AT}/{{collection}}/{{run}}/events", "write", events, query=After, stream=True,
              empty="The end was seen.", errors=(404, 410)),
]  # fmt: skip

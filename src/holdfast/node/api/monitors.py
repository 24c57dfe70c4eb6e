"""The change monitor over HTTP: observe, look, subscribe, dead letters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

import holdfast
from holdfast import Monitor
from holdfast.node.access import operate
from holdfast.node.api.operation import Call, Operation
from holdfast.node.api.shapes import Limit, Named, Page, Reason, Text, Why, plain, shape
from holdfast.node.problems import Refused

Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Key = Text | Whole | Annotated[list[Text | Whole], Meta(min_length=1, max_length=16)]
Outcome = Literal["first", "changed", "unchanged", "older", "repeated", "full"]


class Observation(msgspec.Struct, forbid_unknown_fields=True):
    """`observed_at`: seconds since 1970; without it, now by the server's clock."""

    source: Text
    key: Key
    state: Any
    observed_at: Annotated[float, Meta(ge=0, le=1e11)] | None = None


class Observe(msgspec.Struct, forbid_unknown_fields=True):
    observations: Annotated[list[Observation], Meta(min_length=1, max_length=1000)]


class Observed(msgspec.Struct):
    outcome: Outcome
    change: str | None
    before: Any


class Status(msgspec.Struct):
    """`waiting`: changes that each subscriber has not been told yet. `failing`: failures in a row."""

    changes: int
    dead_letters: int
    waiting: dict[str, int]
    failing: dict[str, int]


class Change(msgspec.Struct):
    id: str
    source: str
    key: Any
    kind: Literal["first", "changed", "settled"]
    before: Any
    after: Any
    observed_at: float
    at: float


class Which(msgspec.Struct):
    source: Text
    key: Text


class Thing(msgspec.Struct):
    """`state`: null if it is not known."""

    state: Any


class Past(msgspec.Struct):
    source: Text
    key: Text
    limit: Limit = 100


class Snapshot(msgspec.Struct):
    id: str
    source: str
    key: Any
    kind: str
    state: Any
    observed_at: float


class Subscribe(msgspec.Struct, forbid_unknown_fields=True):
    """Who is told, of what, and how: as `holdfast.Subscriber`. `target` and `secret` are never answered."""

    sink: Literal["webhook", "slack", "dingtalk", "apprise"]
    target: Annotated[str, Meta(min_length=1, max_length=2000)]
    secret: Annotated[str, Meta(max_length=500)] = ""
    sources: list[Text] = []
    keys: list[Text] = []
    fields: list[Text] = []
    min_change: dict[str, float | str] = {}
    first: bool = False
    interval: Annotated[float, Meta(ge=0, le=31_622_400)] = 0.0
    max_changes: Annotated[int, Meta(ge=1, le=1000)] = 100
    retries: Annotated[int, Meta(ge=0, le=1000)] = 3
    retry_delay: Annotated[float, Meta(ge=0, le=86_400)] = 5.0


class Subscriber(msgspec.Struct):
    name: str
    sink: str
    sources: list[str]
    fields: list[str]
    first: bool
    interval: float
    retries: int


class Done(msgspec.Struct):
    done: bool


class Letter(msgspec.Struct):
    id: str
    subscriber: str
    error: str
    attempts: int
    at: float
    changes: int


class Replayed(msgspec.Struct):
    changes: int


class Attempts(msgspec.Struct):
    subscriber: Text | None = None
    limit: Limit = 100


class Push(msgspec.Struct):
    subscriber: str
    delivery: str
    attempt: int
    changes: int
    outcome: str
    detail: str
    latency: float
    at: float


def _monitor(call: Call) -> Monitor:
    return call.node.monitor(call.path["monitor"])


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


async def names(call: Call) -> list[Named]:
    """Monitors that the fleet uses."""
    return [Named(one.name, one.seen) for one in await call.node.hf.fleet.names() if one.kind == "monitor"]


async def status(call: Call) -> Status:
    """How much waits, for whom, and who fails."""
    return shape(Status, await _monitor(call).status())


async def observe(call: Call) -> list[Observed]:
    """This is what things are like. Each change is told to the subscribers."""
    seen = [(one.source, _key(one.key), one.state, one.observed_at) for one in call.body.observations]
    return [shape(Observed, one) for one in await _monitor(call).observe_many(seen)]


async def changes(call: Call) -> list[Change]:
    """The last changes, newest first."""
    return [shape(Change, one) for one in await _monitor(call).changes(call.query.limit)]


async def thing(call: Call) -> Thing:
    """What is known of a thing."""
    return Thing(plain(await _monitor(call).get(call.query.source, call.query.key)))


async def history(call: Call) -> list[Snapshot]:
    """What a thing was, newest first. Needs the monitor's store."""
    query = call.query
    return [shape(Snapshot, one) for one in await _monitor(call).history(query.source, query.key, limit=query.limit)]


async def subscribers(call: Call) -> list[Subscriber]:
    """Who is told. Their addresses and secrets are not shown."""
    return [shape(Subscriber, one) for one in await _monitor(call).subscribers()]


async def subscribe(call: Call) -> Done:
    """Add a subscriber, or replace the one of that name. Needs the monitor's store."""
    body: Subscribe = call.body
    given = {one.name: getattr(body, one.name) for one in msgspec.structs.fields(Subscribe)}
    for name in ("sources", "keys", "fields"):
        given[name] = tuple(given[name])
    wanted = holdfast.Subscriber(call.path["subscriber"], **given)

    async def go() -> str:
        await _monitor(call).subscribe(wanted)
        return "subscribed"

    await operate(call.request, "subscribe", _target(call, "subscriber"), "through the API", go)
    return Done(True)


async def unsubscribe(call: Call) -> Done:
    """Tell a subscriber nothing more; what waits for it is dropped."""
    known = False

    async def go() -> str:
        nonlocal known
        known = await _monitor(call).unsubscribe(call.path["subscriber"])
        return "unsubscribed" if known else "there was none"

    await operate(call.request, "unsubscribe", _target(call, "subscriber"), call.body.reason, go)
    return Done(known)


async def pushes(call: Call) -> list[Push]:
    """Attempts to tell, newest first. Needs the monitor's store."""
    return [shape(Push, one) for one in await _monitor(call).pushes(call.query.subscriber, call.query.limit)]


async def dead(call: Call) -> list[Letter]:
    """What subscribers did not accept however often it was tried."""
    return [shape(Letter, one, changes=len(one.changes)) for one in await _monitor(call).dead_letters(call.query.limit)]


async def replay(call: Call) -> Replayed:
    """Tell a dead letter once more, after what waits already."""
    number = 0

    async def go() -> str:
        nonlocal number
        number = await _monitor(call).replay(call.path["letter"])
        return f"{number} changes"

    await operate(call.request, "replay", _target(call, "letter"), call.body.reason, go)
    if not number:
        raise _no_letter()
    return Replayed(number)


async def purge(call: Call) -> Done:
    """Throw a dead letter away."""
    gone = False

    async def go() -> str:
        nonlocal gone
        gone = await _monitor(call).purge(call.path["letter"])
        return "purged" if gone else "there was none"

    await operate(call.request, "purge", _target(call, "letter"), call.body.reason, go)
    if not gone:
        raise _no_letter()
    return Done(True)


async def forget(call: Call) -> Done:
    """Forget a thing: its next state is the first."""
    body: Forgotten = call.body
    known = False

    async def go() -> str:
        nonlocal known
        known = await _monitor(call).forget(body.source, _key(body.key))
        return "forgotten" if known else "it was not known"

    await operate(call.request, "forget", f"monitor:{call.path['monitor']} {body.source} {body.key}"[:1000],
                  body.reason, go)  # fmt: skip
    return Done(known)


class Forgotten(msgspec.Struct, forbid_unknown_fields=True):
    source: Text
    key: Key
    reason: Reason


def _target(call: Call, what: str) -> str:
    return f"monitor:{call.path['monitor']} {what} {call.path[what]}"[:1000]


def _no_letter() -> Refused:
    return Refused(404, "no-letter", "look at the dead letters: there is no such one, or no longer")


AT = "/v1/monitors"
OPERATIONS = [
    Operation("GET", AT, "read", names, answer=list[Named]),
    Operation("GET", f"{AT}/{{monitor}}", "read", status, answer=Status),
    Operation("POST", f"{AT}/{{monitor}}/observe", "write", observe, body=Observe, answer=list[Observed],
              repeatable=True, errors=(413, 422)),
    Operation("GET", f"{AT}/{{monitor}}/changes", "read", changes, query=Page, answer=list[Change]),
    Operation("GET", f"{AT}/{{monitor}}/thing", "read", thing, query=Which, answer=Thing),
    Operation("GET", f"{AT}/{{monitor}}/history", "read", history, query=Past, answer=list[Snapshot]),
    Operation("POST", f"{AT}/{{monitor}}/forget", "operate", forget, body=Forgotten, answer=Done, repeatable=True),
    Operation("GET", f"{AT}/{{monitor}}/subscribers", "read", subscribers, answer=list[Subscriber]),
    Operation("PUT", f"{AT}/{{monitor}}/subscribers/{{subscriber}}", "operate", subscribe, body=Subscribe, answer=Done,
              errors=(422,)),
    Operation("POST", f"{AT}/{{monitor}}/subscribers/{{subscriber}}/remove", "operate", unsubscribe, body=Why,
              answer=Done, repeatable=True),
    Operation("GET", f"{AT}/{{monitor}}/pushes", "read", pushes, query=Attempts, answer=list[Push]),
    Operation("GET", f"{AT}/{{monitor}}/dead", "read", dead, query=Page, answer=list[Letter]),
    Operation("POST", f"{AT}/{{monitor}}/dead/{{letter}}/replay", "operate", replay, body=Why, answer=Replayed,
              repeatable=True, errors=(404,)),
    Operation("POST", f"{AT}/{{monitor}}/dead/{{letter}}/purge", "operate", purge, body=Why, answer=Done,
              repeatable=True, errors=(404,)),
]  # fmt: skip

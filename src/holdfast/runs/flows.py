"""What can be asked about runs by anybody: start, look, stop, list. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, ReplyLost, call
from holdfast.engine.payload import encode
from holdfast.errors import (
    Indeterminate,
    QueueFull,
    RunActive,
    RunGone,
    RunMismatch,
)
from holdfast.events import RunQueued, RunStopping
from holdfast.keys import Id, id_bytes
from holdfast.keys import decode as decode_id
from holdfast.keys import encode as encode_id
from holdfast.runs.record import Run, parse_run
from holdfast.runs.spec import REASON_MAX, STATES, Place, RunSpec, key_part

ANY, FINAL = 0, 7
WHERE_KEYS_ARE_COUNTED = {"runs/list", "runs/flags", "runs/find"}


def ask(
    core: Core, spec: RunSpec, script: str, keys: Sequence[Any], args: Sequence[Any], *, key: str = "",
    until: float | None = None, lost: list[ReplyLost] | None = None,
) -> Flow[list[Any]]:  # fmt: skip
    if script not in WHERE_KEYS_ARE_COUNTED:
        # A cluster slot that is moving to another node answers "later" for as long as one of the keys is not there.
        keys = (*keys, spec.held, spec.none)
    return call(
        core.scripts.get(script), spec.tag, keys, (spec.base, *args), clock=core.clock,
        until=core.clock() + core.settings.retry_for if until is None else until, key=key, lost=lost,
    )  # fmt: skip


def owner_part(core: Core) -> str:
    return encode_id(core.owner.encode()[:512])


def start(core: Core, spec: RunSpec, run: Id, data: Any, key: Id | None, conflict: str) -> Flow[Run]:
    place, part, payload = spec.place(run), key_part(key), encode(data, spec.max_data)
    core.use("runs", spec.name)
    digest = spec.digest(part, payload)
    if core.tracing is not None:
        payload = core.carried() + payload
    args = (
        place.run, digest, spec.limits, part, conflict, spec.kind, payload, spec.waiting, spec.queued,
        int(spec.archive),
    )  # fmt: skip
    reply = yield from ask(core, spec, "runs/start", (place.key,), args, key=place.run)
    word = reply[0]
    if word == b"full":
        raise QueueFull(
            f"try again later, or raise the bound: {reply[2]} runs wait already for this {reply[1].decode()}",
            operation="runs/start", key=place.run,
        )  # fmt: skip
    found = parse_run(reply[2], reply[3], int(reply[1]))
    if word == b"mismatch":
        raise RunMismatch(
            "use another run id: this one was started with another input, key or kind",
            run=found, operation="runs/start", key=place.run,
        )  # fmt: skip
    if word == b"busy":
        raise active(found, place, "runs/start")
    if word == b"created" and core.events:
        core.events.emit(RunQueued(spec.name, str(found.id), shown(key), found.waits))
    return found


def active(found: Run, place: Place, operation: str) -> RunActive:
    who = f" by {found.owner}" if found.owner else ""
    what = "this run" if found.id == decode_id(place.run) else f"run {found.id!r} has its key and"
    return RunActive(
        f"wait, or stop it first: {what} is {found.state}{who}", run=found, operation=operation, key=place.run
    )


def look(core: Core, spec: RunSpec, run: Id, strict: bool = False) -> Flow[Run]:
    """`strict`: raise NewerPayload where a newer version wrote the input or result, which is None otherwise."""
    place = spec.place(run)
    reply = yield from ask(core, spec, "runs/look", (place.key,), (place.run,), key=place.run)
    if reply[0] == b"missing":
        raise gone(spec, place, "runs/look")
    return parse_run(reply[2], reply[3], int(reply[1]), strict)


def gone(spec: RunSpec, place: Place, operation: str) -> RunGone:
    return RunGone(
        f"check the id: there is no such run, or it ended more than {spec.retention:g} s ago",
        operation=operation, key=place.run,
    )  # fmt: skip


def stop(core: Core, spec: RunSpec, run: Id, reason: str) -> Flow[Run]:
    place = spec.place(run)
    reply = yield from ask(core, spec, "runs/stop", (place.key,), (place.run, short(reason)), key=place.run)
    if reply[0] == b"missing":
        raise gone(spec, place, "runs/stop")
    found = parse_run(reply[2], reply[3], int(reply[1]))
    if core.events:
        core.events.emit(RunStopping(spec.name, str(found.id), reason, found.state))
    return found


def stop_all(core: Core, spec: RunSpec, key: Id, reason: str) -> Flow[int]:
    part = encode_id(id_bytes(key))
    unanswered: list[ReplyLost] = []
    keys = (f"{spec.base}a:{part}", f"{spec.base}w:{part}")
    reply = yield from ask(core, spec, "runs/stop_all", keys, (short(reason),), key=part, lost=unanswered)
    if unanswered:
        raise Indeterminate(
            "list the key's runs before you rely on a number: all were told to stop, and the reply with it was lost",
            operation="runs/stop_all", key=part,
        )  # fmt: skip
    return int(reply[1])


def sweep(core: Core, spec: RunSpec) -> Flow[int]:
    """End or requeue what lost its owner. Answers ms until the next lease is over, -1 for never."""
    reply = yield from ask(core, spec, "runs/sweep", (spec.held,), (int(spec.stuck * 1000),))
    return int(reply[1])


class Index(NamedTuple):
    """Where runs are listed."""

    name: str
    state: int
    """The state that they are in, by its number; ANY, or any that is FINAL."""

    @property
    def ended(self) -> bool:
        return self.state == FINAL or self.state > STATES.index("stopping") + 1


def indexes(spec: RunSpec, state: str | None, key: Id | None, owner: str | None) -> list[Index]:
    """Where to look."""
    base = spec.base
    if key is not None:
        part = encode_id(id_bytes(key))
        return [Index(f"{base}w:{part}", ANY), Index(f"{base}a:{part}", ANY), Index(f"{base}h:{part}", FINAL)]
    if owner is not None:
        return [Index(f"{base}o:{encode_id(id_bytes(owner))}", ANY)]
    return [Index(f"{base}is:{one}", STATES.index(one) + 1) for one in (STATES if state is None else (state,))]


def list_runs(
    core: Core, spec: RunSpec, state: str | None, key: Id | None, owner: str | None, stuck: bool, count: int
) -> Flow[list[Run]]:
    where = [Index(f"{spec.base}stuck", ANY)] if stuck else indexes(spec, state, key, owner)
    yield from sweep(core, spec)
    # Where the index says less than what is asked for, more of it is read.
    narrow = state is not None and (stuck or key is not None or owner is not None)
    most = max(count, 1000) if narrow else count
    reply = yield from ask(core, spec, "runs/list", [one.name for one in where], (most, *(one.state for one in where)))
    runs = [parse_run(reply[at], reply[at + 1], int(reply[1])) for at in range(2, len(reply), 2)]
    if state is not None:
        runs = [run for run in runs if run.state == state]
    return runs[:count]


def counts(core: Core, spec: RunSpec, where: Sequence[Index]) -> Flow[list[int]]:
    yield from sweep(core, spec)
    reply = yield from call(
        core.scripts.get("runs/totals"), spec.tag, [one.name for one in where],
        (int(spec.retention * 1000), *(int(one.ended) for one in where)), clock=core.clock,
        until=core.clock() + core.settings.retry_for,
    )  # fmt: skip
    return [int(number) for number in reply[1:]]


def short(reason: str) -> str:
    """As much of it as is kept."""
    return str(reason).encode("utf-8", "replace")[:REASON_MAX].decode("utf-8", "ignore")


def shown(key: Id | None) -> str:
    return "" if key is None else str(key)


def archive(
    core: Core, spec: RunSpec, count: int, pause: float, stored: Sequence[str]
) -> Flow[tuple[int, int, list[str]]]:
    """How many runs are to be archived, how many were gone too early, and some of them, as they stand in keys. Those
    come again after `pause` seconds, unless they are among the `stored` of a later call."""
    args = (count, int(pause * 1000), *stored)
    reply = yield from ask(core, spec, "runs/archive", (f"{spec.base}arch",), args)
    return int(reply[1]), int(reply[2]), [run.decode() for run in reply[3:]]

"""What can be asked about runs: start, claim, look, stop, list; and what an owner writes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.flow import INTERRUPTED, Detach, Flow, ReplyLost, call
from holdfast.engine.keeper import Hold
from holdfast.engine.payload import decode, encode
from holdfast.errors import (
    Indeterminate,
    LeaseLost,
    QueueFull,
    RunActive,
    RunEnded,
    RunGone,
    RunMismatch,
    RunStopped,
    TooLarge,
    Unavailable,
)
from holdfast.events import Dropped, RunFinished, RunQueued, RunReturned, RunStopping, RunTaken
from holdfast.keys import Id, id_bytes
from holdfast.keys import decode as decode_id
from holdfast.keys import encode as encode_id
from holdfast.runs.record import Run, parse_run
from holdfast.runs.spec import REASON_MAX, STATES, Place, RunSpec, key_part

Home = Callable[[], bool]
RENEW = "runs/renew"
OFTEN = 1.0
ANY, FINAL = 0, 7
WHERE_KEYS_ARE_COUNTED = {"runs/list", "runs/flags", "runs/find"}


class Given(NamedTuple):
    """A run as it was given to its owner."""

    place: Place
    attempt: int
    key: Id | None
    kind: str
    input: bytes
    saved: bytes
    steps: Mapping[str, bytes]
    hold: Hold


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


# -- asking -----------------------------------------------------------------------------------------------------


def start(core: Core, spec: RunSpec, run: Id, data: Any, key: Id | None, conflict: str) -> Flow[Run]:
    place, part, payload = spec.place(run), key_part(key), encode(data, spec.max_data)
    args = (
        place.run, spec.digest(part, payload), spec.limits, part, conflict, spec.kind, payload, spec.waiting,
        spec.queued, int(spec.archive),
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
        raise _active(found, place, "runs/start")
    if word == b"created" and core.events:
        core.events.emit(RunQueued(spec.name, str(found.id), _name(key), found.waits))
    return found


def claim(
    core: Core, spec: RunSpec, run: Id, data: Any, key: Id | None, lease: float, attempts: int, home: Home
) -> Flow[Given]:
    """Cancelled in the middle, it gives back what may have been taken."""
    place, part, payload = spec.place(run), key_part(key), encode(data, spec.max_data)
    token, asked = core.new_token(), core.clock()
    args = (
        place.run, spec.digest(part, payload), spec.limits, part, spec.kind, payload, token, owner_part(core),
        int(lease * 1000), attempts, int(spec.archive),
    )  # fmt: skip
    try:
        reply = yield from ask(core, spec, "runs/claim", (place.key,), args, key=place.run)
    except INTERRUPTED:
        yield Detach(_settle(core, spec, place, token, 0, b"", "uncounted", "", b"", 0, 0.0))
        raise
    if reply[0] == b"taken":
        # No worker asks for it whether it should stop: its renewals do.
        return begin(core, spec, reply[2], token, asked, lease, home, OFTEN)
    found = parse_run(reply[2], reply[3], int(reply[1]))
    if reply[0] == b"ended":
        raise RunEnded(
            f"leave it: this run is over, it {'was' if found.state == 'stopped' else 'has'} {found.state}",
            run=found, operation="runs/claim", key=place.run,
        )  # fmt: skip
    raise _active(found, place, "runs/claim")


def _active(found: Run, place: Place, operation: str) -> RunActive:
    who = f" by {found.owner}" if found.owner else ""
    what = "this run" if found.id == decode_id(place.run) else f"run {found.id!r} has its key and"
    return RunActive(
        f"wait, or stop it first: {what} is {found.state}{who}", run=found, operation=operation, key=place.run
    )


def look(core: Core, spec: RunSpec, run: Id) -> Flow[Run]:
    place = spec.place(run)
    reply = yield from ask(core, spec, "runs/look", (place.key,), (place.run,), key=place.run)
    if reply[0] == b"missing":
        raise gone(spec, place, "runs/look")
    return parse_run(reply[2], reply[3], int(reply[1]))


def readable_here(core: Core, spec: RunSpec, run: Id) -> Flow[None]:
    """Raises NewerPayload if a newer version wrote its input or result: then it is not for this process to keep."""
    place = spec.place(run)
    reply = yield from ask(core, spec, "runs/look", (place.key,), (place.run,), key=place.run)
    for raw in reply[3][6:8] if reply[0] == b"found" else ():
        if raw:
            decode(raw)


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


# -- owning -----------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """What a worker found."""

    given: list[Given]
    next_ms: int
    idle: int
    stuck: list[Id]


def take(
    core: Core, spec: RunSpec, worker: str, most: int, attempts: int, lease: float, home: Home,
    back: str = "uncounted",
) -> Flow[Look]:  # fmt: skip
    """Up to `most` runs, those that waited longest first. Cancelled in the middle, it gives back."""
    tokens = [core.new_token() for _ in range(most)]
    owner, asked = owner_part(core), core.clock()
    args = (worker, owner, int(lease * 1000), attempts, int(spec.stuck * 1000), *tokens)
    try:
        try:
            reply = yield from ask(core, spec, "runs/take", (spec.due,), args)
        except Indeterminate:
            asked = core.clock()
            reply = yield from _find(core, spec, owner, tokens)
            tokens = [one[10].decode() for one in reply[4:]]
    except INTERRUPTED:
        yield Detach(_hand_back(core, spec, owner, tokens))
        raise
    given = [
        begin(core, spec, one, token, asked, lease, home, back=back)
        for one, token in zip(reply[4:], tokens, strict=False)
    ]
    return Look(given, int(reply[1]), int(reply[2]), [decode_id(run) for run in reply[3]])


def _find(core: Core, spec: RunSpec, owner: str, tokens: Sequence[str]) -> Flow[list[Any]]:
    """The runs that a take took whose reply was lost."""
    return ask(core, spec, "runs/find", (f"{spec.base}o:{owner}",), tokens)


def _hand_back(core: Core, spec: RunSpec, owner: str, tokens: Sequence[str]) -> Flow[None]:
    reply = yield from _find(core, spec, owner, tokens)
    for one in reply[4:]:
        place = spec.place_of(one[0].decode())
        yield from _settle(core, spec, place, one[10].decode(), 0, b"", "uncounted", "", b"", 0, 0.0)


def begin(
    core: Core, spec: RunSpec, one: list[Any], token: str, asked: float, lease: float, home: Home,
    often: float = float("inf"), back: str = "uncounted",
) -> Given:  # fmt: skip
    """Hold what was given: id, fence, attempt, ms, key, kind, input, checkpoint, steps, stop."""
    place = spec.place_of(one[0].decode())
    hold = Hold(
        name=f"{spec.name}:{decode_id(one[0])!s}", token=token, fence=int(one[1]), key=place.key,
        group=(RENEW, spec.tag, spec.held), ttl=lease, span=int(one[3]) / 1000, asked=asked, started=core.clock(),
        max_hold=None, renews=True, home=home,
    )  # fmt: skip
    hold.what, hold.often = "run", often
    hold.back = lambda: _settle(core, spec, place, token, 0, b"", back, "worker shut down", b"", 0, 0.0)
    if one[9]:
        hold.stopping = True
    core.begin(hold)
    steps = {one[8][at].decode(): one[8][at + 1] for at in range(0, len(one[8]), 2)}
    key = decode_id(one[4]) if one[4] else None
    given = Given(place, int(one[2]), key, one[5].decode(), one[6] or b"", one[7] or b"", steps, hold)
    if core.events:
        core.events.emit(RunTaken(spec.name, str(decode_id(one[0])), _name(key), given.attempt, hold.fence))
    return given


def write(
    core: Core, spec: RunSpec, given: Given, number: int, blob: bytes, what: str = "", data: bytes = b"", name: str = ""
) -> Flow[None]:
    """Events, and a checkpoint or the result of a step, in one step. `number` makes a repeated one known.

    Raises LeaseLost if the run is no longer this owner's; then nothing was written."""
    hold, place = given.hold, given.place
    if hold.lost_reason or hold.over:
        raise lost(hold, "runs/write")
    args: list[Any] = [place.run, hold.token, number, blob, what, data, name]
    now = core.clock()
    until = max(hold.deadline, now + core.settings.call_timeout)
    reply = yield from ask(core, spec, "runs/write", (place.key,), args, key=place.run, until=until)
    if reply[0] == b"not_held":
        raise taken_away(core, hold, "runs/write")
    if reply[0] == b"full":
        raise TooLarge(
            f"keep what belongs together in one step: a run has {reply[1]} of them at most",
            operation="runs/write", key=place.run,
        )  # fmt: skip
    if reply[1]:
        hold.ask_to_stop()
    if reply[2] and core.events:
        core.events.emit(Dropped(spec.name, "run event", "capacity", int(reply[2])))


def settle(
    core: Core, spec: RunSpec, given: Given, number: int, blob: bytes, outcome: str, reason: str, result: bytes,
    delay: float = 0.0,
) -> Flow[str]:  # fmt: skip
    """End the run, or hand it back: its last events and its state in one step. Answers the state it has now.

    Raises LeaseLost if it is no longer this owner's, Indeterminate if no answer came in time: then whoever comes along
    ends it, or takes it, when the lease is over. A cancelled one goes on in the background."""
    hold, place = given.hold, given.place
    if hold.lost_reason or hold.over:
        raise lost(hold, "runs/settle")
    core.end(hold)  # from here on it is not renewed: a renewal that comes after its end must not call it lost

    def request() -> Flow[bytes]:
        left = max(0.0, hold.deadline - core.clock())
        return _settle(core, spec, place, hold.token, number, blob, outcome, short(reason), result, delay, left)

    try:
        state = yield from request()
    except (Unavailable, Indeterminate) as error:
        raise Indeterminate(
            "look at the run: its end got no answer, so it may come when its lease is over, as a lost worker's",
            operation="runs/settle", key=place.run,
        ) from error  # fmt: skip
    except INTERRUPTED:
        yield Detach(request())
        raise
    if not state:
        hold.lost_reason = "expired" if core.clock() >= hold.deadline else "taken away"
        core.end_lost(hold)
        raise lost(hold, "runs/settle")
    if core.events:
        run, key, held = str(decode_id(place.run)), _name(given.key), core.clock() - hold.started
        word = state.decode()
        if word == "queued":
            core.events.emit(RunReturned(spec.name, run, key, given.attempt, reason))
        else:
            core.events.emit(RunFinished(spec.name, run, key, word, reason, given.attempt, held))
    return state.decode()


def _settle(
    core: Core, spec: RunSpec, place: Place, token: str, number: int, blob: bytes, outcome: str, reason: str,
    result: bytes, delay: float, left: float,
) -> Flow[bytes]:  # fmt: skip
    """Answers the run's state, or nothing if it is somebody else's."""
    until = core.clock() + max(left, core.settings.call_timeout)
    args = (place.run, token, number, blob, outcome, reason, result, int(delay * 1000))
    reply = yield from ask(core, spec, "runs/settle", (place.key,), args, key=place.run, until=until)
    return b"" if reply[0] == b"not_held" else bytes(reply[1])


def taken_away(core: Core, hold: Hold, operation: str) -> LeaseLost:
    if hold.lose("expired" if core.clock() >= hold.deadline else "taken away"):
        core.end_lost(hold)
    return lost(hold, operation)


def lost(hold: Hold, operation: str) -> LeaseLost:
    reason = hold.lost_reason or "it has ended here"
    return LeaseLost(
        f"stop working on this run: it is no longer this process's ({reason})",
        reason=reason, operation=operation, key=hold.name,
    )  # fmt: skip


def stopped(hold: Hold, operation: str) -> RunStopped:
    why = f" ({hold.stop_reason})" if hold.stop_reason else ""
    return RunStopped(
        f"clean up and return: somebody wants this run to stop{why}",
        reason=hold.stop_reason, operation=operation, key=hold.name,
    )  # fmt: skip


def short(reason: str) -> str:
    """As much of it as is kept."""
    return str(reason).encode("utf-8", "replace")[:REASON_MAX].decode("utf-8", "ignore")


def _name(key: Id | None) -> str:
    return "" if key is None else str(key)


def flags(core: Core, spec: RunSpec, holds: Sequence[Hold], active: Callable[[str], bool]) -> Flow[None]:
    """Ask which of these should stop, or are gone: what a lost message would have said."""
    reply = yield from ask(
        core, spec, "runs/flags", [hold.key for hold in holds], [hold.token for hold in holds],
    )  # fmt: skip
    for hold, flag in zip(holds, reply[1:], strict=True):
        if flag == 2:
            hold.ask_to_stop()
        elif flag == 0 and active(hold.token) and not hold.over and hold.lose("taken away"):
            core.end_lost(hold)


def archive(
    core: Core, spec: RunSpec, count: int, pause: float, stored: Sequence[str]
) -> Flow[tuple[int, int, list[str]]]:
    """How many runs are to be archived, how many were gone too early, and some of them, as they stand in keys. Those
    come again after `pause` seconds, unless they are among the `stored` of a later call."""
    args = (count, int(pause * 1000), *stored)
    reply = yield from ask(core, spec, "runs/archive", (f"{spec.base}arch",), args)
    return int(reply[1]), int(reply[2]), [run.decode() for run in reply[3:]]


def readable(given: Given) -> tuple[Any, Any]:
    """Input and checkpoint. Raises UnreadablePayload or NewerPayload."""
    return (decode(given.input) if given.input else None), (decode(given.saved) if given.saved else None)

"""Owning a run: taking it, writing into it, ending it or handing it back. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.flow import INTERRUPTED, Detach, Flow
from holdfast.engine.keeper import Hold
from holdfast.engine.payload import decode, encode
from holdfast.errors import Indeterminate, LeaseLost, RunEnded, RunStopped, ServerFull, TooLarge, Unavailable
from holdfast.events import Dropped, RunFinished, RunReturned, RunTaken
from holdfast.keys import Id
from holdfast.keys import decode as decode_id
from holdfast.runs.flows import active, ask, owner_part, short, shown
from holdfast.runs.record import parse_run
from holdfast.runs.spec import Place, RunSpec, key_part

Home = Callable[[], bool]
RENEW = "runs/renew"
OFTEN = 1.0
"""How often a run is renewed for which no worker asks whether it should stop."""


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


def claim(
    core: Core, spec: RunSpec, run: Id, data: Any, key: Id | None, lease: float, attempts: int, home: Home
) -> Flow[Given]:
    """Cancelled in the middle, it gives back what may have been taken."""
    place, part, payload = spec.place(run), key_part(key), encode(data, spec.max_data)
    core.use("runs", spec.name)
    token, asked, digest = core.new_token(), core.clock(), spec.digest(part, payload)
    if core.tracing is not None:
        payload = core.carried() + payload
    args = (
        place.run, digest, spec.limits, part, spec.kind, payload, token, owner_part(core), int(lease * 1000), attempts,
        int(spec.archive),
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
    raise active(found, place, "runs/claim")


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
        core.events.emit(RunTaken(spec.name, str(decode_id(one[0])), shown(key), given.attempt, hold.fence))
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
    while True:
        before = hold.deadline
        until = max(before, core.clock() + core.settings.call_timeout)
        try:
            reply = yield from ask(core, spec, "runs/write", (place.key,), args, key=place.run, until=until)
            break
        except (Unavailable, Indeterminate) as error:
            # As long as it is renewed meanwhile, it is this owner's, and a short outage is no reason to fail.
            if isinstance(error, ServerFull) or hold.lost_reason or hold.over or hold.deadline <= before:
                raise
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
        run, key, held = str(decode_id(place.run)), shown(given.key), core.clock() - hold.started
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


def about(spec: RunSpec, given: Given) -> dict[str, object]:
    """What its span says."""
    return {
        "collection": spec.name, "run": str(decode_id(given.place.run)), "key": shown(given.key),
        "attempt": given.attempt, "fence": given.hold.fence,
    }  # fmt: skip


def readable(given: Given) -> tuple[Any, Any]:
    """Input and checkpoint. Raises UnreadablePayload or NewerPayload."""
    return (decode(given.input) if given.input else None), (decode(given.saved) if given.saved else None)

"""Gates: which states are worth telling. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.digest import state_digest, watched
from holdfast.engine.flow import Flow, Together
from holdfast.engine.limits import check_seconds
from holdfast.engine.payload import decode, encode
from holdfast.errors import HoldfastError, Indeterminate, InvalidId, Unavailable
from holdfast.events import Gated
from holdfast.once.flows import all_or_raise, ask, in_groups, outage
from holdfast.once.spec import MARK_MAX, Space, check_policy

AT_ONCE = 512
TOLD = ("first", "changed")


class Decision(NamedTuple):
    """Whether to tell, why, and the state before."""

    notify: bool
    reason: str
    """`first`: not known before. `changed`. `repeated`: told already within the window. `unchanged`. `outage`."""
    previous: Any = None


class Notice(NamedTuple):
    """Something is in another state than was told last, and the window is over: tell it now."""

    key: Any
    state: Any
    previous: Any
    digest: bytes
    shard: int
    name: str


class GateSpec:
    """A space of things, the window, and what counts of their states."""

    def __init__(
        self, core: Core, name: str, *, window: float | None, trailing: bool, fields: Iterable[str] | None,
        ignore: Iterable[str], keep: float | None, policy: str,
    ) -> None:  # fmt: skip
        s = core.settings
        self.space = Space(core, name, "gate")
        self.name = name
        self.window = s.within if window is None else check_seconds("window", window, 0.001, MARK_MAX)
        kept = s.gate_keep if keep is None else check_seconds("keep", keep, 0.001, MARK_MAX)
        self.keep = max(kept, 2 * self.window)
        self.trailing = bool(trailing)
        self.fields = None if fields is None else tuple(fields)
        self.ignore = tuple(ignore)
        self.policy = check_policy(policy)
        self.limit = s.max_message_bytes


def check(core: Core, spec: GateSpec, things: Sequence[tuple[Any, Any]], fields: Any) -> Flow[list[Decision]]:
    """One round trip for each shard touched. A thing that is named twice is judged in the order given."""
    fields = spec.fields if fields is None else tuple(fields)
    space = spec.space
    places = [space.key(key) for key, _ in things]
    blobs = [_blob(spec, key, watched(state, fields, spec.ignore)) for key, state in things]
    decisions: list[Decision | None] = [None] * len(things)
    left = list(range(len(things)))
    while left:
        # Who repeats an operation must find its own: so one operation holds each thing once.
        firsts = {places[at][1]: at for at in reversed(left)}
        now = sorted(firsts.values())
        left = [at for at in left if firsts[places[at][1]] != at]
        groups = [[now[at] for at in group] for group in in_groups(core, space, [places[at][0] for at in now], AT_ONCE)]
        asked = [_judge(core, spec, [(*places[at], *blobs[at]) for at in group]) for group in groups]
        try:
            answers = all_or_raise((yield Together(asked)))
        except (Unavailable, Indeterminate) as error:
            notify = outage(core, spec.name, spec.policy, error, "once/gate")
            return [known or Decision(notify, "outage") for known in decisions]
        for group, answer in zip(groups, answers, strict=True):
            for at, decision in zip(group, answer, strict=True):
                decisions[at] = decision
    return [decision for decision in decisions if decision is not None]


def _blob(spec: GateSpec, key: Any, state: Any) -> tuple[bytes, bytes]:
    return state_digest(state), encode([_listed(key), state], spec.limit)


def _judge(core: Core, spec: GateSpec, things: Sequence[tuple[int, str, bytes, bytes]]) -> Flow[list[Decision]]:
    space = spec.space
    keys: list[Any] = []
    args: list[Any] = [int(spec.window * 1000), int(spec.keep * 1000), int(spec.trailing), core.new_op()]
    for shard, key, digest, blob in things:
        keys += (key, space.dues[shard])
        args += (digest, blob, key[-22:])
    reply = yield from ask(core, "once/gate", space.tags[things[0][0]], keys, args, spec.name)
    decisions = []
    for at in range(1, len(reply), 2):
        reason = reply[at].decode()
        previous = decode(reply[at + 1])[1] if reply[at + 1] else None
        decisions.append(Decision(reason in TOLD, reason, previous))
        if core.events:
            core.events.emit(Gated(spec.name, reason))
    return decisions


def due(core: Core, spec: GateSpec, count: int, lease: float) -> Flow[tuple[list[Notice], float | None]]:
    """What must be told now, handed out for `lease` seconds; and seconds until there is more."""
    space = spec.space
    groups = in_groups(core, space, range(len(space.dues)))
    asked = [
        ask(
            core, "once/due", space.tags[group[0]], [space.dues[shard] for shard in group],
            (count, int(lease * 1000), *(space.prefixes[shard] for shard in group)), spec.name,
        )
        for group in groups
    ]  # fmt: skip
    notices: list[Notice] = []
    waits: list[float] = []
    problem: HoldfastError | None = None
    for group, reply in zip(groups, (yield Together(asked)), strict=True):
        if isinstance(reply, (Unavailable, Indeterminate)):
            problem = reply  # what other shards handed out must not be lost with it
            continue
        if isinstance(reply, BaseException):
            raise reply
        if reply[1] >= 0:
            waits.append(int(reply[1]) / 1000)
        for number, name, digest, state, before in reply[2:]:
            key, now = decode(state)
            previous = decode(before)[1] if before else None
            notices.append(Notice(_as_id(key), now, previous, digest, group[number - 1], name.decode()))
    if problem is not None and not notices:
        raise problem
    return notices, min(waits, default=None)


def told(core: Core, spec: GateSpec, notice: Notice) -> Flow[bool]:
    space, shard = spec.space, notice.shard
    keys = (space.prefixes[shard] + notice.name, space.dues[shard])
    args = (notice.digest, notice.name, int(spec.keep * 1000))
    reply = yield from ask(core, "once/told", space.tags[shard], keys, args, spec.name)
    return bool(reply[0] == b"settled")


def forget(core: Core, spec: GateSpec, key: Any) -> Flow[bool]:
    shard, place = spec.space.key(key)
    reply = yield from ask(core, "once/forget", spec.space.tags[shard], (place,), (b"",), spec.name)
    return int(reply[1]) > 0


def _listed(key: Any) -> Any:
    """An id as data: tuples as lists, which `_as_id` turns back."""
    if isinstance(key, tuple):
        return [_listed(part) for part in key]
    if isinstance(key, str):
        try:
            key.encode()
        except UnicodeEncodeError:
            return key.encode("utf-8", "surrogatepass")  # the same id as bytes
    return key


def _as_id(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_as_id(part) for part in data)
    if isinstance(data, (str, bytes, int)) or data is None:
        return data
    raise InvalidId(f"inspect what wrote this: {type(data).__name__} is no part of an id")

"""Gates: which states are worth telling. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.digest import state_digest, watched
from holdfast.engine.flow import INTERRUPTED, Detach, Flow, Together, call
from holdfast.engine.limits import check_names, check_seconds
from holdfast.engine.payload import decode, encode
from holdfast.errors import ConfigurationError, HoldfastError, InvalidId, UnreadablePayload
from holdfast.events import Gated
from holdfast.once.flows import DOWN, UNDO_FOR, ask, in_groups, outage
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
        self.fields = None if fields is None else check_names("fields", fields)
        self.ignore = check_names("ignore", ignore)
        self.policy = check_policy(policy)
        self.limit = s.max_message_bytes


def check(core: Core, spec: GateSpec, things: Sequence[tuple[Any, Any]], fields: Any) -> Flow[list[Decision]]:
    """One round trip for each shard touched. A thing that is named twice is judged in the order given."""
    fields = spec.fields if fields is None else check_names("fields", fields)
    space = spec.space
    core.use("gate", spec.name)
    for thing in things:
        if not isinstance(thing, (tuple, list)) or len(thing) != 2:
            raise ConfigurationError(f"pass pairs of key and state, not {type(thing).__name__}")
    places = [space.key(key) for key, _ in things]
    blobs = [_blob(spec, key, watched(state, fields, spec.ignore)) for key, state in things]
    decisions: list[Decision | None] = [None] * len(things)
    left = list(range(len(things)))
    judged: list[_Judging] = []
    while left:
        # Who repeats an operation must find its own: so one operation holds each thing once.
        firsts = {places[at][1]: at for at in reversed(left)}
        now = sorted(firsts.values())
        left = [at for at in left if firsts[places[at][1]] != at]
        groups = [[now[at] for at in group] for group in in_groups(core, space, [places[at][0] for at in now], AT_ONCE)]
        round_ = [_Judging(core, spec, [(*places[at], *blobs[at]) for at in group]) for group in groups]
        judged += round_
        try:
            answers = yield Together([one.ask() for one in round_])
        except INTERRUPTED:
            yield Detach(_untell(judged), patient=True)
            raise
        for group, one, answer in zip(groups, round_, answers, strict=True):
            if isinstance(answer, DOWN):
                if spec.policy != "allow":  # nobody is told of it, so it must not count as told
                    yield Detach(_untell(judged if spec.policy == "raise" else [one]), patient=True)
                notify = outage(core, spec.name, spec.policy, answer, "once/gate")
                given = [Decision(notify, "outage")] * len(group)
            elif isinstance(answer, BaseException):
                yield Detach(_untell(judged), patient=True)
                raise answer
            else:
                given = answer
            for at, decision in zip(group, given, strict=True):
                decisions[at] = decision
    return [decision for decision in decisions if decision is not None]


def _blob(spec: GateSpec, key: Any, state: Any) -> tuple[bytes, bytes]:
    return state_digest(state), encode([_listed(key), state], spec.limit)


class _Judging:
    """Things that are judged in one step."""

    def __init__(self, core: Core, spec: GateSpec, things: Sequence[tuple[int, str, bytes, bytes]]) -> None:
        self._core = core
        self._spec = spec
        self._things = things
        self._op = core.new_op()
        self._keys = [part for shard, key, *_ in things for part in (key, spec.space.dues[shard])]

    def _send(self, script: str, args: Sequence[Any], seconds: float | None = None) -> Flow[list[Any]]:
        core, spec = self._core, self._spec
        until = core.clock() + (core.settings.retry_for if seconds is None else seconds)
        tag = spec.space.tags[self._things[0][0]]
        return call(core.scripts.get(script), tag, self._keys, args, clock=core.clock, until=until, key=spec.name)

    def ask(self) -> Flow[list[Decision]]:
        spec, core = self._spec, self._core
        args: list[Any] = [int(spec.window * 1000), int(spec.keep * 1000), int(spec.trailing), self._op]
        for _, key, digest, blob in self._things:
            args += (digest, blob, key[-22:])
        reply = yield from self._send("once/gate", args)
        decisions = []
        for at in range(1, len(reply), 2):
            reason = reply[at].decode()
            decisions.append(Decision(reason in TOLD, reason, _state_of(reply[at + 1])))
            if core.events:
                core.events.emit(Gated(spec.name, reason))
        return decisions

    def untell(self) -> Flow[list[Any]]:
        names = (key[-22:] for _, key, *_ in self._things)
        return self._send("once/untell", (self._op, int(self._spec.trailing), *names), UNDO_FOR)


def _untell(judged: Sequence[_Judging]) -> Flow[None]:
    yield Together([one.untell() for one in judged])


def _state_of(blob: bytes) -> Any:
    """The state before; None where there is none, or this version cannot read it."""
    try:
        return decode(blob)[1] if blob else None
    except UnreadablePayload:
        return None


def due(core: Core, spec: GateSpec, count: int, lease: float) -> Flow[tuple[list[Notice], float | None]]:
    """What must be told now, handed out for `lease` seconds; and seconds until there is more."""
    space = spec.space
    groups = in_groups(core, space, range(len(space.dues)))
    each, ms, keep = max(1, count // len(groups)), int(lease * 1000), int(spec.keep * 1000)
    asked = [
        ask(
            core, "once/due", space.tags[group[0]], [space.none[group[0]], *(space.dues[shard] for shard in group)],
            (each, ms, keep, *(space.prefixes[shard] for shard in group)), spec.name,
        )
        for group in groups
    ]  # fmt: skip
    notices: list[Notice] = []
    waits: list[float] = []
    problem: HoldfastError | None = None
    for group, reply in zip(groups, (yield Together(asked)), strict=True):
        if isinstance(reply, HoldfastError):
            problem = reply  # what other shards handed out must not be lost with it
            continue
        if isinstance(reply, BaseException):
            raise reply
        if reply[1] >= 0:
            waits.append(int(reply[1]) / 1000)
        for number, name, digest, state, before in reply[2:]:
            try:
                key, now = decode(state)
                notice = Notice(_as_id(key), now, _state_of(before), digest, group[number - 1], name.decode())
            except HoldfastError as error:  # its neighbours must not wait for it
                core.warn(f"gate {spec.name}: a notice cannot be read: {error}")
            else:
                notices.append(notice)
    if problem is not None and not notices:
        raise problem
    return notices, min(waits, default=None)


def told(core: Core, spec: GateSpec, notice: Notice) -> Flow[bool]:
    space, shard = spec.space, notice.shard
    keys = (space.prefixes[shard] + notice.name, space.dues[shard])
    args = (notice.digest, notice.name, int(spec.keep * 1000), int(spec.window * 1000), core.new_op())
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

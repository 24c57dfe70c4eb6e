"""Observing, reading the log, telling. No I/O."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, ReplyLost, call
from holdfast.engine.payload import decode
from holdfast.errors import HoldfastError, InvalidId
from holdfast.events import Dropped
from holdfast.events import Observed as ObservedEvent
from holdfast.keys import decode as decode_id
from holdfast.keys import encode as encode_id
from holdfast.keys import id_bytes
from holdfast.monitor.record import Change, Key, Subscriber
from holdfast.monitor.spec import MonitorSpec, Seen, parse_change

AT_ONCE = 100
LETTERS = 10_000
MARGIN = 5.0
"""Observations in one script; dead letters kept; seconds beyond the longest that telling somebody may take."""
LONG = 3_600_000
"""A reader that is told to wait for so many ms is not to read at all: it has no store, and others do."""
_LETTER = re.compile(r"\d{1,20}-\d{1,20}")


class Observed(NamedTuple):
    """What came of an observation."""

    outcome: str
    """`first`, `changed`, `unchanged`, `older` (something newer is known), or `repeated` (told within the window)."""
    change: str | None
    """The id of the change that subscribers are told of."""
    before: Any = None

    @property
    def changed(self) -> bool:
        """Is it in another state than before?"""
        return self.outcome in ("first", "changed", "repeated")


def ask(
    core: Core, spec: MonitorSpec, script: str, keys: Sequence[Any], args: Sequence[Any], *, key: str = "",
    lost: list[ReplyLost] | None = None,
) -> Flow[list[Any]]:  # fmt: skip
    until = core.clock() + core.settings.retry_for
    return call(
        core.scripts.get(script), spec.tag, keys, args, clock=core.clock, until=until,
        key=key or spec.name, lost=lost,
    )  # fmt: skip


def observe(core: Core, spec: MonitorSpec, seen: Sequence[Seen]) -> Flow[list[Observed]]:
    """In steps of a hundred, each atomic. A thing that comes twice is judged in the order given."""
    done: list[Observed] = []
    while len(done) < len(seen):
        # Who repeats an operation must find its own: so one operation holds each thing once.
        chosen: dict[str, Seen] = {}
        for one in seen[len(done) : len(done) + AT_ONCE]:
            if one.place in chosen:
                break
            chosen[one.place] = one
        args: list[Any] = [
            spec.base, core.new_op(), int(spec.keep * 1000), int(spec.window * 1000), spec.backlog,
        ]  # fmt: skip
        lead = core.carried()
        core.use("monitor", spec.name)
        for one in chosen.values():
            args += (one.digest, one.state, lead + one.identity, one.observed)
        reply = yield from ask(core, spec, "monitor/observe", (spec.key("log"), spec.none, *chosen), args)
        for at in range(1, len(reply), 3):
            outcome, change, before = reply[at : at + 3]
            number = None if change == b"0" else change.decode().rjust(16, "0")
            done.append(Observed(outcome.decode(), number, decode(before) if before else None))
    if core.events:
        for word, count in Counter(answer.outcome for answer in done).items():
            core.events.emit(ObservedEvent(spec.name, word, count))
    return done


def settle(core: Core, spec: MonitorSpec) -> Flow[tuple[int, float | None]]:
    """Put into the log what was not told and whose window is over. Answers how many, and seconds until the next."""
    args = (spec.base, spec.backlog, AT_ONCE)
    reply = yield from ask(core, spec, "monitor/settle", (spec.key("wait"), spec.none), args)
    return int(reply[1]), None if reply[2] < 0 else int(reply[2]) / 1000


def look(core: Core, spec: MonitorSpec, things: Sequence[tuple[str, Key]]) -> Flow[list[tuple[float, Any] | None]]:
    keys = [spec.place(source, key) for source, key in things]
    reply = yield from ask(core, spec, "monitor/look", keys, ())
    return [
        (int(reply[at]) / 1e6, decode(reply[at + 1])) if reply[at] else None for at in range(1, len(reply), 2)
    ]  # fmt: skip


def forget(core: Core, spec: MonitorSpec, things: Sequence[tuple[str, Key]]) -> Flow[int]:
    reply = yield from ask(core, spec, "monitor/forget", [spec.place(*thing) for thing in things], (spec.base,))
    return int(reply[1])


# -- reading the log --------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """The next changes of the log for one kind of reader."""

    at: float
    version: int
    begin: bytes
    changes: list[Change]
    unreadable: int
    end: bytes


def peek(
    core: Core, spec: MonitorSpec, reader: str, token: str, count: int, lease: float, store: bool
) -> Flow[Page | None]:
    """None while another process reads on for all of this kind, or only those with a store may."""
    args = (spec.base, reader, token, count, int(lease * 1000), int(store))
    reply = yield from ask(core, spec, "monitor/peek", (spec.key("log"), spec.none), args)
    if reply[0] == b"busy":
        if int(reply[1]) > LONG and not core.specs.get((spec.name, "no store")):
            core.specs[spec.name, "no store"] = True  # said once
            core.warn(
                f"monitor {spec.name}: pass its store here, too: other processes have one, and this one cannot read on"
            )
        return None
    changes, unreadable, end = [], 0, reply[3]
    for number, fields in reply[4]:
        end = number[:-2]
        try:
            changes.append(parse_change(spec.name, end, fields))
        except HoldfastError:
            unreadable += 1
    return Page(int(reply[1]) / 1e6, int(reply[2]), reply[3], changes, unreadable, end)


def recent(core: Core, spec: MonitorSpec, count: int) -> Flow[list[Change]]:
    """What is in the log, the newest first; what cannot be read is left out."""
    reply = yield from ask(core, spec, "monitor/recent", (spec.key("log"),), (count,))
    changes = []
    for number, fields in reply[1]:
        with contextlib.suppress(HoldfastError):
            changes.append(parse_change(spec.name, number[:-2], fields))
    return changes


def pump(
    core: Core, spec: MonitorSpec, reader: str, token: str, page: Page,
    wanted: Sequence[tuple[Subscriber, float, Sequence[Change]]],
) -> Flow[bool]:  # fmt: skip
    """Let each subscriber have its changes, and read on after them, in one step. False: another process has, or the
    subscribers are others than those of the page's version."""
    args: list[Any] = [spec.base, reader, token, page.begin, page.end, page.version]
    for subscriber, wait, changes in wanted:
        lease = int((subscriber.timeout + MARGIN) * 1000)
        args += (
            who(subscriber.name), place_of(subscriber), int(wait * 1000), int(subscriber.interval * 1000),
            subscriber.max_changes, lease, len(changes), *(change.id.lstrip("0") for change in changes),
        )  # fmt: skip
    reply = yield from ask(core, spec, "monitor/pump", (spec.key("log"), spec.none), args)
    if reply[0] == b"settled" and reply[1] and core.events:
        core.events.emit(Dropped(spec.name, "change", "queue full", int(reply[1])))
    return bool(reply[0] == b"settled")


def who(name: str) -> str:
    return encode_id(id_bytes(name))


def place_of(subscriber: Subscriber) -> str:
    """In which list it is due: a function only where the process that has it looks."""
    return f"call:{who(subscriber.target)}" if subscriber.sink == "call" else "due"


# -- telling ----------------------------------------------------------------------------------------------------------


class Telling(NamedTuple):
    """What one subscriber is to be told now."""

    subscriber: str
    token: str
    first: str
    number: int
    attempt: int
    failures: int
    changes: list[Change]
    gone: int
    """Changes that left the log before they were told."""
    slow: bool
    """It failed last time, or the message before it did."""
    lease: float


class Round(NamedTuple):
    """What a process is to do now."""

    at: float
    next: float | None
    version: int
    tellings: list[Telling]


def take(
    core: Core, spec: MonitorSpec, calls: Sequence[str], store: bool, most: int, slow: int, lease: float
) -> Flow[Round]:  # fmt: skip
    """Up to `most` subscribers that are due, `slow` of which failed last, each for `lease` seconds this process's."""
    lists = [f"call:{who(name)}" for name in calls] + ["due"] * store
    random.shuffle(lists)  # none of them is always first
    keys = (spec.none, spec.key("slow"), *map(spec.key, lists))
    tokens = [core.new_token() for _ in range(most)]
    args = (spec.base, slow if store else 0, int(lease * 1000), *tokens)
    reply = yield from ask(core, spec, "monitor/take", keys, args)
    tellings = []
    for name, token, first, count, attempt, failures, gone, entries, failed, span in reply[4:]:
        changes, lost = [], int(gone)
        for number, fields in entries:
            try:
                changes.append(parse_change(spec.name, number, fields))
            except HoldfastError:
                lost += 1
        tellings.append(
            Telling(
                str(decode_id(name)),
                token.decode(),
                first.decode(),
                int(count),
                int(attempt),
                int(failures),
                changes,
                lost,
                bool(failed),
                int(span) / 1000,
            )
        )
    return Round(int(reply[1]) / 1e6, None if reply[2] < 0 else int(reply[2]) / 1000, int(reply[3]), tellings)


def done(
    core: Core, spec: MonitorSpec, telling: Telling, outcome: str, wait: float, error: str = ""
) -> Flow[bool]:  # fmt: skip
    """How telling went. False if another process has taken it meanwhile."""
    args = (spec.base, who(telling.subscriber), telling.token, outcome, int(wait * 1000), plain(error)[:2000], LETTERS)
    reply = yield from ask(core, spec, "monitor/done", (spec.none, spec.key("slow")), args, key=telling.subscriber)
    if reply[0] == b"settled" and outcome in ("told", "dead") and telling.gone and core.events:
        core.events.emit(Dropped(spec.name, "change", "gone before it was told", telling.gone))
    if reply[0] == b"settled" and reply[1] and core.events:
        core.events.emit(Dropped(spec.name, "dead letter", "capacity", int(reply[1])))
    return bool(reply[0] == b"settled")


def plain(text: str) -> str:
    """Text that the wire and a database can carry."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


# -- subscribers ------------------------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """How a subscriber is doing."""

    changes: int
    attempt: int
    failures: int


class Roll(NamedTuple):
    version: int
    log: int
    dead: int
    functions: Mapping[str, bytes]
    """Nothing for one that was unsubscribed."""
    waiting: Sequence[Waiting]


def enlist(core: Core, spec: MonitorSpec, functions: Mapping[str, bytes]) -> Flow[int]:
    """Say which subscribers are functions of this process; with none: that subscribers elsewhere have changed."""
    pairs = [part for name, record in functions.items() for part in (who(name), record)]
    reply = yield from ask(core, spec, "monitor/enlist", (spec.key("code"), spec.none), (spec.base, *pairs))
    return int(reply[1])


def strike(core: Core, spec: MonitorSpec, name: str) -> Flow[tuple[bool, int]]:
    reply = yield from ask(core, spec, "monitor/strike", (spec.key("code"), spec.none), (spec.base, who(name)))
    return bool(reply[1]), int(reply[2])


def roll(core: Core, spec: MonitorSpec, names: Sequence[str] = ()) -> Flow[Roll]:
    args = (spec.base, *(who(name) for name in names))
    reply = yield from ask(core, spec, "monitor/roll", (spec.key("code"), spec.none), args)
    functions = {str(decode_id(reply[4][at])): reply[4][at + 1] for at in range(0, len(reply[4]), 2)}
    waiting = [Waiting(int(one[0]), int(one[1]), int(one[2])) for one in reply[5:]]
    return Roll(int(reply[1]), int(reply[2]), int(reply[3]), functions, waiting)


# -- dead letters -----------------------------------------------------------------------------------------------------


class DeadDelivery(NamedTuple):
    """What a subscriber could not be told."""

    id: str
    subscriber: str
    error: str
    attempts: int
    changes: tuple[Change, ...]
    at: float


def letters(core: Core, spec: MonitorSpec, after: str, count: int, letter: str = "") -> Flow[list[DeadDelivery]]:
    """What cannot be read of a letter is left out."""
    for one in (after, letter):
        if one:
            check_letter(one)
    reply = yield from ask(core, spec, "monitor/letters", (spec.key("dead"), spec.none), (after, count, letter))
    found = []
    for number, fields in reply[1]:
        changes = []
        for item in fields[9::2]:
            change, *parts = _parts(item)
            with contextlib.suppress(HoldfastError):
                changes.append(parse_change(spec.name, change, parts))
        found.append(
            DeadDelivery(
                number.decode(), str(decode_id(fields[1])), fields[3].decode("utf-8", "replace"), int(fields[5]),
                tuple(changes), int(number.split(b"-")[0]) / 1000,
            )
        )  # fmt: skip
    return found


def _parts(item: bytes) -> list[bytes]:
    """A change that stands whole in a dead letter: see `whole` in _log.lua."""
    at, parts = 1, []
    while at < len(item):
        size = int.from_bytes(item[at : at + 4], "big")
        parts.append(item[at + 4 : at + 4 + size])
        at += 4 + size
    return parts


def check_letter(letter: str) -> str:
    if not isinstance(letter, str) or not _LETTER.fullmatch(letter):
        raise InvalidId(f"pass the id of a dead letter as `dead_letters` shows it, not {letter!r:.100}")
    return letter


def replay(core: Core, spec: MonitorSpec, letter: str, again: bool) -> Flow[int]:
    check_letter(letter)
    lost: list[ReplyLost] = []
    args = (spec.base, letter, int(again))
    reply = yield from ask(core, spec, "monitor/replay", (spec.key("dead"), spec.none), args, key=letter, lost=lost)
    if reply[0] == b"missing":
        return 1 if lost else 0  # the reply to the first may have been lost
    return int(reply[1])

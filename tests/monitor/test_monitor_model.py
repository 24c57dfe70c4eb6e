"""Hypothesis drives random observations (out of order, again, late) and random steps of two workers (which die, come
too late, or lose replies), against a reference in plain Python.

For each thing the changes are those that follow the order of `observed_at`; each subscriber is told of each change that
it wants once, in order. `HOLDFAST_DEEP=1` tries many times as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from monitor_desk import Moved
from monitor_machine import MonitorMachine

import holdfast.sync
from support.backends import Backends
from support.depth import DEEP, tries
from support.mutants import Edited


class Broken(Moved):
    """The moved scripts with a bug in them."""

    def __init__(self, *edit: str) -> None:
        super().__init__()
        self._bug = Edited([edit])  # type: ignore[list-item]

    def read(self, room: str, name: str) -> str | None:
        return super().read(room, name) if name == "_time" else self._bug.read(room, name)


@pytest.fixture
def client(backends: Backends) -> Iterator[Any]:
    backend = backends.get("valkey")
    backend.flush()
    hf = holdfast.sync.Holdfast(backend.url)
    hf._core.scripts = Moved()
    with hf:
        MonitorMachine.server, MonitorMachine.hf = backend.owner.client(), hf
        yield hf
        MonitorMachine.server.close()
    backend.flush()


@pytest.mark.timeout(7200 if DEEP else 120)
def test_a_monitor_agrees_with_the_reference(client: Any):
    class Machine(MonitorMachine):
        pass

    run_state_machine_as_test(
        Machine,
        settings=settings(
            stateful_step_count=50, suppress_health_check=list(HealthCheck), database=None, **tries(30, 3000)
        ),
    )


BUGS = {
    "older ones count": (
        "monitor/observe", "if observed < seen or (observed == seen and not same) then", "if observed < 0 then",
    ),
    "the time of the same is not remembered": (
        "monitor/observe", "call('SETRANGE', KEYS[i], 9, struct.pack('>d', observed))", "",
    ),
    "a repeat is new": ("monitor/observe", "if same and string.sub(text, 1, 8) == ARGV[2]", "if false"),
    "a page is dealt with twice": ("monitor/pump", "if now_at ~= ARGV[4] or", "if false and"),
    "two read at once": ("monitor/peek", "if holder and holder ~= ARGV[3] then", "if false then"),
    "whoever comes late ends it": ("monitor/done", "if token ~= ARGV[3] then return {'not_held'} end", ""),
    "an end counts twice": ("monitor/done", "if ended == ARGV[3] then return {'settled', 0} end", ""),
    "told one too few": (
        "monitor/done", "call('LTRIM', queue, known(count), -1)", "call('LTRIM', queue, known(count) + 1, -1)",
    ),
    "taken by two": ("monitor/take", "call('ZADD', list, now + lease, who)", "call('ZADD', list, now, who)"),
    "the interval is not kept": ("monitor/pump", "math.max(now + wait, known(told) + pause)", "now + wait"),
    "a retry grows": ("monitor/take", "  if count == 0 then\n    count, attempt", "  if true then\n    count, attempt"),
    "nobody is slow": (
        "monitor/done", "local where = (list == 'due' and bad > 0) and KEYS[2] or base_key(list)",
        "local where = base_key(list)",
    ),
    "the log lets go what somebody waits for": (
        "monitor/_log", "if head then floor = math.min(floor, tonumber(head) - 1) end", "",
    ),
    "what somebody waits for is not kept for it": (
        "monitor/_log", "    make_whole(who)\n  end\n  local head",
        "    call('ZREM', base_key('heads'), who)\n  end\n  local head",
    ),
    "a letter stays": ("monitor/replay", "call('XDEL', KEYS[1], ARGV[2])\n", ""),
}  # fmt: skip


class ByHand:
    """The same machine, driven by hand: every step is followed by the same check."""

    def __init__(self) -> None:
        self.machine: Any = MonitorMachine()

    def __getattr__(self, name: str) -> Any:
        def step(*args: Any) -> None:
            getattr(self.machine, name)(*args)
            self.machine.the_queues_are_what_they_should_be()

        return step

    def see(self, thing: Any, n: int, when: int | None = None) -> None:
        self.observe([(thing, {"n": n}, when)])


def story(by: ByHand) -> None:
    """Everything once, in about the order in which it happens."""
    web, feed = ("web", "a"), ("feed", "a")
    for n, when in ((0, 1000), (1, 1005), (1, 1008), (0, 1006), (5, 1008), (5, 1009), (5, 1009)):
        by.see(web, n, when)
        by.the_reply_was_lost()
    by.see(feed, 0)
    by.see(feed, 5)
    by.peek("w0", 2)
    by.peek("w1", 3)
    by.time_passes(10_001)
    by.peek("w1", 3)
    by.pump("w1")
    by.pump("w1")
    by.pump("w0")
    by.read("w0")
    by.take(1, 10)
    by.take(10, 10)
    by.take(10, 10)
    by.see(feed, 0)
    by.read("w0")
    by.time_passes(10_001)
    by.take(10, 10)  # the workers of the first four have died
    for back in (7, 6, 5, 4):
        by.done(back, "told", True)
    for back in (0, 1, 2, 3):
        by.done(back, "told", True)
    for n in (5, 0, 5):
        by.see(feed, n)
        by.read("w1")
        by.time_passes(1)
        by.take(10, 10)
    for back, outcome in ((0, "again"), (1, "dead"), (2, "back"), (3, "later")):
        by.done(back, outcome, True)
    for slow in (0, 1, 10):
        by.time_passes(10_001)
        by.take(10, slow)
        by.done(0, "dead", False)
        by.letter(0, True)
    by.time_passes(60_000)
    by.take(10, 10)
    by.done(0, "dead", True)
    by.letter(0, False)
    by.teardown()  # nothing waits for anybody
    by.see(feed, 10)
    by.read("w0")
    by.take(10, 10)
    for back in (0, 1, 2, 3):
        by.done(back, "told", False)
    by.see(feed, 20)
    by.read("w0")
    by.take(10, 10)  # too soon for one with an interval
    for n in range(30):  # and the log goes on
        by.see(web, n, 2000 + n)
        by.read("w0")
    by.teardown()


def test_the_story_holds(client: Any):
    story(ByHand())


@pytest.mark.parametrize("bug", BUGS)
def test_the_reference_finds_a_bug(client: Any, bug: str):
    client._core.scripts = Broken(*BUGS[bug])
    with pytest.raises(AssertionError):
        story(ByHand())

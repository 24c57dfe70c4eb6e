"""The account of a demonstration: what went in, what became of it, and what does not add up."""

from __future__ import annotations

import asyncio
import math
from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast import BufferTotals, Event, Holdfast, Run, RunGone
from holdfast.cli.demo_counter import Counter
from holdfast.cli.demo_plan import Plan
from holdfast.cli.demo_process import Task
from holdfast.cli.demo_tally import Tally

LOOKS = 8
"""Questions under way at once."""


@dataclass(kw_only=True)
class Account:
    """Numbers of messages, unless it says otherwise. What is wrong if it is not 0 has a sentence in `faults`."""

    accepted: int = 0
    """`in`: producers were told that these are stored."""
    unknown: int = 0
    refused: int = 0
    absorbed: int = 0
    """Different ones in SQL."""
    dropped: dict[str, int] = field(default_factory=dict)
    """By reason, as the server has counted them."""
    waiting: int = 0
    dead: int = 0
    lost: int = 0
    """Accepted, and neither in SQL nor counted as anything else."""
    miscounted: int = 0
    """By so many the server's counts are too high."""
    duplicates: int = 0
    """Effects of messages beyond the first."""
    unexpected: int = 0
    """In SQL, and nobody was told that they are stored."""
    runs_started: int = 0
    runs_ended: dict[str, int] = field(default_factory=dict)
    runs_taken_over: int = 0
    runs_lost: int = 0
    """Started, and gone or not ended."""
    runs_failed: int = 0
    events: int = 0
    """Of runs."""
    events_wrong: int = 0
    """Runs in which an event is missing, twice or out of order."""
    counts: int = 0
    """How often counters were raised under a lock."""
    counts_refused: int = 0
    """Late writes that the fence has stopped."""
    counts_wrong: int = 0
    """Values written twice, or missing."""
    leases_lost: dict[str, int] = field(default_factory=dict)
    """By what they were for, as those say who lived to notice."""
    takeovers: dict[str, int] = field(default_factory=dict)
    """By what was taken: batches, runs, locks."""
    kills: int = 0
    pauses: int = 0
    crashed: list[str] = field(default_factory=list)
    """Processes that ended by themselves."""
    p50: float = math.nan
    p99: float = math.nan
    """Seconds from the append until it is known to be stored."""
    duration: float = 0.0

    @property
    def faults(self) -> list[str]:
        """Nothing if all is well."""
        wrong = [
            ("messages lost", self.lost),
            ("messages with more than one effect", self.duplicates),
            ("messages that nobody was told went in", self.unexpected),
            ("messages counted that were not there", self.miscounted),
            ("messages still waiting", self.waiting),
            ("messages in dead letters", self.dead),
            ("runs that did not end", self.runs_lost),
            ("runs failed", self.runs_failed),
            ("runs with events missing, twice or out of order", self.events_wrong),
            ("counts lost or doubled", self.counts_wrong),
            ("processes that ended by themselves", len(self.crashed)),
        ]
        found = [f"{what}: {number}" for what, number in wrong if number]
        return found if self.accepted else [*found, "no message went in"]

    @property
    def clean(self) -> bool:
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: seconds rounded, None for what was not measured."""
        found = {name: _rounded(value) for name, value in asdict(self).items()}
        return {"in": found.pop("accepted"), **found, "clean": self.clean, "faults": self.faults}


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, 4) if math.isfinite(value) else None


# -- messages ---------------------------------------------------------------------------------------------------------


def add_messages(account: Account, tally: Tally, effects: Counts[int], totals: BufferTotals, waiting: int) -> None:
    """`effects`: how often each message is in SQL."""
    counts = totals.counts
    account.accepted, account.unknown, account.refused = len(tally.accepted), len(tally.unknown), tally.refused
    account.absorbed = len(effects)
    account.dropped = {
        name.partition(".")[2]: number
        for name, number in sorted(counts.items())
        if name.startswith("dropped.") and "pair" not in name and number
    }
    account.dead = counts.get("dead", 0) - counts.get("replayed", 0)
    account.waiting = waiting
    account.duplicates = sum(times - 1 for times in effects.values())
    account.unexpected = len(effects.keys() - tally.accepted - tally.unknown)
    missing = len(tally.accepted - effects.keys())
    explained = sum(account.dropped.values()) + account.waiting + account.dead
    # Of those without an answer some may be among the explained.
    unseen = len(tally.unknown - effects.keys())
    account.lost = max(0, missing - explained)
    account.miscounted = max(0, explained - missing - unseen)
    times = sorted(tally.latency.values())
    account.p50, account.p99 = percentile(times, 0.5), percentile(times, 0.99)


def percentile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that so large a part does not exceed; NaN of nothing."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan


# -- runs -------------------------------------------------------------------------------------------------------------


def add_run(account: Account, run: Run | None, steps: int, events: Sequence[Event]) -> None:
    if run is None or not run.over:
        account.runs_lost += 1
        return
    account.runs_ended[run.state] = account.runs_ended.get(run.state, 0) + 1
    account.runs_taken_over += run.attempt > 1
    account.runs_failed += run.state != "completed"
    numbers = [event.data["n"] for event in as_told(events)]
    account.events += len(numbers)
    ends = [event.kind for event in events].count("end")
    expected = list(range(1, steps + 1))
    account.events_wrong += ends != 1 or (numbers != expected if run.state == "completed" else False)


def as_told(events: Iterable[Event]) -> list[Event]:
    """What a reader has in the end: what came after the last checkpoint of a lost owner is repeated by the next."""
    kept: list[Event] = []
    for event in events:
        if event.kind == "resumed":
            after = _position(event.data["after"])
            kept = [one for one in kept if _position(one.id) <= after]
        elif event.kind == "data":
            kept.append(event)
    return kept


def _position(text: str) -> tuple[int, int]:
    first, _, second = text.partition("-")
    return int(first), int(second)


# -- counters ---------------------------------------------------------------------------------------------------------


def add_counts(account: Account, tally: Tally, values: dict[int, int], writes: Sequence[tuple[int, int]]) -> None:
    """Each value from 1 on was written once, the last one is there, and what a worker was told was written, was."""
    written = Counts(writes)
    account.counts, account.counts_refused = len(writes), tally.fenced
    twice = sum(times - 1 for times in written.values())
    gaps = sum(1 for number, last in values.items() for value in range(1, last + 1) if not written[number, value])
    beyond = sum(1 for number, value in written if value > values.get(number, 0))
    claimed = sum((tally.counted - written).values())
    account.counts_wrong = twice + gaps + beyond + claimed


# -- all of it --------------------------------------------------------------------------------------------------------


async def draw_up(hf: Holdfast, plan: Plan, task: Task, tally: Tally, seconds: float) -> Account:
    """Look up what became of everything: in SQL, and on the server."""
    account = Account(
        duration=seconds, kills=tally.kills, pauses=tally.pauses, crashed=list(tally.crashed),
        leases_lost=dict(sorted(tally.lost.items())), takeovers=dict(tally.again),
    )  # fmt: skip
    totals, waiting = await _left(hf, plan, task)
    add_messages(account, tally, await asyncio.to_thread(_effects, plan, task), totals, waiting)
    await _runs(account, hf, plan, task, tally)
    counter = Counter(task.counters)
    add_counts(account, tally, counter.values(), counter.writes())
    return account


async def _left(hf: Holdfast, plan: Plan, task: Task) -> tuple[BufferTotals, int]:
    inbox = task.buffer(hf)
    totals = await inbox.totals()
    waiting = 0
    for user in plan.users if totals.users else ():
        stats = await inbox.stats(user)
        waiting += stats.waiting + stats.in_flight
    return totals, waiting


def _effects(plan: Plan, task: Task) -> Counts[int]:
    from holdfast.memory import Store

    found: Counts[int] = Counts()
    with Store(task.memory) as store:
        for user in plan.users:
            found.update(int(entry["content"]) for entry in store.export(user)["entries"])
    return found


async def _runs(account: Account, hf: Holdfast, plan: Plan, task: Task, tally: Tally) -> None:
    runs, gate = task.runs(hf), asyncio.Semaphore(LOOKS)

    async def look(name: str) -> tuple[Run | None, list[Event]]:
        async with gate:
            try:
                run = await runs.get(name)
                return run, [event async for event in runs.events(name)] if run.over else []
            except RunGone:
                return None, []

    wanted = [one for one in plan.runs if one.run in tally.started]
    account.runs_started = len(wanted)
    found = await asyncio.gather(*(look(one.run) for one in wanted))
    for one, (run, events) in zip(wanted, found, strict=True):
        add_run(account, run, one.steps, events)

"""`python -m chaos monitor`: nodes observe and tell, and are killed and frozen; receivers fail; then it is checked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from chaos.checker.monitor import Account, Evidence, Fact, Told, check, told
from chaos.faults.schedule import RUN_KINDS, Fault, draw
from chaos.faults.stage import Stage, Workers
from chaos.history.journal import Journal, entries
from chaos.runs import begin
from chaos.traffic import venues as v
from chaos.traffic.endpoints import Endpoints
from chaos.traffic.observer import SAFEGUARDS, Node
from holdfast import Holdfast, HoldfastError, QueueFull
from holdfast.memory import MonitorStore
from holdfast.monitor.monitor import Monitor

PACE = 0.4
AWAY, CHANGED = "receiver away", "subscriber changed"
AWAY_SECONDS = 3.0
KINDS = {server: (*kinds, AWAY, CHANGED) for server, kinds in RUN_KINDS.items()}
LETTERS_AT_ONCE = 1000
WAITING = ("q:", "due", "slow", "call:", "wait", "p:", "heads")
"""Keys that are there while something waits."""


class MonitorPlan(NamedTuple):
    server: str = "single"
    guard: str = "on"
    schedule: int = 1
    workers: int = 8
    venues: int = 1000
    steps: int = 8
    seconds: float = 60.0
    """In which all results come up; a node may get them later."""
    window: float = 0.0
    backlog: int = 1000
    """Changes in the log: so few that it is full now and then, and lets go what still waits somewhere."""
    database: str = ""
    """An empty PostgreSQL; without one a file of SQLite is made."""
    only: str = ""
    """The one kind of fault that there is; empty: all kinds; `none`: none."""
    without: str = ",".join(SAFEGUARDS)
    """The safeguards that are out with the guard off."""
    patience: float = 120.0
    """Seconds, after the last fault, in which everything must be observed and told."""


class MonitorOutcome(NamedTuple):
    account: Account
    faults: dict[str, int]
    seconds: float


def run(plan: MonitorPlan, folder: Path, say: Callable[[str], None] = lambda _: None) -> MonitorOutcome:
    """Bounded in time by the seconds of traffic and the patience after it; every process it starts is ended."""
    started = time.monotonic()
    database = plan.database or f"sqlite:///{folder / 'monitor.db'}"
    with (
        Stage(plan.server, [f"monitor.{v.MONITOR}"]) as stage,
        Endpoints() as receivers,
        MonitorStore(database) as store,
    ):
        judge = Judge(plan, folder, stage, receivers, store)
        asyncio.run(judge.subscribe())
        workers = Workers(_node(plan, stage.url, folder, database), plan.workers, v.PAUSE)
        try:
            begin(folder, plan.workers)
            for fault in _faults(plan):
                say(f"  {fault.kind}")
                judge.strike(fault, workers)
            stage.heal()
            workers.heal()
            say("faults are over; waiting until all is observed and told")
            asyncio.run(judge.drain())
        finally:
            workers.stop()
        evidence = asyncio.run(judge.collect(workers.died))
        faults = stage.done
    account = check(evidence)
    account.happened["nodes killed"] = workers.killed
    account.happened["nodes frozen"] = workers.paused
    account.happened["dead letters replayed"] = judge.letters_replayed
    account.happened["refused or spoiled by receivers"] = sum(one.refused for one in receivers.all.values())
    return MonitorOutcome(account, faults, time.monotonic() - started)


def _node(plan: MonitorPlan, url: str, folder: Path, database: str) -> list[str]:
    options = [
        part
        for name in ("schedule", "venues", "steps", "seconds", "window", "backlog")
        for part in (f"--{name}", str(getattr(plan, name)))
    ]
    without = plan.without if plan.guard == "off" else ""
    return [
        sys.executable, "-m", "chaos.traffic.observer", url, str(folder), database, "--nodes", str(plan.workers),
        "--without", without, *options,
    ]  # fmt: skip


def _faults(plan: MonitorPlan) -> Iterator[Fault]:
    """Each at its time."""
    kinds = {plan.server: (plan.only,)} if plan.only else KINDS
    for fault in draw(plan.schedule, plan.server, plan.seconds, kinds, PACE):
        time.sleep(fault.after)
        if plan.only != "none":
            yield fault


async def _insist(call: Callable[[], Awaitable[Any]], give_up: float) -> None:
    """Again while the log is full."""
    while True:
        try:
            await call()
        except QueueFull:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.1)
        else:
            return


class Judge:
    """Subscribes, waits, replays what is dead, and collects what all of them say."""

    def __init__(
        self, plan: MonitorPlan, folder: Path, stage: Stage, receivers: Endpoints, store: MonitorStore
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._stage = stage
        self._receivers = receivers
        self._store = store
        self._items = v.items(plan.schedule, plan.venues, plan.steps, plan.seconds)
        self._truth = {venue: v.truth(plan.schedule, venue, plan.steps) for venue in range(plan.venues)}
        self._replayed: dict[str, set[str]] = defaultdict(set)
        self.letters_replayed = 0

    def _client(self) -> Holdfast:
        return Holdfast(self._stage.url, retry_for=20.0)

    def _monitor(self, hf: Holdfast) -> Monitor:
        return v.monitor(hf, self._store, self._plan.window, self._plan.backlog)

    async def subscribe(self) -> None:
        async with self._client() as hf:
            for subscriber in v.subscribers(self._receivers.urls):
                await self._monitor(hf).subscribe(subscriber)

    def strike(self, fault: Fault, workers: Workers) -> None:
        done = self._stage.done
        if fault.kind == AWAY:
            done[AWAY] = done.get(AWAY, 0) + 1
            self._receivers.leave(AWAY_SECONDS)
        elif fault.kind == CHANGED:
            done[CHANGED] = done.get(CHANGED, 0) + 1
            asyncio.run(self._change(fault.pick))
        else:
            self._stage.strike(fault, workers)

    async def _change(self, pick: int) -> None:
        """Somebody changes a subscriber, in what makes no difference to what it is told."""
        known = v.subscribers(self._receivers.urls)
        changed = replace(known[pick % len(known)], max_changes=10 + pick % 90, timezone=f"Etc/GMT+{pick % 10}")
        with contextlib.suppress(HoldfastError):  # it is another fault's turn: half of it may be done
            async with self._client() as hf:
                await self._monitor(hf).subscribe(changed)

    # -- after the faults ---------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Until nothing waits any more, or the patience is over: what is left then is for the check."""
        give_up = time.monotonic() + self._plan.patience
        while len(self._finished()) < self._plan.workers and time.monotonic() < give_up:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        async with self._client() as hf:
            venues = self._monitor(hf)
            node = Node(-1, venues, Journal(self._folder, "judge"), self._items)
            if self._stage.done.get("failover"):
                # Whatever a failover forgot: the next look at each venue finds it.
                lasts = [rows[-1] for rows in self._truth.values()]
                finals = [(v.source_of(row.venue), row.key, row.state, row.observed_at) for row in lasts]
                await _insist(lambda: venues.observe_many(finals), give_up)
            await asyncio.sleep(v.TASK_LEASE)
            for item in self._items:  # whoever had claimed a page may have been killed
                if item.source == v.FEED:
                    await _insist(functools.partial(node.process, -1, item), give_up)
            self._receivers.heal()
            while True:
                while self.waiting() and time.monotonic() < give_up:  # noqa: ASYNC110 - others work
                    await asyncio.sleep(0.2)
                letters = await venues.dead_letters(LETTERS_AT_ONCE)
                if not letters or time.monotonic() > give_up:
                    return
                for letter in letters:
                    self._replayed[letter.subscriber].update(change.id for change in letter.changes)
                    await venues.replay(letter.id)
                    self.letters_replayed += 1

    def _finished(self) -> set[int]:
        return {line["node"] for line in entries(self._folder, "node*") if line["what"] == "finished"}

    def waiting(self) -> list[str]:
        """What of the monitor is still to be done, as the server has it."""
        base = f"hf:{{monitor.{v.MONITOR}}}:"
        found = []
        for server in self._stage.primaries():
            with server.client() as client:
                names = [name.decode() for name in client.scan_iter(match=f"{base}*", count=1000)]
                found += [name for name in names if name.removeprefix(base).startswith(WAITING)]
                if f"{base}log" not in names:
                    continue
                ((last, _),) = client.xrevrange(f"{base}log", count=1)
                read = client.hgetall(f"{base}cur")
                for reader in ("deliver", "history"):
                    if read.get(reader.encode(), b"0") != last[:-2]:
                        found.append(f"{reader} is at {read.get(reader.encode())}, the log at {last}")
        return found

    # -- what came of it ----------------------------------------------------------------------------------------

    async def collect(self, died: int) -> Evidence:
        plan, journal = self._plan, list(entries(self._folder))
        async with self._client() as hf:
            venues = self._monitor(hf)
            places = {venue: (v.source_of(venue), v.key_of(venue)) for venue in self._truth}
            known = {venue: await venues.get(*place) for venue, place in places.items()}
            history = {venue: self._store.history(v.MONITOR, *place, limit=10_000) for venue, place in places.items()}
            status = await venues.status()
        left = [*self.waiting(), *(f"{number} for {name}" for name, number in status.waiting.items() if number)]
        if len(self._finished()) < plan.workers:
            left.append(f"only nodes {self._finished()} observed everything")
        delivered = {
            name: [
                push.delivery
                for push in self._store.pushes(v.MONITOR, name, limit=10_000)
                if push.outcome == "delivered"
            ]
            for name in v.EVERYBODY
        }
        return Evidence(
            items=self._items, truth=self._truth, history=history, known=known, journal=journal,
            told=self._told(journal), delivered=delivered, replayed=self._replayed, letters=status.dead_letters,
            left=left, eternal=self._eternal(), died=died, faults=sum(self._stage.done.values()), window=plan.window,
            forgetful=self._stage.done.get("failover", 0) > 0,
        )  # fmt: skip

    def _told(self, journal: list[dict[str, Any]]) -> dict[str, list[Told]]:
        found = {name: [told(one) for one in list(to.accepted)] for name, to in self._receivers.all.items()}
        lines = sorted((line for line in journal if line["what"] == "told"), key=lambda line: line["clock"])
        found[v.FUNCTION] = [
            Told(
                line["id"], line["attempt"], json.dumps(line["changes"]), [Fact(*change) for change in line["changes"]],
                line["clock"], line["answered"],
            )
            for line in lines
        ]  # fmt: skip
        return found

    def _eternal(self) -> list[str]:
        found = []
        for server in self._stage.primaries():
            with server.client() as client:
                names = list(client.scan_iter(count=1000))
                pipe = client.pipeline(transaction=False)
                for name in names:
                    pipe.pttl(name)
                found += [name.decode() for name, life in zip(names, pipe.execute(), strict=True) if life == -1]
        return found

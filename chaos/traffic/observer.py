"""A node: observes what it gets, in its own order, and tells subscribers; with the guard off, without safeguards."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast.monitor.flows as telling
import holdfast.monitor.worker as working
from chaos.history.journal import Journal, entries, wait_to_begin
from chaos.traffic import venues as v
from holdfast import Holdfast, HoldfastError, QueueFull
from holdfast.engine.scripts import Scripts
from holdfast.events import Dropped
from holdfast.memory import MonitorStore
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.record import Delivery

AT_ONCE = 60
LINGER = 0.1
"""Seconds, at most, between reading the log and letting subscribers have it: room for a kill or a pause."""

SAFEGUARDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "older": (("observe", "observed < seen or (observed == seen and not same)", "false"),),
    "cursor": (("pump", "if now_at ~= ARGV[4] or ", "if "),),
    "token": (("done", "if token ~= ARGV[3] then return {'not_held'} end", ""),),
    "batch": (("take", "if count == 0 then\n    count", "do\n    count"),),
}
"""What is taken out with the guard off: file, text, what stands there instead."""


class Careless(Scripts):
    """The scripts without some of their safeguards."""

    def __init__(self, without: Sequence[str]) -> None:
        super().__init__()
        self._edits = [edit for name in without for edit in SAFEGUARDS[name]]

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        for place, old, new in self._edits:
            if (room, name) == ("monitor", place):
                if text is None or old not in text:
                    raise LookupError(f"monitor/{place} has another safeguard now: turn that one off")
                text = text.replace(old, new)
        return text


def hurry() -> None:
    """Short leases, so that who is frozen loses them; and some time between reading and what follows."""
    working.READ_LEASE, telling.MARGIN = v.READ_LEASE, v.MARGIN
    for name in ("_fan_out", "_keep"):
        setattr(working.MonitorWorker, name, lingering(getattr(working.MonitorWorker, name)))


def lingering(method: Any) -> Any:
    async def linger(self: Any, *args: Any) -> None:
        await asyncio.sleep(random.random() * LINGER)
        await method(self, *args)

    return linger


def take_a_number(folder: Path, nodes: int) -> int:
    """The first that no living process has. It is kept open, and so locked, until this one ends."""
    while True:
        for number in range(nodes):
            file = os.open(folder / f"number-{number}", os.O_WRONLY | os.O_CREAT)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                return number
        time.sleep(0.05)  # the one before is still on its way out


class Node:
    """What one process does."""

    def __init__(self, number: int, venues: Monitor, journal: Journal, items: Sequence[v.Item]) -> None:
        self._number = number
        self._venues = venues
        self._journal = journal
        self._items = items
        self._draw = random.Random()
        venues.parser(v.FEED)(v.parse_page)
        venues.subscriber(v.FUNCTION, **v.FUNCTION_OPTIONS)(self.told)

    async def told(self, delivery: Delivery) -> None:
        """The function that subscribes. Written down is accepted; what it raises then is a lost answer."""
        how = self._draw.choices(("well", "before", "after"), (8, 1, 1))[0]
        await asyncio.sleep(self._draw.random() * 0.1)
        if how == "before":
            raise ValueError("on purpose, before")
        changes = [
            [one.id, one.source, one.key, one.kind, one.before, one.after, one.observed_at] for one in delivery.changes
        ]
        self._journal.write(
            "told", "", id=delivery.id, attempt=delivery.attempt, changes=changes, clock=time.monotonic(),
            answered=how == "well",
        )  # fmt: skip
        if how == "after":
            raise ValueError("on purpose, after")

    async def observe(self, begin: float, todo: list[tuple[float, int, int]]) -> None:
        """All that arrives, each until it is acknowledged."""
        while todo:
            now = time.time() - begin
            due = [one for one in todo[:AT_ONCE] if one[0] <= now]
            if not due:
                await asyncio.sleep(min(0.2, todo[0][0] - now))
                continue
            try:
                await self._observe(due)
            except QueueFull as error:
                self._journal.write("full", "", text=str(error))
                await asyncio.sleep(0.2)
            except HoldfastError as error:
                self._journal.write("trouble", "", text=f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(0.2)
            else:
                todo = todo[len(due) :]
        self._journal.write("finished", "", node=self._number)

    async def _observe(self, due: list[tuple[float, int, int]]) -> None:
        self._draw.shuffle(due)
        rows, facts = [], []
        for _, arrival, number in due:
            item = self._items[number]
            if item.source == v.SITE:
                (row,) = item.rows
                rows.append((item.source, row.key, {**row.state, v.UNSEEN: self._number}, row.observed_at))
                facts.append((arrival, number))
        answers = await self._venues.observe_many(rows)
        self._journal.write(
            "observed", "", node=self._number,
            answers=[[*fact, one.outcome, one.change] for fact, one in zip(facts, answers, strict=True)],
        )  # fmt: skip
        for _, arrival, number in due:
            if self._items[number].source == v.FEED:
                await self.process(arrival, self._items[number])

    async def process(self, arrival: int, page: v.Item) -> None:
        raw = json.dumps([[row.key, {**row.state, v.UNSEEN: self._number}, row.observed_at] for row in page.rows])
        found = await self._venues.process(v.FEED, page.number, raw, lease=v.TASK_LEASE)
        changes = None if found is None else [[one.outcome, one.change] for one in found]
        self._journal.write("page", "", node=self._number, arrival=arrival, page=page.number, answers=changes)


def left(folder: Path, number: int, due: list[tuple[float, int]]) -> list[tuple[float, int, int]]:
    """What this node, by its number, has not acknowledged: the one before may have been killed."""
    done: set[int] = set()
    for line in entries(folder, f"node{number}-*"):
        if line["what"] == "observed":
            done.update(answer[0] for answer in line["answers"])
        elif line["what"] == "page":
            done.add(line["arrival"])
    return [(when, at, item) for at, (when, item) in enumerate(due) if at not in done]


async def main(options: argparse.Namespace) -> None:
    folder = options.folder
    hurry()
    number = take_a_number(folder, options.nodes)
    items = v.items(options.schedule, options.venues, options.steps, options.seconds)
    todo = left(folder, number, v.arrivals(options.schedule, number, items, options.seconds))
    journal = Journal(folder, f"node{number}")
    hf = Holdfast(options.url, call_timeout=0.5, retry_for=10.0, connect_timeout=1.0, drain=0.3)
    if options.without:
        hf._core.scripts = Careless(options.without.split(","))
    hf.observe(lambda event: note(journal, event))
    with MonitorStore(options.database) as store:
        node = Node(number, v.monitor(hf, store, options.window, options.backlog), journal, items)
        async with hf:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, hf.stop_work)
            begin = await wait_to_begin(folder, journal)
            observing = asyncio.create_task(node.observe(begin, todo))
            observing.add_done_callback(lambda task: task.cancelled() or (task.exception() and hf.stop_work()))
            await hf.work()
            if observing.done():
                observing.result()
            observing.cancel()


def note(journal: Journal, event: Any) -> None:
    if isinstance(event, Dropped):
        journal.write("dropped", "", text=repr(event))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("database")
    parser.add_argument("--without", default="")
    for name, kind in (
        ("schedule", int), ("nodes", int), ("venues", int), ("steps", int), ("seconds", float), ("window", float),
        ("backlog", int),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    asyncio.run(main(parser.parse_args()))

"""`python -m chaos runs`: owners are killed, frozen and drained, runs are stopped and read; then it is checked."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from chaos.checker.runs import Account, Final, Seen, check
from chaos.faults.schedule import RUN_KINDS, draw
from chaos.faults.stage import ROOT, Stage, Workers
from chaos.history.journal import GO, entries, ready
from chaos.traffic.roles import COLLECTIONS, LEASE, Role, collections, role
from holdfast import Holdfast, RunGone

READERS = 2
START_UP = 60.0
PACE = 0.4


class RunPlan(NamedTuple):
    server: str = "single"
    guard: str = "on"
    schedule: int = 1
    workers: int = 8
    runs: int = 500
    rate: float = 8.0
    only: str = ""
    """The one kind of fault that there is; empty: all kinds."""
    patience: float = 90.0
    """Seconds, after the last fault, in which every run must end and every reader see it."""


class RunOutcome(NamedTuple):
    account: Account
    faults: dict[str, int]
    seconds: float


def run(plan: RunPlan, folder: Path, say: Callable[[str], None] = lambda _: None) -> RunOutcome:
    """Bounded in time by the number of runs and their rate; every process it starts is ended."""
    started = time.monotonic()
    roles = [role(plan.schedule, number) for number in range(plan.runs)]
    with Stage(plan.server, [f"runs.{name}" for name in COLLECTIONS]) as stage:
        workers = Workers(_module("runner", stage.url, folder, "--guard", plan.guard), plan.workers, LEASE * 2.0)
        others: list[subprocess.Popen[bytes]] = []
        try:
            others = _others(plan, stage.url, folder)
            begin(folder, plan.workers + len(others))
            _misbehave(plan, stage, workers, say)
            stage.heal()
            workers.heal()
            say("faults are over; waiting for the runs to end")
            give_up = time.monotonic() + plan.patience
            _finish(others, give_up)
            finals = asyncio.run(_collect(stage.url, roles, give_up))
        finally:
            workers.stop()
            for process in others:
                process.kill()
                process.wait()
        faults = stage.done
    account = check(roles, entries(folder), finals, forgetful=faults.get("failover", 0) > 0)
    account.happened["workers that died"] = workers.died
    return RunOutcome(account, faults, time.monotonic() - started)


def _module(name: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-m", f"chaos.traffic.{name}", *map(str, arguments)]


def _others(plan: RunPlan, url: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    common = ("--schedule", plan.schedule, "--count", plan.runs, "--rate", plan.rate)
    commands = [_module("callers", what, url, folder, *common) for what in ("start", "stop")]
    commands += [_module("readers", url, folder, "--number", number, *common) for number in range(READERS)]
    return [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for command in commands]


def begin(folder: Path, processes: int) -> None:
    """All at once, and the faults with them: on a busy machine some are there seconds before others."""
    give_up = time.monotonic() + START_UP
    while ready(folder) < processes:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{processes} processes did not get ready in {START_UP:g} s")
        time.sleep(0.05)
    (folder / GO).touch()


def _misbehave(plan: RunPlan, stage: Stage, workers: Workers, say: Callable[[str], None]) -> None:
    kinds = {plan.server: (plan.only,)} if plan.only else RUN_KINDS
    for fault in draw(plan.schedule, plan.server, plan.runs / plan.rate, kinds, PACE):
        time.sleep(fault.after)
        say(f"  {fault.kind}")
        stage.strike(fault, workers)


def _finish(others: list[subprocess.Popen[bytes]], give_up: float) -> None:
    """Callers end when all is said, readers when they saw the end of every run; late ones are left to the check."""
    while time.monotonic() < give_up and any(process.poll() is None for process in others):
        time.sleep(0.1)


async def _collect(url: str, roles: list[Role], give_up: float) -> dict[str, Final]:
    """Every run and its events, as a client that comes new finds them."""
    finals: dict[str, Final] = {}
    async with Holdfast(url, retry_for=20.0) as hf:
        runs = collections(hf)
        for one in roles:
            try:
                found = await runs[one.collection].get(one.id)
                while not found.over and time.monotonic() < give_up:
                    await asyncio.sleep(0.2)
                    found = await runs[one.collection].get(one.id)
            except RunGone:
                continue
            events = []
            with contextlib.suppress(TimeoutError):  # it has no end: the check says so
                async with asyncio.timeout(2.0 if found.over else 0.5):
                    async for event in runs[one.collection].events(one.id):
                        events.append(Seen(event.id, event.kind, event.data))
            finals[one.id] = Final(
                found.state, found.reason, found.attempt, found.fence, found.started, found.ended, found.dropped,
                found.result, tuple(events),
            )  # fmt: skip
    return finals

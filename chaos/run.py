"""One run: start everything, let it go wrong, heal, drain, and check."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from chaos.checker.account import Account, check
from chaos.faults.schedule import draw
from chaos.faults.stage import ROOT, Stage, Workers
from chaos.traffic.producer import BUFFER, CAPACITY
from chaos.traffic.worker import LEASE
from holdfast import Holdfast

PRODUCERS, CALLERS = 2, 25
DRAIN = 180.0


class Plan(NamedTuple):
    server: str = "single"
    guard: str = "on"
    schedule: int = 1
    workers: int = 4
    users: int = 200
    messages: int = 100_000
    rate: float = 1500.0
    busy: float = 0.05
    """Seconds, on average, that a handler goes on after its write and before the acknowledgement."""


class Outcome(NamedTuple):
    account: Account
    faults: dict[str, int]
    counts: dict[str, int]
    seconds: float


def run(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Bounded in time by the number of messages and their rate; every process it starts is ended."""
    started = time.monotonic()
    database = f"sqlite:///{folder / 'memory.db'}"
    with Stage(plan.server) as stage:
        workers = Workers(_work(plan, stage.url, database), plan.workers, LEASE * 1.5)
        producers: list[subprocess.Popen[bytes]] = []
        try:
            producers = _produce(plan, stage.url, folder)
            _misbehave(plan, stage, workers, producers, say)
            stage.heal()
            workers.heal()
            for producer in producers:
                producer.wait(timeout=plan.messages / plan.rate + 60)
            say("traffic is over; draining")
            counts = asyncio.run(_drain(stage.url))
        finally:
            workers.stop()
            for producer in producers:
                producer.kill()
                producer.wait()
        faults = stage.done
    return Outcome(check(folder, database, counts), faults, counts, time.monotonic() - started)


def _work(plan: Plan, url: str, database: str) -> list[str]:
    options = ["--guard", plan.guard, "--busy", str(plan.busy)]
    return [sys.executable, "-m", "chaos.traffic.worker", url, database, *options]


def _produce(plan: Plan, url: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    share = plan.messages // PRODUCERS
    return [
        subprocess.Popen(
            [
                sys.executable, "-m", "chaos.traffic.producer", url, str(folder), "--first", str(number * share),
                "--count", str(share), "--users", str(plan.users), "--rate", str(plan.rate / PRODUCERS),
                "--callers", str(CALLERS), "--number", str(number),
            ],
            cwd=ROOT, stdout=subprocess.DEVNULL,
        )
        for number in range(PRODUCERS)
    ]  # fmt: skip


def _misbehave(
    plan: Plan, stage: Stage, workers: Workers, producers: list[subprocess.Popen[bytes]], say: Callable[[str], None]
) -> None:
    for fault in draw(plan.schedule, plan.server, plan.messages / plan.rate):
        time.sleep(fault.after)
        if all(producer.poll() is not None for producer in producers):
            return
        say(f"  {fault.kind}")
        stage.strike(fault, workers)


async def _drain(url: str) -> dict[str, int]:
    """Wait until nothing waits and nothing is in flight."""
    async with Holdfast(url, retry_for=20.0) as hf:
        inbox = hf.buffer(BUFFER, capacity=CAPACITY)
        give_up = time.monotonic() + DRAIN
        while True:
            totals: Any = await inbox.totals()
            if totals.users == 0:
                return dict(totals.counts)
            if time.monotonic() > give_up:
                raise TimeoutError(f"not drained in {DRAIN:g} s: {totals}")
            await asyncio.sleep(0.2)

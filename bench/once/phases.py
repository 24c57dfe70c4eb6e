"""Runs a process through its phases (bench/peers/python/calling.py), and says what each of them came to."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass

from .. import fleet
from ..harness import Bar, Results, Turn
from ..stats import percentile

LIMIT = 60.0


@dataclass(frozen=True)
class Done:
    """What the callers of one phase did: calls, seconds, what the calls answered, µs of each call of a lone caller."""

    calls: int
    took: float
    answered: int
    times: list[float]
    cpu: float
    """Processor seconds of the server."""

    def per_second(self, each: int = 1) -> float:
        return self.calls * each / self.took

    def server_us(self, each: int = 1) -> float:
        return self.cpu / (self.calls * each) * 1e6

    @property
    def p50(self) -> float:
        return percentile(self.times, 50)

    @property
    def p99(self) -> float:
        return percentile(self.times, 99)

    def must_answer(self, each: int, what: str) -> Done:
        """A wrong answer is no result, however fast it came."""
        if self.answered != self.calls * each:
            raise fleet.WorkerFailed(f"{what}: {self.calls} calls answered {self.answered}, not {each} each")
        return self


def run(now: Turn, command: Sequence[str], phases: Sequence[str]) -> list[Done]:
    now.server.reset()
    results = []
    with fleet.started([[*command, now.server.addr, str(now.seconds), *phases]]) as (worker,):
        for number, phase in enumerate(phases):
            with fleet.limited([worker], now.seconds + LIMIT, f"the phase {phase}"):
                if number and (said := worker.line()) != "ready":
                    raise fleet.WorkerFailed(f"expected 'ready', got {said[:200]!r}")
                before = now.server.cpu_seconds()
                worker.say_go()
                report = json.loads(worker.line())
                cpu = now.server.cpu_seconds() - before
            times = [each / 1e3 for each in report["times"]]
            results.append(Done(report["done"], report["took"], report["answered"], times, cpu))
    return results


def redis_py() -> str:
    return f"redis {importlib.metadata.version('redis')}, hiredis {importlib.metadata.version('hiredis')}"


def ratio_bar(results: Results, ours: str, key: str, theirs: str, what: str, least: float | None = None) -> Bar:
    """Ours over theirs, which must be above `least`, or is only reported."""
    known, ratio = bool(results.ratios(ours, key, theirs)), results.ratio(ours, key, theirs)
    met = ratio > least if known and least is not None else None
    target = "reported" if least is None else f"> {least:g}"
    return Bar(f"{ours}: {what} over {theirs}", target, f"{ratio:.2f}" if known else "", met)

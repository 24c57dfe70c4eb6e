"""Runs a scenario: contestants in turn, round after round, on one private server, and keeps every figure.

Machines are noisy, and the noise drifts. So contestants alternate (A B C, A B C, …) instead of running in blocks, a
ratio is taken inside a round and the median of the rounds' ratios is what counts, and the spread is always shown.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .fleet import WorkerFailed
from .server import Server
from .stats import median

Figures = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """A figure that turns produce: `key` in the figures, `label` and `unit` for people."""

    key: str
    label: str
    unit: str = ""
    digits: int = 1
    higher_is_better: bool = True


@dataclass(frozen=True)
class Contestant:
    """Who takes part. `unavailable` is the reason it cannot, and is shown; nobody is dropped silently."""

    name: str
    lib: str
    version: str = ""
    unavailable: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Turn:
    """One contestant's go at one round."""

    server: Server
    round: int
    seconds: float
    quick: bool


@dataclass(frozen=True)
class Bar:
    """A target of the scenario. `met` is None where there is no target (a reported figure) or no measurement."""

    what: str
    target: str
    reached: str
    met: bool | None

    @property
    def verdict(self) -> str:
        if self.met is None:
            return "REPORTED" if self.reached else "NOT MEASURED"
        return "PASS" if self.met else "MISSED"


@dataclass
class Results:
    """Every figure of a scenario: `figures[contestant][round]`."""

    figures: dict[str, dict[int, Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def values(self, contestant: str, key: str) -> list[float]:
        rounds = self.figures.get(contestant, {})
        return [figures[key] for _, figures in sorted(rounds.items()) if _known(figures, key)]

    def median(self, contestant: str, key: str) -> float:
        return median(self.values(contestant, key))

    def ratios(self, contestant: str, key: str, baseline: str, baseline_key: str | None = None) -> list[float]:
        """The contestant's figure over the baseline's, for each round that both have finished."""
        ours, theirs = self.figures.get(contestant, {}), self.figures.get(baseline, {})
        other = baseline_key or key
        return [
            ours[index][key] / theirs[index][other]
            for index in sorted(ours.keys() & theirs.keys())
            if _known(ours[index], key) and _known(theirs[index], other) and theirs[index][other]
        ]

    def ratio(self, contestant: str, key: str, baseline: str, baseline_key: str | None = None) -> float:
        return median(self.ratios(contestant, key, baseline, baseline_key))


def _known(figures: Figures, key: str) -> bool:
    return key in figures and not math.isnan(figures[key])


@dataclass(frozen=True)
class Scenario:
    """What is measured, on whom, and what must be reached. `ratio` is (metric key, baseline contestant)."""

    name: str
    title: str
    how: str
    metrics: tuple[Metric, ...]
    contestants: Callable[[], Iterable[Contestant]]
    turn: Callable[[Contestant, Turn], Figures]
    bars: Callable[[Results], list[Bar]]
    ratio: tuple[str, str] | None = None
    plots: tuple[str, ...] = ()
    rounds: int = 5
    seconds: float = 3.0
    log_scale: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options:
    out: Path
    quick: bool = False
    rounds: int | None = None
    who: tuple[str, ...] = ()

    def rounds_of(self, scenario: Scenario) -> int:
        return self.rounds or (2 if self.quick else scenario.rounds)

    def invites(self, contestant: Contestant) -> bool:
        return not self.who or any(part.lower() in contestant.name.lower() for part in self.who)

    def seconds_of(self, scenario: Scenario) -> float:
        return 1.0 if self.quick else scenario.seconds


@dataclass(frozen=True)
class Report:
    """A finished scenario, ready to be printed, saved and drawn."""

    scenario: Scenario
    contestants: list[Contestant]
    results: Results
    bars: list[Bar]
    machine: dict[str, object]
    settings: dict[str, object]


def machine(server: Server) -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "server": server.version,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def run(scenario: Scenario, options: Options) -> Report:
    """Run all rounds. A contestant that fails once is reported with its reason and sits out the other rounds."""
    rounds, seconds = options.rounds_of(scenario), options.seconds_of(scenario)
    contestants = [each for each in scenario.contestants() if options.invites(each)]
    results = Results()
    started = time.monotonic()
    with Server() as server:
        about = machine(server)
        for index in range(rounds):
            for contestant in contestants:
                if contestant.unavailable or contestant.name in results.failures:
                    continue
                _progress(scenario, contestant, index, rounds)
                server.reset()
                try:
                    figures = scenario.turn(contestant, Turn(server, index, seconds, options.quick))
                except (WorkerFailed, OSError) as error:
                    results.failures[contestant.name] = str(error)
                else:
                    results.figures.setdefault(contestant.name, {})[index] = figures
    _progress_end()
    settings = {"rounds": rounds, "seconds": seconds, "quick": options.quick}
    settings["took"] = round(time.monotonic() - started, 1)
    return Report(scenario, contestants, results, scenario.bars(results), about, settings)


def _progress(scenario: Scenario, contestant: Contestant, index: int, rounds: int) -> None:
    if sys.stderr.isatty():
        text = f"{scenario.name}: round {index + 1} of {rounds}, {contestant.name}"
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _progress_end() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)

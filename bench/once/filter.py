"""Which of a hundred ids are new: one caller and ten in one asyncio process; none known, and every other."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from .filter_worker import IDS
from .phases import ratio_bar, redis_py, run

HOLDFAST, ONE_BY_ONE, PIPELINE = "Holdfast filter_new", "redis-py, SET NX awaited", "redis-py, SET NX in a pipeline"
PHASES = {"fresh_1": "fresh:1", "fresh_10": "fresh:10", "half_1": "half:1", "half_10": "half:10"}
NEW = {"fresh": IDS, "half": IDS // 2}


def contestants() -> Iterable[Contestant]:
    yield Contestant(HOLDFAST, "holdfast", importlib.metadata.version("holdfast"), ours=True)
    yield Contestant(ONE_BY_ONE, "one-by-one", redis_py())
    yield Contestant(PIPELINE, "pipeline", redis_py())


def turn(who: Contestant, now: Turn) -> Figures:
    command = [sys.executable, "-m", "bench.once.filter_worker", who.lib]
    figures: Figures = {}
    for (key, phase), done in zip(PHASES.items(), run(now, command, list(PHASES.values())), strict=True):
        name, _, callers = phase.partition(":")
        done.must_answer(NEW[name], f"new ids of {IDS}")
        figures |= {key: done.per_second(IDS), f"{key}_us": done.server_us(IDS)}
        if callers == "1":
            figures[f"{key}_p50"] = done.p50
    return figures


def bars(results: Results) -> list[Bar]:
    made = []
    for theirs in (ONE_BY_ONE, PIPELINE):
        for key in PHASES:
            made.append(ratio_bar(results, HOLDFAST, key, theirs, f"ids/s, {_of(key)},", least=1))
    for key in ("fresh_10", "half_10"):
        made.append(ratio_bar(results, HOLDFAST, f"{key}_us", PIPELINE, f"server CPU, {_of(key)},"))
    return made


def _of(key: str) -> str:
    name, _, callers = key.partition("_")
    share = "all new" if name == "fresh" else "half of them known"
    return f"{share}, {callers} caller" + ("s" if callers != "1" else "")


def _metrics() -> Iterable[Metric]:
    for key in PHASES:
        yield Metric(key, f"ids, {_of(key)}".replace(", ", ",\n"), "per s", 0)
    yield Metric("fresh_1_p50", "one call,\np50, all new", "µs", 0, higher_is_better=False)
    for key in ("fresh_10", "half_10"):
        share = "all new" if key.startswith("fresh") else "half known"
        yield Metric(f"{key}_us", f"server CPU\nper id,\n{share}", "µs", 2, higher_is_better=False)


SCENARIO = Scenario(
    name="filter",
    title="which of 100 ids are new, one asyncio process, 1 and 10 callers",
    how=(
        "Ids of about 16 characters, seen for 300 s. Holdfast: `await hf.filter_new(space, ids, 300)`, one script on a "
        "single server, atomic; an id that is named twice counts once, a repeat after a lost reply finds its own mark, "
        "and what was marked for a caller who is cancelled is taken back. redis-py: SET NX EX for each id, awaited one "
        "by one, and in one pipeline (transaction=False); a lost reply or a cancelled caller leaves ids known that "
        "nobody was told of. `half`: every other id is one of 5 000 known ones. Every call's answer is counted: a "
        "wrong one fails the turn. Both sides parse with hiredis."
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("fresh_1", PIPELINE),
    plots=("fresh_1", "fresh_10", "half_10"),
    rounds=5,
    seconds=0.8,
)

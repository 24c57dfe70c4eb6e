"""One asyncio process, 100 callers, a session each: saves per second; and how long one caller waits."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from typing import Any

from .. import fleet, peers
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import percentile

CALLERS = 100
HOLDFAST, AGENTS, LANGCHAIN = "Holdfast sessions", "OpenAI Agents RedisSession", "LangChain Redis history"
PEERS = {
    "openai-agents": (AGENTS, ("openai-agents", "redis", "hiredis")),
    "langchain": (LANGCHAIN, ("langchain-community", "langchain-core", "redis", "hiredis")),
}


def contestants() -> Iterable[Contestant]:
    yield Contestant(HOLDFAST, "holdfast", importlib.metadata.version("holdfast"), ours=True)
    for lib, (label, packages) in PEERS.items():
        made = peers.environment(lib)
        yield Contestant(label, lib, made.version(*packages), made.reason)


def turn(who: Contestant, now: Turn) -> Figures:
    many, cpu = _run(who, now, CALLERS)
    alone, _ = _run(who, now, 1)
    times = [each / 1e3 for each in alone["times"]]
    return {
        "saves": many["done"] / many["took"],
        "server_us": cpu / many["done"] * 1e6,
        "p50": percentile(times, 50),
        "p99": percentile(times, 99),
        "kept": many["kept"],
    }


def _run(who: Contestant, now: Turn, callers: int) -> tuple[dict[str, Any], float]:
    now.server.reset()
    if who.ours:
        command = [sys.executable, "-m", "bench.sessions.holdfast_saver"]
    else:
        module = f"bench.peers.python.{who.lib.replace('-', '_')}_peer"
        command = [peers.environment(who.lib).python, "-m", module]
    command += [now.server.addr, str(now.seconds), str(callers)]
    before: list[float] = []
    outcome = fleet.run([command], now.seconds, ready=lambda: before.append(now.server.cpu_seconds()))
    report = outcome.reports[0]
    cpu = now.server.cpu_seconds() - before[0]
    report["kept"] = _longest(now)
    return report, cpu


def _longest(now: Turn) -> float:
    """Entries in the longest list on the server: what a session has grown to."""
    client = now.server.client
    lists = [key for key in client.scan_iter(count=1000) if client.type(key) == "list"]
    return float(max((client.llen(key) for key in lists), default=0))


def bars(results: Results) -> list[Bar]:
    made = []
    for theirs in (AGENTS, LANGCHAIN):
        for key, what in (("saves", "saves per second"), ("p50", "one caller's p50"), ("p99", "one caller's p99")):
            known = results.ratios(HOLDFAST, key, theirs)
            shown = f"{results.ratio(HOLDFAST, key, theirs):.2f}" if known else ""
            made.append(Bar(f"{HOLDFAST}: {what} over {theirs}", "reported", shown, None))
    return made


SCENARIO = Scenario(
    name="save",
    title="one asyncio process, 100 callers, one entry at a time to a session each, TTL 3600",
    how=(
        "Holdfast: one script that stores, trims to 100 entries (the sessions are full, so each save removes one), "
        "sets the life and recognises a repeated save: one round trip. OpenAI Agents' RedisSession.add_items: WATCH, "
        "three TYPE, TIME, then a transaction that pushes, notes the time and sets the expiry, six round trips; "
        "atomic, and run again when the session changed meanwhile, but it never trims and a repeated save is stored "
        "twice. LangChain's RedisChatMessageHistory.aadd_messages: LPUSH, then EXPIRE, in asyncio's default threads; "
        "not atomic (a crash in between leaves no TTL), it never trims, a repeated save is stored twice. The last "
        "column is what the longest session has grown to."
    ),
    metrics=(
        Metric("saves", "saves", "per s", 0),
        Metric("server_us", "server CPU\nper save", "µs", 1, higher_is_better=False),
        Metric("p50", "one caller, p50", "µs", 0, higher_is_better=False),
        Metric("p99", "one caller, p99", "µs", 0, higher_is_better=False),
        Metric("kept", "longest list", "entries", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("saves", AGENTS),
    plots=("saves", "p50"),
    rounds=5,
    seconds=3.0,
)

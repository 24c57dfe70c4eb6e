"""End to end: messages put in by one process, until handlers in 1 and in 4 processes have seen all of them."""

from __future__ import annotations

from collections.abc import Iterable

from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from . import movers

PROCESSES = (1, 4)
MESSAGES, USERS = 20_000, 1_000
QUICK = (2_000, 100)
LIMIT = 180.0
PEERS = {"streaq": "streaq", "saq": "SAQ", "taskiq": "taskiq", "arq-10ms": "arq"}
APPEND, EXTEND = "Holdfast, append each", "Holdfast, extend of 10"


def contestants() -> Iterable[Contestant]:
    yield movers.holdfast(APPEND, "holdfast 1")
    yield movers.holdfast(EXTEND, "holdfast 10")
    for lib, label in PEERS.items():
        yield movers.peer(f"{label}, task each", lib, "1")
        yield movers.peer(f"{label}, task of 10", lib, "10")


def turn(who: Contestant, now: Turn) -> Figures:
    lib, _, group = who.lib.partition(" ")
    messages, users = QUICK if now.quick else (MESSAGES, USERS)
    figures: Figures = {"messages": float(messages), "users": float(users)}
    for processes in PROCESSES:
        now.server.reset()
        moved = movers.run(
            now.server, lib, processes=processes, messages=messages, users=users, group=int(group), pace_ms=0,
            limit=LIMIT,
        )  # fmt: skip
        figures |= {
            f"messages_{processes}": messages / moved.seconds,
            f"batches_{processes}": moved.batches / moved.seconds,
            f"put_{processes}": messages / ((moved.put_until - moved.started) / 1e9),
            f"server_us_{processes}": moved.server_cpu / messages * 1e6,
            f"repeated_{processes}": float(moved.messages - messages),
            f"least_{processes}": float(min(moved.per_process)),
            f"most_{processes}": float(max(moved.per_process)),
        }
    return figures


def bars(results: Results) -> list[Bar]:
    made = []
    for ours, kind in ((APPEND, "task each"), (EXTEND, "task of 10")):
        for processes in PROCESSES:
            key = f"messages_{processes}"
            for label in PEERS.values():
                theirs = f"{label}, {kind}"
                known = results.ratios(ours, key, theirs)
                what = f"{ours}, {_of(processes)}: messages/s over {theirs}"
                made.append(Bar(what, "reported", f"{results.ratio(ours, key, theirs):.2f}" if known else "", None))
    for ours in (APPEND, EXTEND):
        twice = [sum(each) for each in zip(*(results.values(ours, f"repeated_{n}") for n in PROCESSES), strict=True)]
        shown = f"{max(twice):.0f}" if twice else ""
        made.append(Bar(f"{ours}: messages handled twice, worst round", "0", shown, not max(twice) if twice else None))
    return made


def _of(processes: int) -> str:
    return f"{processes} process" + ("es" if processes > 1 else "")


def _metrics() -> Iterable[Metric]:
    for processes in PROCESSES:
        of = _of(processes)
        yield Metric(f"messages_{processes}", f"messages,\n{of}", "per s", 0)
        yield Metric(f"batches_{processes}", f"handler calls,\n{of}", "per s", 0)
    for processes in PROCESSES:
        of = _of(processes)
        yield Metric(f"server_us_{processes}", f"server CPU\nper message, {of}", "µs", 1, higher_is_better=False)


SCENARIO = Scenario(
    name="absorb",
    title="20 000 messages of 1 000 users, from the first put until a handler that only counts has seen the last",
    how=(
        "One process sends (100 callers, ten messages of a user one after another), 1 or 4 processes handle, 10 "
        "handlers at a time in each, all on this machine. Holdfast collects: a message is one append, and a handler is "
        "called with ten of them. The others have no buffer: one task per message is how they are used, and the "
        "handler then sees single messages, several of one user at a time; `task of 10` is a caller that has already "
        "collected ten itself, to be held against `extend of 10`. Results and finished tasks are not kept. taskiq uses "
        "its stream broker, the one that acknowledges. arq polls every 10 ms here: with its 0.5 s the pause would be "
        "all that is measured. (--quick: 2 000 messages, 100 users.)"
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("messages_1", "SAQ, task each"),
    plots=("messages_1", "messages_4"),
    rounds=3,
)  # fmt: skip

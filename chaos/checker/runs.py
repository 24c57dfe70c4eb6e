"""The account of runs: what was promised to whom, what the server has in the end, and what does not fit together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from chaos.checker.trail import Seen, Trail
from chaos.traffic.roles import MAX_ATTEMPTS, ON_PURPOSE, Role

OVER = ("completed", "failed", "stopped")
FIRM = ("unfinished", "ends", "fences", "slots", "attempts", "outcomes")
"""What must hold even where a failover has forgotten the last moments: what the server has is in order."""


class Final(NamedTuple):
    """A run as the server has it in the end, with all its events."""

    state: str
    reason: str = ""
    attempt: int = 1
    fence: int = 0
    started: float | None = None
    ended: float | None = None
    dropped: int = 0
    result: Any = None
    events: tuple[Seen, ...] = ()


@dataclass
class Account:
    """What happened, and every violation with an example or more."""

    happened: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    forgetful: bool = False
    """A failover may have forgotten what was acknowledged: that is counted, and no violation."""

    def wrong(self, kind: str, run: str, text: str) -> None:
        self.violations[kind] += 1
        self.examples.append(f"{kind}: {run}: {text}")

    @property
    def clean(self) -> bool:
        return not any(number for kind, number in self.violations.items() if kind in FIRM or not self.forgetful)


class Told:
    """What the journals say about one run."""

    def __init__(self) -> None:
        self.lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.views: dict[str, list[Seen]] = defaultdict(list)

    def add(self, line: dict[str, Any]) -> None:
        if line["what"] == "seen":
            self.views[line["by"]].append(Seen(line["id"], line["kind"], line["data"]))
        elif line["what"] == "visit":
            self.views[line["by"]]
            self.lines["visit"].append(line)
        else:
            self.lines[line["what"]].append(line)

    def states(self) -> set[str]:
        """Final states that somebody was told."""
        answers = {line["state"] for what in ("started", "stop", "finished") for line in self.lines[what]}
        ends = {seen.data["state"] for view in self.views.values() for seen in view if seen.kind == "end"}
        return (answers | ends) & set(OVER)


def check(
    roles: Sequence[Role], journal: Iterable[dict[str, Any]], finals: dict[str, Final], *, forgetful: bool = False
) -> Account:
    account = Account(forgetful=forgetful)
    told: dict[str, Told] = defaultdict(Told)
    for line in journal:
        told[line["run"]].add(line)
    for role in roles:
        final = finals.get(role.id)
        if final is None:
            account.wrong("forgotten", role.id, f"acknowledged {len(told[role.id].lines['started'])} times")
            continue
        _one(account, role, told[role.id], final)
    _slots(account, roles, told, finals)
    return account


def _one(account: Account, role: Role, told: Told, final: Final) -> None:
    happened, wrong = account.happened, account.wrong
    happened["runs"] += 1
    happened[final.state] += 1
    happened["taken over"] += final.attempt > 1
    happened["worker lost"] += final.reason == "worker lost"
    happened["visits"] += len(told.lines["visit"])
    happened["events dropped"] += final.dropped
    happened["handed back"] += len(told.lines["returned"])
    happened["told that it was lost"] += sum(line["lost"] for line in told.lines["left"])
    if final.state not in OVER:
        wrong("unfinished", role.id, f"it is {final.state}")
    if len(seen := told.states() | {final.state}) > 1:
        wrong("contradictions", role.id, f"it ended as {sorted(seen)}")
    trail = Trail([] if account.forgetful else list(told.views.values()), final.events)
    for kind, text in trail.problems(final):
        wrong(kind, role.id, text)
    for by, view in told.views.items():
        happened["views"] += 1
        if (problem := (trail.differs_later if account.forgetful else trail.differs)(view)) is not None:
            wrong("views", role.id, f"reader {by}: {problem}")
    for problem in _steps(told, final):
        wrong("steps", role.id, problem)
    for problem in _checkpoints(told):
        wrong("checkpoints", role.id, problem)
    for problem in _stops(happened, told, final):
        wrong("stops", role.id, problem)
    if (problem := _outcome(role, told, final)) is not None:
        wrong("outcomes", role.id, problem)
    most = MAX_ATTEMPTS + len(told.lines["returned"])
    if final.attempt > most:
        wrong("attempts", role.id, f"{final.attempt} owners")
    if role.collection == "once" and len({line["fence"] for line in told.lines["began"]}) > 1:
        wrong("attempts", role.id, "it cannot go on in another process, and was begun twice")


def _steps(told: Told, final: Final) -> Iterable[str]:
    """Each step has one result, made by one call; whoever comes later gets it and does not call again."""
    made = {line["value"] for line in told.lines["ran"]}
    results: dict[str, dict[str, int]] = defaultdict(dict)
    for line in told.lines["step"]:
        known = results[line["step"]]
        known[line["value"]] = min(line["fence"], known.get(line["value"], line["fence"]))
    for step, values in results.items():
        if len(values) > 1:
            yield f"{step} has the results {sorted(values)}"
        if not made.issuperset(values):
            yield f"{step} has a result that nobody made"
        first = min(values.values())
        if any(line["step"] == step and line["fence"] > first for line in told.lines["ran"]):
            yield f"{step} was called again by a later owner"
    if final.state == "completed" and any(value not in results[step] for step, value in final.result["values"].items()):
        yield "the result speaks of other results of steps"


def _checkpoints(told: Told) -> Iterable[str]:
    """What was saved, a later owner begins with."""
    for began in told.lines["began"]:
        saved = max((line["n"] for line in told.lines["saved"] if line["fence"] < began["fence"]), default=0)
        if began["saved"] < saved:
            yield f"attempt {began['attempt']} began at {began['saved']}, although {saved} were saved"


def _stops(happened: Counter[str], told: Told, final: Final) -> Iterable[str]:
    for line in told.lines["stop"]:
        answer = line["state"]
        happened[f"stop: {answer}"] += 1
        if answer in ("stopping", "stopped") and final.state != "stopped":
            yield f"a stop was acknowledged, and it is {final.state}"
        elif answer in ("queued", "running"):
            yield f"a stop was answered with {answer}"


def _outcome(role: Role, told: Told, final: Final) -> str | None:
    """Ended as it did: is there a reason for it?"""
    lost = role.collection == "once" or final.attempt >= MAX_ATTEMPTS
    match final.state:
        case "completed":
            reasonable = role.input["fails"] is None
        case "failed":
            reasonable = (final.reason == ON_PURPOSE and role.input["fails"] is not None) or (
                lost and final.reason in ("worker lost", "worker shut down")
            )
        case "stopped":
            reasonable = bool(told.lines["asked"]) or (
                role.conflict == "replace" and final.reason.startswith("replaced by")
            )
        case _:
            return None
    return None if reasonable else f"{final.state} because of {final.reason!r}"


def _slots(account: Account, roles: Sequence[Role], told: dict[str, Told], finals: dict[str, Final]) -> None:
    """Runs of a key, one after the other: by the server's clock and by the fences of their owners."""
    keys: dict[str, list[tuple[float, str, Final]]] = defaultdict(list)
    for role in roles:
        final = finals.get(role.id)
        if role.key is not None and final is not None and final.started is not None:
            keys[role.key].append((final.started, role.id, final))
    for key, runs in keys.items():
        runs.sort(key=lambda one: (one[0], one[2].fence))
        for (_, before, one), (started, run, _) in pairwise(runs):
            if one.ended is None or one.ended > started:
                account.wrong("slots", run, f"began before {before} had left the slot of {key}")
            fences = [line["fence"] for line in told[before].lines["began"]]
            later = [line["fence"] for line in told[run].lines["began"]]
            if fences and later and max(fences) >= min(later):
                account.wrong("slots", run, f"an owner of it is older than one of {before} ({key})")
        account.happened["runs with a key"] += len(runs)

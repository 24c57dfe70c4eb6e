"""What the processes of a demonstration said, added up as it comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

LEASES = {"batch": "batches", "run": "runs", "lease": "locks"}
"""What a lease was for, as it is shown."""


class Tally:
    """Only what was said. What became of it in the end, the account looks up itself."""

    def __init__(self) -> None:
        self.accepted: set[int] = set()
        """Numbers of messages of which a producer was told that they are stored."""
        self.unknown: set[int] = set()
        """No answer came: they may or may not be stored."""
        self.refused = 0
        self.dropped = 0
        """As producers were told."""
        self.latency: dict[int, float] = {}
        """Seconds from the append to the moment when a worker first knew that it is stored in SQL."""
        self.started: set[str] = set()
        self.runs_unknown: set[str] = set()
        self.counted: Counter[tuple[int, int]] = Counter()
        self.fenced = 0
        self.lost: Counter[str] = Counter()
        self.again = Counter({"batches": 0, "runs": 0, "locks": 0})
        self.ended: set[str] = set()
        self.crashed: list[str] = []
        self.kills = self.pauses = 0

    def hear(self, line: dict[str, Any]) -> None:
        match line["did"]:
            case "appended" | "unknown" as did:
                numbers = range(line["first"], line["first"] + line["count"])
                (self.accepted if did == "appended" else self.unknown).update(numbers)
                self.dropped += sum(line.get("dropped", {}).values())
            case "refused":
                self.refused += line["count"]
            case "absorbed":
                for number, seconds in line["messages"]:
                    self.latency.setdefault(number, seconds)
            case "started":
                self.started.add(line["run"])
            case "run unknown":
                self.runs_unknown.add(line["run"])
            case "run ended":
                self.ended.add(line["run"])
            case "counted":
                self.counted[line["counter"], line["value"]] += 1
            case _:
                self._leases(line)

    def _leases(self, line: dict[str, Any]) -> None:
        match line["did"]:
            case "taken":
                self.again["batches"] += line["again"]
            case "run taken":
                self.again["runs"] += line["again"]
            case "taken over":
                self.again["locks"] += 1
            case "fenced":
                self.fenced += 1
            case "lost":
                self.lost[LEASES.get(line["what"], line["what"])] += 1

"""One line for each append: first number, how many, outcome, how many were dropped to make room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

STORED, UNKNOWN, REFUSED = "stored", "unknown", "refused"
"""Acknowledged; no answer came; surely not stored."""


class Record(NamedTuple):
    first: int
    count: int
    outcome: str
    dropped: int
    error: str = ""


class Log:
    """Written line by line, so that it survives the death of its process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("producer-*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield Record(*json.loads(line))

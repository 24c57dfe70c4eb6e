"""What the processes of a run saw and were told: one file for each, one JSON object on each line."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Each line is one write to the file's end, so that what was written survives the death of its process."""

    def __init__(self, folder: Path, role: str) -> None:
        self._file = os.open(
            folder / f"{role}-{os.getpid()}-{secrets.token_hex(4)}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )

    def write(self, what: str, run: str, **facts: Any) -> None:
        """Any thread."""
        os.write(
            self._file, json.dumps({"at": round(time.time(), 3), "what": what, "run": run, **facts}).encode() + b"\n"
        )


READY = "ready"
GO = "go"


def ready(folder: Path) -> int:
    """How many processes have said that they are."""
    return sum(1 for path in folder.glob("*.jsonl") if path.read_bytes()[:100].find(READY.encode()) > 0)


async def wait_to_begin(folder: Path, journal: Journal) -> float:
    """Say that this process is ready, and wait until all are. Answers the moment from which all of them count."""
    journal.write(READY, "")
    file = folder / GO
    while not file.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
    return file.stat().st_mtime


def entries(folder: Path, who: str = "*") -> Iterator[dict[str, Any]]:
    """All lines of all processes, or of those whose file is named so; the order is kept within a process."""
    for path in sorted(folder.glob(f"{who}.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            if line.endswith(b"}"):  # not one that a kill cut short
                yield json.loads(line)

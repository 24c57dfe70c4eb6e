from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing import LocalServer
from support.conditions import until_blocking


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descendants() -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = parent_of(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(holdfast_server: LocalServer) -> Iterator[None]:
    """Every test here ends with the threads and processes it began with."""
    threads, processes = set(threading.enumerate()), descendants()
    yield
    until_blocking(lambda: set(threading.enumerate()) <= threads, 5, "the end of every thread")
    until_blocking(lambda: descendants() <= processes, 5, "the end of every process")

"""A real node in a process of its own, and what Linux says of processes: processor time and memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .. import fleet
from ..server import die_with_parent, end

ADDRESS = "dashboard"
ENDLESS = {"HOLDFAST_NODE_RATE": "1000000"}
"""Requests in a second that a caller may make: the bench is one caller, and is not to be slowed down."""


@dataclass(frozen=True)
class Node:
    """`holdfast up`, and where it is."""

    pid: int
    port: int
    data: Path


@contextlib.contextmanager
def node(*options: str) -> Iterator[Node]:
    """Listens on a free port of loopback; ended as SIGTERM ends it when the block is left."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
        errors = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "up", "--port", "0", "--data", data, *options],
            cwd=fleet.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=die_with_parent,
            env=environment | ENDLESS,
        )
        stack.callback(end, process, 15.0)
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        worker = fleet.Worker(process, errors)
        with fleet.limited([worker], fleet.START_LIMIT, "starting the node"):
            while not (line := worker.line()).startswith(ADDRESS):
                pass
        port = urlsplit(line.split()[-1]).port
        assert port is not None
        yield Node(process.pid, port, Path(data))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Memory:
    """In MB. `pss` counts a page that several processes share in equal parts; `rss` counts it in each."""

    rss: float
    pss: float


def memory(*pids: int) -> Memory:
    """Of all of them together."""
    rss = pss = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Rss":
                rss += int(rest.split()[0])
            elif name == "Pss":
                pss += int(rest.split()[0])
    return Memory(rss / 1024, pss / 1024)


def children(pid: int) -> list[int]:
    """Processes that this one has started, and those that they have."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def versions() -> str:
    """Of what the node is made of."""
    parts = ("starlette", "uvicorn", "h11")
    ours = importlib.metadata.version("holdfast")
    return ", ".join((ours, *(f"{part} {importlib.metadata.version(part)}" for part in parts)))

"""Runs several worker processes at once, from a common start, and collects what they did.

The protocol, the same for Python, Go and Java workers: a worker connects, warms up and prints "ready"; it starts when
it reads a line from standard input; it prints one JSON line `{"rows": [[start, granted, ending, done], ...]}` (one row
per acquisition, in nanoseconds of the system's monotonic clock; optionally `"stuck": [[start, gave_up], ...]`, waits
that did not end although the lock was free); and it keeps its connections until standard input is closed. Every process
is ended when `run` returns, however it returns.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .server import die_with_parent, end

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT = 90.0  # eight Java machines starting on two cores need a while
DRAIN_LIMIT = 45.0  # after the last start of an acquisition: what an unfair lock may still make it wait

Row = tuple[int, int, int, int]


class WorkerFailed(Exception):
    """A worker ended early or took too long; the message is its own last words."""


@dataclass
class Outcome:
    """What a fleet did: `rows[i]` are the acquisitions of process i, `reports[i]` all that it reported."""

    reports: list[dict[str, Any]]
    during: Any

    @property
    def rows(self) -> list[list[Row]]:
        return [report["rows"] for report in self.reports]

    @property
    def stuck(self) -> list[tuple[int, int]]:
        return [tuple(wait) for report in self.reports for wait in report.get("stuck", ())]


@dataclass
class Worker:
    """One process of a fleet."""

    process: subprocess.Popen[str]
    errors: IO[str]

    def line(self) -> str:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise WorkerFailed(self.last_words())
        return text.strip()

    def say_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"worker ended with code {self.process.poll()} and said nothing"


def _launch(command: Sequence[str]) -> Worker:
    errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (closed by _end_all)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        preexec_fn=die_with_parent,
    )
    return Worker(process, errors)


@contextlib.contextmanager
def limited(workers: list[Worker], seconds: float, what: str) -> Iterator[None]:
    """Kill the fleet when the block takes longer: every read in it then ends, and the failure says why."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        for worker in workers:
            if worker.process.poll() is None:
                worker.process.kill()

    timer = threading.Timer(seconds, expire)
    timer.start()
    try:
        yield
    except (WorkerFailed, BrokenPipeError) as error:
        if expired.is_set():
            raise WorkerFailed(f"{what} took more than {seconds:.0f} s") from error
        raise
    finally:
        timer.cancel()


def run(
    commands: Sequence[Sequence[str]],
    seconds: float,
    *,
    ready: Callable[[], Any] | None = None,
    during: Callable[[], Any] | None = None,
) -> Outcome:
    """Run the workers together; `ready` is called when all stand at the start, `during` just after they left."""
    with started(commands) as workers:
        if ready is not None:
            ready()
        with limited(workers, seconds + DRAIN_LIMIT, "running"):
            for worker in workers:
                worker.say_go()
            seen = during() if during is not None else None
            reports = [json.loads(worker.line()) for worker in workers]
        return Outcome(reports, seen)


@contextlib.contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[Worker]]:
    """The workers, all at the start; ended when the block is left."""
    workers: list[Worker] = []
    try:
        for command in commands:
            workers.append(_launch(command))
        with limited(workers, START_LIMIT, "starting"):
            for worker in workers:
                if (said := worker.line()) != "ready":
                    raise WorkerFailed(f"expected 'ready', got {said[:200]!r}")
        yield workers
    finally:
        _end_all(workers)


def _end_all(workers: list[Worker]) -> None:
    for worker in workers:  # all are told first, so that they close their clients side by side
        with contextlib.suppress(OSError):
            assert worker.process.stdin is not None
            worker.process.stdin.close()
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(5)
        end(worker.process)
        assert worker.process.stdout is not None
        worker.process.stdout.close()
        worker.errors.close()


def output(command: Sequence[str], limit: float) -> str:
    """What a program prints that runs by itself and ends."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=True,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkerFailed(f"took more than {limit:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise WorkerFailed((error.stderr or error.stdout).strip()[-300:]) from error
    return done.stdout

"""Processes of an example, started as its README says, with their output in files. All of them are gone at the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from support.conditions import TooSlow, until_blocking

EXAMPLES = Path(__file__).parents[2] / "examples"


class Processes:
    """`example` is the directory under examples/, `directory` where they write."""

    def __init__(self, example: str, directory: Path, url: str, **env: object) -> None:
        self._home = EXAMPLES / example
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._env |= {"HOLDFAST_URL": url, "HOLDFAST_TTL": "1.5"} | {name: str(value) for name, value in env.items()}

    def start(self, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"process-{len(self._running)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=self._home, env=self._env, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        self._logs.append(log)
        return process, log

    def webs(self, *commands: Sequence[str]) -> list[str]:
        """Start, side by side, things that print their addresses; answers those."""
        started = [self.start(*command) for command in commands]

        def address(process: subprocess.Popen[bytes], log: Path) -> re.Match[str] | None:
            assert process.poll() is None, log.read_text("utf-8")
            return re.search(r" on (http://127\.0\.0\.1:\d+)\n", log.read_text("utf-8"))

        return [str(self.until(lambda one=one: address(*one), "the address")[1]) for one in started]

    def web(self, *command: str) -> str:
        """Start something that prints its address; answers that."""
        return self.webs(command)[0]

    def run(self, *command: str) -> str:
        """Run something to its end, which must be a good one; answers what it printed."""
        process, log = self.start(*command)
        assert process.wait(30) == 0, log.read_text("utf-8")
        return log.read_text("utf-8")

    def setenv(self, **env: object) -> None:
        """For those that are started from now on."""
        self._env |= {name: str(value) for name, value in env.items()}

    def workers(self, target: str, count: int) -> list[subprocess.Popen[bytes]]:
        """So many `holdfast work` with this client, once they work."""
        started = [self.start("-m", "holdfast.cli", "work", target) for _ in range(count)]
        for _, log in started:
            self.until(lambda log=log: "working" in log.read_text("utf-8"), "the worker")
        return [process for process, _ in started]

    def worker(self, target: str) -> subprocess.Popen[bytes]:
        return self.workers(target, 1)[0]

    def said(self) -> str:
        """What all of them have printed."""
        return "\n".join(log.read_text("utf-8", "replace") for log in self._logs)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return until_blocking(condition, within=60, what=what)
        except TooSlow as late:
            raise TooSlow(f"{late}; the processes said:\n{self.said()[-4000:]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
            process.wait()

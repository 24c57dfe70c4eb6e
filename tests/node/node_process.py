"""`holdfast up` as a process: started, read, asked, ended by its id."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import httpx

from support.conditions import until_blocking

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))

APP = '''
"""Handlers that do what the messages say, and write down what they did."""
import asyncio
import os
import pathlib

from holdfast import Holdfast

HERE = pathlib.Path(os.environ["UP_TEST"])
hf = Holdfast(name="worker", sweep=0.5)


@hf.absorber(hf.buffer("work"), threshold=1, lease=1.5)
async def absorb(batch):
    for message in batch.messages:
        name = message.data["name"]
        if name == "crash" and batch.attempt == 1:
            os._exit(9)
        (HERE / f"{name}.begun").touch()
        while message.data.get("waits") and not (HERE / f"{name}.go").exists():
            await asyncio.sleep(0.02)
        (HERE / f"{name}.done").touch()


@hf.runner(hf.runs("agent"), resumable=True)
async def agent(run):
    for number in range(run.saved or 0, 6):
        if number == 3:
            while not (HERE / "agent.go").exists():
                await asyncio.sleep(0.02)
        await run.emit({"n": number})
        await run.checkpoint(number + 1)
'''


class Up:
    """One running node."""

    def __init__(self, directory: Path, *options: str, **environment: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        env |= {"HOLDFAST_REPORT": "0.2", "UP_TEST": str(directory), "NO_COLOR": "1", **environment}
        self.process = subprocess.Popen(
            [HOLDFAST, "up", "--port", "0", "--data", str(directory / "data"), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory, env=env,
        )  # fmt: skip
        self._directory = directory
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = ""

    def _read(self) -> None:
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    def ready(self) -> Self:
        """Until it has said what to try."""
        until_blocking(lambda: self.process.poll() is not None or self._last_line(), within=30, what="the node")
        assert self.process.poll() is None, self.said
        found = re.search(r"dashboard +(http://\S+)/", "\n".join(self.said))
        assert found, self.said
        self.address = found[1]
        return self

    def _last_line(self) -> bool:
        return any("top --once" in line for line in self.said)

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=20, verify=False, **options)

    def term(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def code(self, within: float = 30.0) -> int:
        return self.process.wait(within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.term()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self._children():  # of a node that failed to end them
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(5)
        self.process.stdout.close()

    def _children(self) -> list[int]:
        return [pid for pid in running_in(self._directory) if "holdfast.cli" in _command(pid)]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def running_in(directory: Path) -> list[int]:
    """Processes that work in this directory, or on a server in it, by its name in their command or environment."""
    mark, found = str(directory).encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if mark in told and b"State:\tZ" not in (entry / "status").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found

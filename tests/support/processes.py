"""Starts workers, talks to them, and ends each of them by its id."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from support.nursery import Forked

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """One worker process."""

    def __init__(self, url: str, *options: str, **settings: Any) -> None:
        self._process = Forked(
            [sys.executable, str(WORKER), url, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "WORKER_SETTINGS": json.dumps(settings)},
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="worker-reader", daemon=True)
        self._reader.start()
        self.hear("ready")

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def tell(self, op: str, **fields: Any) -> None:
        self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self._process.stdin.flush()

    def hear(self, expected: str | None = None, timeout: float = 30) -> dict[str, Any]:
        line = self._lines.get(timeout=timeout)
        assert line, "the worker ended"
        reply: dict[str, Any] = json.loads(line)
        if expected is not None:
            assert reply.get("ok", reply.get("error")) == expected, reply
        return reply

    def ask(self, op: str, expected: str | None = None, timeout: float = 30, **fields: Any) -> dict[str, Any]:
        self.tell(op, **fields)
        return self.hear(expected, timeout)

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._reader.join(5)

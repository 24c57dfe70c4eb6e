"""Real workers of Celery and of Dramatiq, with one server as their broker and for Holdfast."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis
from celery import Celery
from celery.backends.filesystem import FilesystemBackend
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import ResultFailure, ResultMissing
from dramatiq.results.backends import RedisBackend

import holdfast.sync
from holdfast.testing import LocalServer
from support.conditions import until_blocking

HERE = Path(__file__).parent
PENDING = "pending"


class Fleet:
    """Workers and what the tests want of them. Each kind says how to start one, to send, and to read results."""

    machines = 1
    """How many have to be started so that one is left when a process of another is killed."""

    def __init__(self) -> None:
        self._machines: list[subprocess.Popen[bytes]] = []
        self._server = LocalServer()
        self._directory = tempfile.TemporaryDirectory(prefix="hf-queue-")
        self._log = Path(self._directory.name, "workers.log")

    def __enter__(self) -> Self:
        self._server.__enter__()
        self.url = self._server.url.rstrip("/")
        self.notes = redis.Redis.from_url(f"{self.url}/3")
        self.hf = holdfast.sync.Holdfast(self.url).open()
        self.agent = self.hf.runs("agent")
        self._connect()
        for _ in range(self.machines):
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self._machines:
            if machine.poll() is None:
                os.killpg(machine.pid, signal.SIGKILL)  # it leads a session of its own
            machine.wait()
        self._disconnect()
        self.hf.close()
        self.notes.close()
        self._server.__exit__(None, None, None)
        self._directory.cleanup()

    def start(self) -> None:
        env = {**os.environ, "QUEUE_TEST_URL": self.url, "QUEUE_TEST_RESULTS": f"file://{self._directory.name}"}
        with self._log.open("ab") as log:
            self._machines.append(
                subprocess.Popen(
                    [sys.executable, "-m", *self._command()], cwd=HERE, env=env, stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip

    def kill(self, pid: int) -> None:
        """A worker's process, as a crash; a machine that ends with it is replaced."""
        os.kill(pid, signal.SIGKILL)
        if self.machines > 1:
            self.start()

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    # -- what happened ------------------------------------------------------------------------------------------

    def noted(self, name: str, what: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.notes.lrange(f"notes:{name}", 0, -1)]
        return [one for one in found if one["what"] == what]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return until_blocking(condition, within=20, what=what)
        except AssertionError as late:
            raise AssertionError(f"{late}; the workers said:\n{self.log()[-4000:]}") from None

    def began(self, name: str, times: int = 1) -> list[dict[str, Any]]:
        self.until(lambda: len(self.noted(name, "began")) >= times, f"start {times} of {name}")
        return self.noted(name, "began")

    def open_gate(self, name: str) -> None:
        self.notes.set(f"gate:{name}", 1, ex=600)

    def outcome(self, message: str) -> tuple[str, Any]:
        """`completed` with the result, `stopped` or `failed` with the reason; once it is known."""
        return self.until(lambda: (found := self._outcome(message))[0] != PENDING and found, f"the end of {message}")

    def rest(self) -> None:
        """Until the broker has no message: all of them are acknowledged."""
        self.until(self._empty, "an empty broker")

    # -- each kind ----------------------------------------------------------------------------------------------

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _connect(self) -> None: ...

    def _disconnect(self) -> None: ...

    def send(self, actor: str, message: str, **arguments: Any) -> None:
        raise NotImplementedError

    def stood_by(self, message: str) -> bool:
        """Is it waiting to be looked at again?"""
        raise NotImplementedError

    def left(self, message: str) -> bool:
        """Did it leave, because somebody else has the run?"""
        raise NotImplementedError

    def _outcome(self, message: str) -> tuple[str, Any]:
        raise NotImplementedError

    def _empty(self) -> bool:
        raise NotImplementedError


class CeleryFleet(Fleet):
    """Prefork: one machine has several processes, and goes on when one of them is killed."""

    def _command(self) -> list[str]:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return ["celery", "-A", "celery_app", "worker", "-c", "3", "-l", "INFO", *quiet]

    def _connect(self) -> None:
        self._app = Celery("tests", broker=f"{self.url}/1")
        self._results = FilesystemBackend(url=f"file://{self._directory.name}", app=self._app)
        self._broker = redis.Redis.from_url(f"{self.url}/1")

    def _disconnect(self) -> None:
        self._app.close()
        self._broker.close()

    def send(self, actor: str, message: str, **arguments: Any) -> None:
        self._app.send_task(f"celery_app.{actor}", kwargs=arguments, task_id=message)

    def stood_by(self, message: str) -> bool:
        return f"[{message}] retry: " in self.log()

    def left(self, message: str) -> bool:
        return f"[{message}] ignored" in self.log()

    def _outcome(self, message: str) -> tuple[str, Any]:
        meta = self._results.get_task_meta(message, cache=False)
        match meta["status"]:
            case "SUCCESS":
                return "completed", meta["result"]
            case "REVOKED":
                return "stopped", str(meta["result"])
            case "FAILURE":
                return "failed", str(meta["result"])
        return PENDING, None

    def _empty(self) -> bool:
        return not self._broker.llen("celery") and not self._broker.hlen("unacked")


class DramatiqFleet(Fleet):
    """One process and a thread pool on each machine; a machine ends with its process."""

    machines = 2

    def _command(self) -> list[str]:
        return ["dramatiq", "dramatiq_app", "--processes", "1", "--threads", "3", "--worker-shutdown-timeout", "1000"]

    def _connect(self) -> None:
        self._broker = RedisBroker(url=f"{self.url}/1", middleware=[])
        self._results = RedisBackend(url=f"{self.url}/2")

    def _disconnect(self) -> None:
        self._broker.client.close()
        self._results.client.close()

    def _message(self, message: str, actor: str = "", **arguments: Any) -> Message[Any]:
        return Message("default", actor, (), arguments, {}, message_id=message)

    def send(self, actor: str, message: str, **arguments: Any) -> None:
        self.notes.set(f"actor:{message}", actor, ex=600)
        self._broker.enqueue(self._message(message, actor, **arguments))

    def stood_by(self, message: str) -> bool:
        return any(message.encode() in data for data in self._broker.client.hvals("dramatiq:default.DQ.msgs"))

    def left(self, message: str) -> bool:
        return self._outcome(message) == ("stopped", "")

    def _outcome(self, message: str) -> tuple[str, Any]:
        actor = self.notes.get(f"actor:{message}").decode()
        try:
            found = self._results.get_result(self._message(message, actor))
        except ResultMissing:
            return PENDING, None
        except ResultFailure as failure:
            return "failed", str(failure)
        return ("completed", found) if found is not None else ("stopped", "")

    def _empty(self) -> bool:
        return not any(self._broker.client.hlen(f"dramatiq:{queue}.msgs") for queue in ("default", "default.DQ"))

"""Receivers of webhooks that fail, hang, answer too late or not at all, and remember all that they accepted."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from chaos.traffic.venues import MANNERS, SECRET, TIMEOUT
from holdfast.monitor.signing import InvalidSignature, verify
from holdfast.testing.ports import free_port

REFUSALS = (500, 502, 404, 429, 503)
REBIND = 20.0


@dataclass
class Accepted:
    """A message that a receiver has taken. From then on it must not come again as another one."""

    key: str
    attempt: int
    body: bytes
    at: float
    """Monotonic, of the machine."""
    answered: bool = False
    """Was the sender told so, and in time?"""
    signed: bool = True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        endpoint = self.server.endpoint
        with contextlib.suppress(OSError):  # the sender is gone, or cut off
            size = int(self.headers["Content-Length"])
            body = self.rfile.read(size)
            if len(body) == size:
                self._behave(endpoint, body)
                return
        self.close_connection = True

    def _behave(self, endpoint: Endpoint, body: bytes) -> None:
        manner = endpoint.manner()
        if manner == "refuse":
            self._answer(random.choice(REFUSALS))
        elif manner == "hang":
            endpoint.healed.wait(TIMEOUT * 1.5)
            self.close_connection = True
        elif manner == "accept late":
            endpoint.healed.wait(TIMEOUT * 1.3)
            endpoint.accept(self.headers, body)
            self._answer(200)
        elif manner == "answer late":
            endpoint.accept(self.headers, body)
            endpoint.healed.wait(TIMEOUT * 1.3)
            self._answer(200)
        elif manner == "drop":
            endpoint.accept(self.headers, body)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            endpoint.healed.wait(random.random() * 0.1)  # work: room for a kill or a pause of the sender
            accepted = endpoint.accept(self.headers, body)
            self._answer(200)
            accepted.answered = True

    def _answer(self, status: int) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    endpoint: Endpoint
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, endpoint: Endpoint, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.endpoint = endpoint
        self.links: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.links.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.links.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        pass


class Endpoint:
    """One receiver."""

    def __init__(self, name: str, manners: Mapping[str, float], secret: str = "") -> None:
        self.name = name
        self.port = free_port()
        self.accepted: list[Accepted] = []
        self.refused = 0
        self.healed = threading.Event()
        """From then on it behaves."""
        self._manners = manners
        self._secret = secret
        self._lock = threading.Lock()
        self._life = threading.Lock()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.name}"

    def manner(self) -> str:
        number = random.random()
        for name, share in self._manners.items():
            number -= share
            if number < 0 and not self.healed.is_set():
                with self._lock:
                    self.refused += 1
                return name
        return ""

    def accept(self, headers: Any, body: bytes) -> Accepted:
        made = Accepted(headers["Idempotency-Key"], int(headers["Holdfast-Attempt"]), body, time.monotonic())
        if self._secret:
            try:
                verify(self._secret, dict(headers.items()), body, now=time.time())
            except InvalidSignature:
                made.signed = False
        with self._lock:
            made.at = time.monotonic()
            self.accepted.append(made)
        return made

    def open(self) -> None:
        """Again on the same port after `close`. Waits while the kernel still has it."""
        give_up = time.monotonic() + REBIND
        with self._life:
            if self._server is not None:
                return
            while self._server is None:
                try:
                    self._server = Server(self, self.port)
                except OSError:
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(0.05)
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Nobody listens, and connections are cut."""
        with self._life:
            server, self._server = self._server, None
            if server is None:
                return
            server.shutdown()
            server.server_close()
            for link in list(server.links):
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)


class Endpoints:
    """All receivers of a run."""

    def __init__(self) -> None:
        self.all = {
            name: Endpoint(name, manners, SECRET if name == "steady" else "") for name, manners in MANNERS.items()
        }
        self.absences = 0

    def __enter__(self) -> Self:
        for endpoint in self.all.values():
            endpoint.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for endpoint in self.all.values():
            endpoint.healed.set()
            endpoint.close()

    @property
    def urls(self) -> dict[str, str]:
        return {name: endpoint.url for name, endpoint in self.all.items()}

    def leave(self, seconds: float) -> None:
        """One of them is not there for a while."""
        self.absences += 1
        away = self.all["away"]
        away.close()
        timer = threading.Timer(seconds, away.open)
        timer.daemon = True
        timer.start()

    def heal(self) -> None:
        """Everybody is there, and behaves."""
        for endpoint in self.all.values():
            endpoint.healed.set()
        self.all["away"].open()

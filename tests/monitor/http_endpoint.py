"""A real HTTP server on the loopback that remembers what it was sent, and answers well or badly.

with Endpoint() as endpoint:                       # 200 to everything
with Endpoint(answers(500), answers(200)) as …     # one way for each request; the last one stays
endpoint.fail(3)                                   # the next three are refused, then as before
endpoint.url("/hook"), endpoint.requests[0].json, endpoint.connections

with Endpoint(certificate=certificate("localhost")) as …   # TLS; `certificate(…).trusting()` is a client's context
"""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

Behaviour = Callable[["Handler"], None]


@dataclass(frozen=True)
class Received:
    """One request, as it arrived. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    """Monotonic."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def any_method(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        behave = self.server.endpoint.received(Received(self.command, self.path, headers, body, time.monotonic()))
        try:
            behave(self)
        except (OSError, ssl.SSLError):
            self.close_connection = True  # the other side had enough

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = any_method

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    endpoint: Endpoint
    address_family = socket.AF_INET
    request_queue_size = 128
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        self.endpoint.connections += 1
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the thread of the connection: a handshake that hangs holds nobody else up."""
        if self.endpoint.tls is not None:
            request = self.endpoint.tls.wrap_socket(request, server_side=True)
        try:
            super().finish_request(request, client_address)
        finally:
            self.shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        pass


class Endpoint:
    """Behaves in the given ways, one request after the other; the last way stays."""

    def __init__(self, *behaviours: Behaviour, certificate: Certificate | None = None, name: str = "127.0.0.1") -> None:
        self.behaviours = list(behaviours) or [answers(200)]
        self.requests: list[Received] = []
        self.connections = 0
        self.release = threading.Event()
        """Set at the end: what hangs, hangs until then. A test may set it before."""
        self.tls = None if certificate is None else certificate.serving()
        self.name = name
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.endpoint = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def url(self, path: str = "/") -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.name}:{self.port}{path}"

    @property
    def bodies(self) -> list[Any]:
        return [received.json for received in self.requests]

    def fail(self, times: int, status: int = 500) -> None:
        """The next requests are refused; after that it goes on as before."""
        self.next(*[answers(status)] * times)

    def next(self, *behaviours: Behaviour) -> None:
        """First these ways, then as before."""
        with self._lock:
            self.behaviours[:0] = behaviours

    def always(self, behaviour: Behaviour) -> None:
        with self._lock:
            self.behaviours[:] = [behaviour]

    def received(self, request: Received) -> Behaviour:
        with self._lock:
            self.requests.append(request)
            return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]


# -- ways to behave ---------------------------------------------------------------------------------------------------


def answers(status: int = 200, body: bytes | str | Any = b"", **headers: str) -> Behaviour:
    """With any status and body. What is neither bytes nor text goes as JSON. `Retry_After="3"` is a header."""
    raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.reply(status, raw, named)


def redirects(to: str, status: int = 302) -> Behaviour:
    return answers(status, Location=to)


def late(seconds: float, then: Behaviour | None = None) -> Behaviour:
    """Answers only after so many seconds, or when the endpoint is released."""

    def behave(handler: Handler) -> None:
        handler.server.endpoint.release.wait(seconds)
        (then or answers(200))(handler)

    return behave


def hangs(handler: Handler) -> None:
    """Says nothing until the endpoint is released."""
    handler.server.endpoint.release.wait(60)
    handler.close_connection = True


def drops(handler: Handler) -> None:
    """Has read the request, and closes the connection without a word."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def breaks_off(status: int = 200) -> Behaviour:
    """Closes the connection in the middle of the body."""

    def behave(handler: Handler) -> None:
        handler.reply(status, b"the begin", {"Content-Length": "1000"})
        handler.close_connection = True

    return behave


def drips(status: int = 200) -> Behaviour:
    """A byte now and then, for ever: no single wait is long."""

    def behave(handler: Handler) -> None:
        handler.reply(status, b"", {"Content-Length": "1000000"})
        while not handler.server.endpoint.release.wait(0.01):
            handler.wfile.write(b" ")
        handler.close_connection = True

    return behave


def floods(status: int = 200) -> Behaviour:
    """A body without end, and without a length."""

    def behave(handler: Handler) -> None:
        handler.send_response_only(status)
        handler.send_header("Connection", "close")
        handler.end_headers()
        while not handler.server.endpoint.release.is_set():
            handler.wfile.write(b" " * 65536)
        handler.close_connection = True

    return behave


def writes(raw: bytes) -> Behaviour:
    """These very bytes, and then the end of the connection."""

    def behave(handler: Handler) -> None:
        handler.wfile.write(raw)
        handler.close_connection = True

    return behave


# -- TLS --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """A throw-away one, signed by itself."""

    pem: str
    key: str

    def serving(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "both.pem"
            file.write_text(self.key + self.pem)
            context.load_cert_chain(file)
        return context

    def trusting(self) -> ssl.SSLContext:
        """For a client that trusts this one and no other."""
        return ssl.create_default_context(cadata=self.pem)


def certificate(*names: str) -> Certificate:
    """For these host names and addresses. Skips the test where nothing can make one."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "holdfast test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(made.public_bytes(serialization.Encoding.PEM).decode(), secret.decode())


def _alternative(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)

"""A real HTTP server on the loopback that answers like a model's endpoint, well or badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        behave = self.server.received(self.path, dict(self.headers), json.loads(body))
        try:
            behave(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the other side had enough

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    def received(self, path: str, headers: dict[str, str], body: Any) -> Behaviour:
        model = self.model
        with model.lock:
            model.requests.append(body)
            model.headers.append(headers)
            model.paths.append(path)
            return model.behaviours.pop(0) if len(model.behaviours) > 1 else model.behaviours[0]

    def handle_error(self, *_: Any) -> None:
        pass


class ModelServer:
    """Behaves in the given ways, one request after the other; the last way stays."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours)
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.lock = threading.Lock()
        self.release = threading.Event()

    def __enter__(self) -> Self:
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.model = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


# -- ways to behave ---------------------------------------------------------------------------------------------------


def completion(content: Any, tokens: int | None = 100, **choice: Any) -> bytes:
    usage = {} if tokens is None else {"usage": {"total_tokens": tokens, "prompt_tokens": 1}}
    message = {"role": "assistant", "content": content}
    return json.dumps({"id": "x", "choices": [{"index": 0, "message": message, **choice}], **usage}).encode()


def entries(*contents: str, sources: list[str] | None = None) -> str:
    return json.dumps({"entries": [{"content": content, "sources": sources or []} for content in contents]})


def says(content: Any, tokens: int | None = 100, **choice: Any) -> Behaviour:
    return lambda handler: handler.reply(200, completion(content, tokens, **choice), Content_Type="application/json")


def answers(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    return lambda handler: handler.reply(status, body, **headers)


def drops(handler: Handler) -> None:
    """Closes the connection without a word."""
    handler.close_connection = True
    handler.connection.shutdown(2)


def breaks_off(handler: Handler) -> None:
    """Closes it in the middle of the answer."""
    handler.send_response_only(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def hangs(handler: Handler) -> None:
    """Says nothing until the test is over."""
    handler.server.model.release.wait(60)
    handler.close_connection = True


def drips(handler: Handler) -> None:
    """Sends a byte now and then, for ever: no single wait is long."""
    handler.send_response_only(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not handler.server.model.release.wait(0.01):
        handler.wfile.write(b" ")
        handler.wfile.flush()
    handler.close_connection = True


def floods(handler: Handler) -> None:
    """An answer without end."""
    handler.send_response_only(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    while not handler.server.model.release.is_set():
        handler.wfile.write(b" " * 65536)
    handler.close_connection = True

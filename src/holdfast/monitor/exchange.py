"""One request and its answer over one connection: bounded in size, and told without secrets."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.monitor.wire import Broken, Wire

if TYPE_CHECKING:
    from holdfast.monitor.outgoing import Place

_OURS = {"host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "trailer", "expect"}
_METHOD = re.compile(r"[A-Z]{1,20}")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"([\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?)?")


class Exchange:
    """What is sent and what came back so far: it is kept here when the reading is cut short."""

    def __init__(
        self, place: Place, method: str, headers: Mapping[str, str], content: bytes | str | None, most: int
    ) -> None:
        if not isinstance(method, str) or not _METHOD.fullmatch(method) or method == "CONNECT":
            raise ConfigurationError("pass an HTTP method such as POST")
        self._place = place
        self._method = method
        self._content = content.encode() if isinstance(content, str) else content or b""
        self._headers = self._outgoing(headers)
        self._most = most
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.trouble = ""

    def _outgoing(self, given: Mapping[str, str]) -> list[tuple[str, str]]:
        # Compression is declined, because a small answer could become a huge one.
        headers = {"host": self._place.authority, "user-agent": "holdfast", "accept": "*/*"}
        headers["accept-encoding"] = "identity"
        for name, value in given.items():
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ConfigurationError("pass headers whose names and values are printable ASCII")
            if name.lower() in _OURS:
                raise ConfigurationError(f"remove the header {name.lower()}: it is made here")
            headers[name.lower()] = value
        if self._content or self._method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(self._content))
        return list(headers.items())

    async def over(self, wire: Wire) -> bool:
        """Answers whether another request can follow on this connection. What went wrong is told in `trouble`: an
        exception of h11 may quote what was sent, so it stays here."""
        import h11

        try:
            self._send(wire, h11)
            return await self._receive(wire, h11)
        except Broken as error:
            self.trouble = str(error)
        except zlib.error:
            self.trouble = "its answer cannot be unpacked"
        except h11.ProtocolError:
            self.trouble = "its answer is no HTTP, or breaks off"
        return False

    def _send(self, wire: Wire, h11: Any) -> None:
        """All in one write."""
        http = wire.http
        parts = [http.send(h11.Request(method=self._method, target=self._place.target, headers=self._headers))]
        if self._content:
            parts.append(http.send(h11.Data(data=self._content)))
        parts.append(http.send(h11.EndOfMessage()))
        wire.put(b"".join(part for part in parts if part))

    async def _receive(self, wire: Wire, h11: Any) -> bool:
        http = wire.http
        unzip = None
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = await wire.take()
                if not data and not self.status:
                    raise Broken("it closed the connection without an answer")
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                self._begin(event)
                unzip = self._unzip()
            elif isinstance(event, h11.Data):
                self._add(event.data, unzip)
            elif isinstance(event, h11.EndOfMessage):
                break
            if self.trouble:
                return False
        if http.our_state is not h11.DONE or http.their_state is not h11.DONE or http.trailing_data[0]:
            return False
        http.start_next_cycle()
        return True

    def _begin(self, response: Any) -> None:
        for name, value in response.headers:  # in lower case
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self.status = response.status_code
        announced = self.headers.get("content-length", "0")
        if self._method != "HEAD" and announced.isdecimal() and int(announced) > self._most:
            self._too_large()

    def _unzip(self) -> Any:
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            return zlib.decompressobj(47)  # finds out which of them
        if encoding not in ("", "identity"):
            self.trouble = "its answer is compressed in a way that was not asked for"
        return None

    def _add(self, chunk: bytes, unzip: Any) -> None:
        self.body += chunk if unzip is None else unzip.decompress(chunk, self._most + 1 - len(self.body))
        if len(self.body) > self._most:
            del self.body[self._most :]
            self._too_large()

    def _too_large(self) -> None:
        self.trouble = f"its answer has more than {self._most} bytes"

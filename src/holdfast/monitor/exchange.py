"""One request and its answer, over a pool of connections: bounded in size, and told without secrets."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    import httpcore

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
        if not isinstance(method, str) or not _METHOD.fullmatch(method):
            raise ConfigurationError("pass an HTTP method in capital letters")
        self._place = place
        self._method = method
        self._content = content.encode() if isinstance(content, str) else content
        self._headers = self._outgoing(headers)
        self._most = most
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.trouble = ""

    def _outgoing(self, given: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        # Compression is declined, because a small answer could become a huge one.
        headers = {
            "host": self._place.authority,
            "accept": "*/*",
            "accept-encoding": "identity",
            "user-agent": "holdfast",
        }
        for name, value in given.items():
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ConfigurationError("pass headers whose names and values are printable ASCII")
            if name.lower() in _OURS:
                raise ConfigurationError(f"remove the header {name.lower()}: it is made here")
            headers[name.lower()] = value
        if self._content is not None or self._method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(self._content or b""))
        return [(name.encode(), value.encode()) for name, value in headers.items()]

    async def over(self, pool: httpcore.AsyncConnectionPool, seconds: float) -> None:
        """What goes wrong is told in `trouble`: an exception of httpcore may quote what was sent, so it stays here."""
        import httpcore

        place = self._place
        url = httpcore.URL(
            scheme=place.scheme.encode(), host=place.host.encode(), port=place.port, target=place.target.encode()
        )
        request = httpcore.Request(
            self._method, url, headers=self._headers, content=self._content,
            extensions={"timeout": {"connect": seconds}},
        )  # fmt: skip
        try:
            response = await pool.handle_async_request(request)
            try:
                self._begin(response)
                await self._read(response)
            finally:
                await response.aclose()
        except httpcore.ConnectError as error:
            self.trouble = str(error)  # written by Pinned
        except zlib.error:
            self.trouble = "its answer cannot be unpacked"
        except httpcore.RemoteProtocolError:
            self.trouble = "it closed the connection, or its answer is no HTTP"
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            self.trouble = f"the connection failed ({type(error).__name__})"

    def _begin(self, response: httpcore.Response) -> None:
        for name, value in response.headers:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self.status = response.status

    async def _read(self, response: httpcore.Response) -> None:
        announced = self.headers.get("content-length", "0")
        if self._method != "HEAD" and announced.isdecimal() and self._too_large(int(announced)):
            return
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip", "deflate", ""):
            self.trouble = "it answers compressed in a way that was not asked for"
            return
        unzip = None if encoding in ("identity", "") else zlib.decompressobj(47)
        async for chunk in response.aiter_stream():
            self.body += chunk if unzip is None else unzip.decompress(chunk, self._most + 1 - len(self.body))
            if self._too_large(len(self.body)):
                return

    def _too_large(self, size: int) -> bool:
        if size > self._most:
            self.trouble = f"its answer has more than {self._most} bytes"
            del self.body[self._most :]
        return size > self._most

"""Connections for httpcore that go to given addresses only. It never asks a resolver, so nothing can change in between.

Needs the extra `monitor`: imported where it is used.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore

_HIGH_WATER = 256 * 1024
_MOST_ADDRESSES = 8


class Pinned(httpcore.AsyncNetworkBackend):
    """Connects to the first of its addresses that answers, whatever name it is asked for."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)[:_MOST_ADDRESSES]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Each address gets its share of the time, so that a silent one leaves some for the next."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (60.0 if timeout is None else timeout)
        trouble = "there is no address"
        for tried, address in enumerate(self.addresses):
            share = (until - loop.time()) / (len(self.addresses) - tried)
            try:
                async with asyncio.timeout(share):
                    _, wire = await loop.create_connection(Wire, address, port)
                return wire.stream()
            except TimeoutError:
                trouble = "no connection in time"
            except OSError as error:
                trouble = os.strerror(error.errno).lower() if error.errno else "it cannot be reached"
        raise httpcore.ConnectError(trouble)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Wire(asyncio.Protocol):
    """Bytes of one connection. Reading pauses while nobody takes what has come."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.ended = False
        self.received = bytearray()
        self._lost = asyncio.get_running_loop().create_future()
        self._news: asyncio.Future[None] | None = None
        self._full: asyncio.Future[None] | None = None

    def stream(self) -> Stream:
        return Stream(self)

    # -- what the loop tells --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) > _HIGH_WATER:
            self.transport.pause_reading()
        self._tell()

    def eof_received(self) -> None:
        self.ended = True
        self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._tell()
        self.resume_writing()
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # -- what the stream asks --

    async def take(self, most: int) -> bytes:
        """Empty at the end."""
        while not self.received and not self.ended:
            self._news = asyncio.get_running_loop().create_future()
            try:
                await self._news
            finally:
                self._news = None
        taken = bytes(self.received[:most])
        del self.received[:most]
        if not self.ended and len(self.received) <= _HIGH_WATER:
            self.transport.resume_reading()
        return taken

    async def put(self, data: bytes) -> None:
        if self.transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self.transport.write(data)
        if self._full is not None:
            await self._full

    async def end(self) -> None:
        """At once, without the farewell of TLS: a silent peer would keep it open."""
        self.transport.abort()
        await asyncio.shield(self._lost)


class Stream(httpcore.AsyncNetworkStream):
    """What httpcore reads and writes. Its time-outs are not used: one deadline holds for the whole request."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._wire.take(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            await self._wire.put(buffer)

    async def aclose(self) -> None:
        await self._wire.end()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        wire, loop = self._wire, asyncio.get_running_loop()
        trouble = ""
        try:
            wire.transport = await loop.start_tls(
                wire.transport, wire, ssl_context, server_hostname=server_hostname, ssl_handshake_timeout=timeout
            )
        except ssl.SSLCertVerificationError as error:
            trouble = f"its certificate is not trusted ({error.verify_message})"
        except (OSError, ssl.SSLError):
            trouble = "TLS failed"
        except BaseException:
            wire.transport.abort()
            raise
        if trouble or wire.transport is None:
            await wire.end()
            raise httpcore.ConnectError(trouble or "it closed the connection")
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # of a connection at rest: then it is at its end, or says what nobody asked
            return self._wire.ended or bool(self._wire.received) or self._wire.transport.is_closing()
        if info == "ssl_object":
            return self._wire.transport.get_extra_info("ssl_object")
        return None

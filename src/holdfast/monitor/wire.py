"""One connection to an address that was checked. It never asks a resolver, so nothing can change in between."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from typing import Any

_HIGH_WATER = 256 * 1024
_MOST_ADDRESSES = 8


class Broken(Exception):
    """Nothing more comes over this connection. The text says why, and is fit to be shown."""


class Wire(asyncio.Protocol):
    """Bytes that come and go. Reading pauses while nobody takes what has come."""

    def __init__(self) -> None:
        import h11

        # Headers of an answer may take so much, and no more.
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=65_536)
        self.resting_since = 0.0
        self._transport: Any = None
        self._ended = False
        self._paused = False
        self._received = bytearray()
        self._news: asyncio.Future[None] | None = None

    # -- what the loop tells --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._tell()

    def eof_received(self) -> None:
        self._ended = True
        self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # -- what a request does --

    def put(self, data: bytes) -> None:
        """Does not wait until it is gone: who is sent much may answer, and close, before having read it all."""
        if self._ended:
            raise Broken("it closed the connection")
        self._transport.write(data)

    async def take(self) -> bytes:
        """What has come; empty at the end."""
        while not self._received and not self._ended:
            self._news = asyncio.get_running_loop().create_future()
            try:
                await self._news
            finally:
                self._news = None
        taken = bytes(self._received)
        self._received.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return taken

    def quiet(self) -> bool:
        """Can the next request go over it? At rest, the other side has nothing to say but that it ends."""
        return not self._ended and not self._received and not self._transport.is_closing()

    def end(self) -> None:
        """At once, without the farewell of TLS: a silent peer would keep it open."""
        if self._transport is not None:
            self._transport.abort()


async def connect(addresses: Sequence[str], port: int, seconds: float, tls: ssl.SSLContext | None, name: str) -> Wire:
    """To the first address that answers, whatever it is the address of; TLS is for `name`. Raises Broken.

    Each address gets its share of the time, so that a silent one leaves some for the next."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    trouble = ""
    addresses = addresses[:_MOST_ADDRESSES]
    for tried, address in enumerate(addresses):
        try:
            async with asyncio.timeout((until - loop.time()) / (len(addresses) - tried)):
                _, wire = await loop.create_connection(
                    Wire, address, port, ssl=tls, server_hostname=name if tls is not None else None
                )
            return wire
        except TimeoutError:
            trouble = "no connection in time"
        except ssl.SSLCertVerificationError as error:
            trouble = f"its certificate is not trusted: {error.verify_message}"
        except ssl.SSLError:
            trouble = "it does not speak TLS as it should"
        except OSError as error:
            trouble = os.strerror(error.errno).lower() if error.errno else "it cannot be reached"
    raise Broken(trouble)

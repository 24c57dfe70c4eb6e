"""HTTP to places that others typed in: bounded in time and size, only to addresses that were checked, no redirects."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, urlsplit

from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.monitor.addresses import Allowed, closed, is_name, literal, resolve
from holdfast.monitor.exchange import Exchange
from holdfast.monitor.record import DeliveryFailed
from holdfast.monitor.wire import Broken, Wire, connect

_RESOLVED_FOR = 30.0
_IDLE = 4.0
"""Seconds that an unused connection is kept. Many servers close theirs after 5, and might do so as we send."""
_PLACES = 256
_CONNECTIONS = 32
_CLOSED = "the connections were closed here meanwhile"
_BAD = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `headers` have lower-case names; `url` is the one asked for, as redirects are not followed."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes. It prints without path and query: they may hold secrets."""

    scheme: str
    host: str
    port: int
    target: str = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"


def parse(url: str) -> Place:
    """Raises ConfigurationError for what is no plain http or https URL. The message does not repeat it."""
    if not isinstance(url, str) or not url or _BAD.search(url):
        raise ConfigurationError("pass a URL such as https://host/path, without spaces, control characters and \\")
    try:
        parts = urlsplit(url)
        scheme, port = parts.scheme, parts.port
    except ValueError:
        scheme = "unreadable"  # the error is not raised from this one, which may quote the URL
    if scheme not in ("http", "https"):
        raise ConfigurationError("pass a URL such as https://host:port/path")
    if "@" in parts.netloc:
        raise ConfigurationError("remove user and password from the URL; send them in a header")
    host = _host(parts.hostname or "")
    if port == 0:
        raise ConfigurationError("pass a port between 1 and 65535 in the URL")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?") if parts.query else ""
    return Place(scheme, host, port or (443 if scheme == "https" else 80), path + query)


def _host(host: str) -> str:
    host = host.lower()
    if not host.isascii():
        host = _in_ascii(host)
    host = host.removesuffix(".")
    address = literal(host)
    if ":" in host:
        if address is None or "%" in host:
            raise ConfigurationError("pass an IPv6 address without a zone in the URL, such as https://[2001:db8::1]/")
        return str(address)
    if address is None and not is_name(host):
        raise ConfigurationError("pass a URL with a host name of letters, digits, dots and hyphens")
    return host


def _in_ascii(host: str) -> str:
    try:
        import idna  # comes with httpx

        return idna.encode(host, uts46=True).decode("ascii").lower()
    except (ImportError, UnicodeError):
        raise ConfigurationError("pass the host name in its ASCII form, which begins with xn--") from None


class Outgoing:
    """Sends requests to URLs that are not trusted.

    Only https, and only to public addresses: a name is resolved, each of its addresses is checked, and the connection
    goes to one of those that were checked. Any port. Redirects are not followed, cookies not kept, proxies and .netrc
    of the environment not used. `allow` names what may be private and without TLS: host names, `host:port`, addresses,
    networks (a name is fine if all of its addresses are inside). A public address that belongs to a neighbour or to
    the machine itself is not known to be one: close that way in the network.

    `verify` is an SSLContext where the usual authorities are not the right ones. Belongs to one event loop. Use it
    with `async with`, or call `close`.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        timeout: float = 10.0,
        max_bytes: int = 1_048_576,
        verify: bool | ssl.SSLContext = True,
    ) -> None:
        try:
            import h11  # noqa: F401 - needed at the first request, and better told now
            import httpx  # noqa: F401
        except ImportError:
            raise ConfigurationError("pip install '.[monitor]' in Holdfast's clone to send over HTTP") from None
        if verify is not True and not isinstance(verify, ssl.SSLContext):
            raise ConfigurationError("pass verify as an ssl.SSLContext that trusts your own authority, or leave it out")
        self._allowed = Allowed(allow)
        self._timeout = check_seconds("timeout", timeout, 0.01, 3600)
        self._max_bytes = check_count("max_bytes", max_bytes, 1, 2**31)
        self._tls = verify if isinstance(verify, ssl.SSLContext) else None
        self._ways: OrderedDict[Place, Way] = OrderedDict()
        self._left: list[Way] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"Outgoing(timeout={self._timeout:g}, max_bytes={self._max_bytes})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Requests under way fail. Again is fine."""
        self._closed = True
        for way in (*self._ways.values(), *self._left):
            way.close(also_busy=True)
        self._ways.clear()
        self._left.clear()
        await asyncio.sleep(0)  # sockets are closed in the next round of the loop

    def check(self, url: str) -> Place:
        """Raises ConfigurationError for a URL that `request` could never ask for. No name is resolved."""
        place = parse(url)
        if self._allowed.place(place.host, place.port):
            return place
        address = literal(place.host)
        inside = self._allowed.networks if address is None else self._allowed.address(address)
        if place.scheme == "http" and not inside:
            raise ConfigurationError(f"use https for {place.authority}, or put the host into allow")
        if address is not None and not inside and (word := closed(address)):
            raise ConfigurationError(f"put {address} into allow if it may be reached: this address is {word}")
        return place

    @property
    def timeout(self) -> float:
        return self._timeout

    async def check_host(self, host: str, port: int = 443) -> None:
        """For what connects by itself: raises DeliveryFailed if a name leads now to an address that is refused.

        No promise: the name may lead elsewhere a moment later. A name without an address is left to the other."""
        place = Place("https", _host(host.strip("[]")), port, "/")
        if self._allowed.place(place.host, port):
            return
        found: Sequence[str] = ()
        with suppress(OSError, UnicodeError):
            found = (place.host,) if literal(place.host) is not None else await resolve(place.host, port)
        for address in found:
            self._check_resolved(place, address)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | str | None = None,
        timeout: float | None = None,
        enough: int | None = None,
    ) -> Answer:
        """Send one request and read the answer, whatever its status. Nothing is sent twice.

        All of it ends after `timeout` seconds, however slowly bytes arrive. An answer of more than `max_bytes` fails.
        With `enough` the status is what counts: reading stops after so many bytes of the body, and a body that breaks
        off or comes too late is no failure. Raises DeliveryFailed if there was no answer, with `retry=False` if the
        address is refused; ConfigurationError for what is no usable URL or header. Neither shows path, query or
        headers. Cancelled or out of time, the connection is closed, and the request may have been executed."""
        if self._closed:
            raise ConfigurationError("open another Outgoing: this one is closed")
        seconds = self._timeout if timeout is None else check_seconds("timeout", timeout, 0.01, 3600)
        place = self.check(url)
        exchange = Exchange(place, method, headers or {}, content, enough or self._max_bytes)
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                way = await self._way(place)
                await way.carry(exchange, seconds)
        except TimeoutError:
            exchange.trouble = f"no answer within {seconds:.3g} s"
        if exchange.status and (enough is not None or not exchange.trouble):
            return Answer(exchange.status, exchange.headers, bytes(exchange.body), url)
        raise DeliveryFailed(
            f"check {place}: {exchange.trouble}", operation="request", elapsed=time.monotonic() - started
        )

    # -- ways: to one place, over addresses that were checked --

    async def _way(self, place: Place) -> Way:
        now = time.monotonic()
        way = self._ways.get(place)
        if way is None or now >= way.until:
            addresses = await self._checked(place)
            if self._closed:
                raise DeliveryFailed(f"send again: {_CLOSED}", operation="request")
            way = self._ways.get(place)  # somebody else may have been faster
            if way is None or set(way.addresses) != set(addresses):
                if way is not None:
                    self._leave(way)
                way = self._ways[place] = Way(place, addresses, self._context(place))
            way.until = now + _RESOLVED_FOR
        way.used = now
        self._ways.move_to_end(place)
        self._tidy(now)
        return way

    def _tidy(self, now: float) -> None:
        """Close what was not used for long, and the oldest of too many. The order is that of use."""
        while True:
            place, way = next(iter(self._ways.items()))
            if len(self._ways) <= _PLACES and now - way.used < _RESOLVED_FOR:
                return
            del self._ways[place]
            self._leave(way)

    def _leave(self, way: Way) -> None:
        way.close()
        self._left = [one for one in (*self._left, way) if one.busy]

    async def _checked(self, place: Place) -> tuple[str, ...]:
        """All addresses, or DeliveryFailed: one that is refused refuses the name."""
        if literal(place.host) is not None:
            return (place.host,)
        try:
            found = tuple(await resolve(place.host, place.port))
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise DeliveryFailed(f"check the host name {place.host}: it has no address now", operation="request")
        if not self._allowed.place(place.host, place.port):
            for address in found:
                self._check_resolved(place, address)
        return found

    def _check_resolved(self, place: Place, found: str) -> None:
        address = literal(found)
        if address is not None and self._allowed.address(address):
            return
        word = "not readable" if address is None else closed(address)
        if word:
            raise DeliveryFailed(
                f"put {place.host} into allow if it may be reached: it resolves to {found}, which is {word}",
                retry=False, operation="request",
            )  # fmt: skip
        if place.scheme == "http":
            raise DeliveryFailed(
                f"use https for {place.host}: it resolves to {found}, which is not in allow",
                retry=False, operation="request",
            )  # fmt: skip

    def _context(self, place: Place) -> ssl.SSLContext | None:
        if place.scheme == "http":
            return None
        if self._tls is None:
            import httpx

            self._tls = httpx.create_ssl_context(trust_env=False)
        return self._tls


class Way:
    """Connections to one place, over addresses that were checked.

    There is one for each name: a TLS connection is for the name that its certificate was checked for, whoever else
    may live at the same address."""

    def __init__(self, place: Place, addresses: tuple[str, ...], tls: ssl.SSLContext | None) -> None:
        self.addresses = addresses
        self.until = self.used = 0.0
        self._place = place
        self._tls = tls
        self._resting: deque[Wire] = deque()
        self.busy: set[Wire] = set()
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._closed = self._ended = False

    async def carry(self, exchange: Exchange, seconds: float) -> None:
        """What goes wrong is told in the exchange. Cancelled, the connection ends."""
        async with self._room:
            try:
                wire = self._rested() or await connect(
                    self.addresses, self._place.port, seconds, self._tls, self._place.host
                )
            except Broken as error:
                exchange.trouble = str(error)
                return
            if self._ended:
                wire.end()
                exchange.trouble = _CLOSED
                return
            self.busy.add(wire)
            again = False
            try:
                again = await exchange.over(wire)
            finally:
                self.busy.discard(wire)
                if again and not self._closed:
                    wire.resting_since = time.monotonic()
                    self._resting.append(wire)
                else:
                    wire.end()

    def _rested(self) -> Wire | None:
        """The one that was used last, as it is the likeliest to be still open."""
        oldest = time.monotonic() - _IDLE
        while self._resting and self._resting[0].resting_since < oldest:
            self._resting.popleft().end()
        while self._resting:
            wire = self._resting.pop()
            if wire.quiet():
                return wire
            wire.end()
        return None

    def close(self, *, also_busy: bool = False) -> None:
        """Connections at rest end now, the others when they are done, or now too."""
        self._closed = True
        self._ended = also_busy
        for wire in (*self._resting, *(self.busy if also_busy else ())):
            wire.end()
        self._resting.clear()

"""What a URL asks for: one server, a Sentinel service, a Cluster, or the embedded server."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.connection import parse_url

from holdfast.errors import ConfigurationError

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379

_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]@/?#]+))(?::(?P<port>\d{1,5}))?")

EXAMPLES = (
    "embedded:  embedded:///var/lib/app  redis://host:6379/0  rediss://…  valkey://…  unix:///run/valkey.sock  "
    "redis+sentinel://h1,h2,h3/service  redis+cluster://h1,h2"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. `options` are redis-py connection options; secrets stay out of the repr."""

    kind: str
    """embedded | single | sentinel | cluster"""
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    tls: bool = False
    embedded: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    shown: str = ""
    """The URL without its password, for messages and logs."""

    def redact(self, text: str) -> str:
        """Somebody else's message, without our secrets: a server may echo what it was sent."""
        for name in ("password", "ssl_password"):
            secret = self.options.get(name)
            if secret:
                text = text.replace(str(secret), "***")
        return text


def hide_password(url: str) -> str:
    """The URL without credentials and options, however misspelt: nothing before the last `@`, nothing after a `?`."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        scheme, rest = "", url
    head, at, place = rest.rpartition("@")
    user = head.partition(":")[0] if at and colon and ":" in head and not set("/?#@") & set(head) else ""
    return f"{scheme}{colon}{(user + ':***@') if at else ''}{place.partition('?')[0]}"


def parse(url: str | None, environ: Mapping[str, str] | None = None) -> Target:
    """Read a URL, or `HOLDFAST_URL` where none is passed."""
    env = os.environ if environ is None else environ
    url = url or env.get("HOLDFAST_URL", "")
    if not url:
        raise ConfigurationError(
            "pass a URL to Holdfast(...) or set HOLDFAST_URL. There is no default: two processes that each started "
            f"a server of their own would coordinate nothing. One of: {EXAMPLES}"
        )
    scheme = url.partition(":")[0].lower()
    if scheme == "embedded":
        from holdfast.engine import embedded

        embedded.parse(url)
        return Target("embedded", embedded=url, shown=url)
    if scheme in ("redis", "rediss", "valkey", "valkeys", "unix"):
        return _single(url, scheme)
    if scheme in ("redis+sentinel", "rediss+sentinel", "valkey+sentinel", "valkeys+sentinel"):
        return _many(url, "sentinel", DEFAULT_SENTINEL_PORT)
    if scheme in ("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"):
        return _many(url, "cluster", DEFAULT_PORT)
    raise ConfigurationError(f"pass a URL of a known kind, not {hide_password(url)!r}. One of: {EXAMPLES}")


def _options(url: str) -> dict[str, Any]:
    options: dict[str, Any] | None = None
    with contextlib.suppress(ValueError):
        options = dict(parse_url(url))  # type: ignore[no-untyped-call]
    if options is None:  # out here, so that it does not carry an error that may quote a part of the password
        raise ConfigurationError(
            f"mend the URL {hide_password(url)!r}: write special characters in the user or password as %XX, "
            "and the port and database as numbers"
        )
    options.pop("connection_class", None)
    return options


def _single(url: str, scheme: str) -> Target:
    plain = {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme) + url[len(scheme) :]
    shown = hide_password(url)
    options = _options(plain)
    path = urlsplit(plain).path.strip("/")
    if scheme != "unix" and path and not path.isdigit():
        raise ConfigurationError(f"mend the URL {shown!r}: a number after the host names the database")
    if scheme == "unix":
        if not options.get("path"):
            raise ConfigurationError(f"name the socket's path: unix:///run/valkey.sock, not {shown!r}")
        return Target("single", options=options, shown=shown)
    host, port = options.pop("host", "localhost"), options.pop("port", DEFAULT_PORT)
    return Target("single", ((host, int(port)),), tls=plain.startswith("rediss"), options=options, shown=shown)


def _many(url: str, kind: str, default_port: int) -> Target:
    """`redis+sentinel://user:password@h1:p1,h2/service?option=…`: urlsplit cannot read several ports, so by hand."""
    shown = hide_password(url)
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, tail = rest.partition("/")
    if "@" in tail or ("@" in query and "@" not in authority):
        raise ConfigurationError(f"write special characters in the user or password of {shown!r} as %XX")
    credentials, _, places = authority.rpartition("@")
    hosts = tuple(_host(place, default_port, shown) for place in places.split(",") if place)
    if not hosts:
        raise ConfigurationError(f"name at least one host in {shown!r}")
    tls = scheme.lower().startswith(("rediss", "valkeys"))
    parts = [unquote(part) for part in tail.split("/") if part]
    base = f"{'rediss' if tls else 'redis'}://{credentials + '@' if credentials else ''}x"
    service = ""
    if kind == "sentinel":
        if not parts:
            raise ConfigurationError(f"name the Sentinel service after the hosts: {shown}/myservice")
        service = parts.pop(0)
    path = f"/{parts[0]}" if parts else ""
    if parts and not parts[0].isdigit():
        raise ConfigurationError(f"write the database as a number: {shown!r} names none")
    options = _options(f"{base}{path}{'?' + query if query else ''}")
    if kind == "cluster" and options.get("db", 0) != 0:
        raise ConfigurationError(f"leave the database out of {shown!r}: a Cluster has database 0 only")
    options.pop("host", None)
    options.pop("port", None)
    return Target(kind, hosts, service=service, tls=tls, options=options, shown=shown)


def _host(place: str, default_port: int, shown: str) -> tuple[str, int]:
    match = _HOST.fullmatch(place)
    port = int(match["port"] or default_port) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigurationError(f"write hosts as host, host:port or [ipv6]:port: one in {shown!r} is none of these")
    return match["six"] or match["host"], port

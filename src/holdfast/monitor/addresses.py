"""Which addresses may be connected to. What others typed in must not reach into the network that this runs in."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from holdfast.engine.calling import in_thread
from holdfast.errors import ConfigurationError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")

# The tables are written out: what Python calls private differs between its versions.
_CLOSED_V4 = tuple(
    (ipaddress.IPv4Network(network), word)
    for network, word in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_CLOSED_V6 = tuple(
    (ipaddress.IPv6Network(network), word)
    for network, word in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),  # Teredo is in here
        ("2001:db8::/32", "reserved"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "reserved"),
    )
)
_OPEN_V6 = ipaddress.IPv6Network("2000::/3")
_EMBEDDING = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv6 addresses that stand for an IPv4 address: mapped ones, and those of NAT64, which DNS64 makes of any name."""


def meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for; else itself."""
    if isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _EMBEDDING):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def closed(address: Address) -> str:
    """Why this address is not one of the public internet; empty if it is."""
    address = meant(address)
    if isinstance(address, ipaddress.IPv4Address):
        return next((word for network, word in _CLOSED_V4 if address in network), "")
    word = next((word for network, word in _CLOSED_V6 if address in network), "")
    return word or ("" if address in _OPEN_V6 else "reserved")


def literal(host: str) -> Address | None:
    """The address, if the host is written as one in the usual way. `127.1` and `0x7f.1` are left to the resolver."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_name(host: str) -> bool:
    return len(host) <= 253 and _NAME.fullmatch(host) is not None


async def resolve(host: str, port: int) -> Sequence[str]:
    """Every address of a name, in the system's order. Raises OSError. Cancelled, its thread is left behind."""
    found = await in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Allowed:
    """Hosts that may be reached though they are private, and without TLS."""

    def __init__(self, entries: Sequence[str]) -> None:
        if isinstance(entries, str):
            raise ConfigurationError("pass allow as a list of hosts")
        self._places: set[tuple[str, int | None]] = set()
        self.networks: list[Network] = []
        for entry in entries:
            self._add(str(entry).strip().lower())

    def _add(self, entry: str) -> None:
        try:
            self.networks.append(ipaddress.ip_network(entry.strip("[]")))
            return
        except ValueError:
            pass
        host, colon, port = entry.rpartition(":")
        if not colon:
            host, port = entry, ""
        host = host.strip("[]").rstrip(".")
        known = is_name(host) or literal(host) is not None
        if not known or (colon and not (port.isdecimal() and 0 < int(port) < 65536)):
            raise ConfigurationError(
                f"pass allow entries such as 'intranet', 'intranet:8080', '10.1.2.3' or '10.0.0.0/8', not {entry!r}"
            )
        self._places.add((host, int(port) if port else None))

    def place(self, host: str, port: int) -> bool:
        """Is this host, as it is written, allowed?"""
        return (host, None) in self._places or (host, port) in self._places

    def address(self, address: Address) -> bool:
        """Is this address, or the one that it stands for, in an allowed network?"""
        return any(one in network for one in {address, meant(address)} for network in self.networks)

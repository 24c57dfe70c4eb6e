"""Is this server fit for what is promised? Asked once, when connecting."""

from __future__ import annotations

import re
from typing import Any

from hiredis import ReplyError

from holdfast.engine.core import Core
from holdfast.engine.flow import Address, Flow, NotSent, Refresh, ReplyLost, Send, Sleep, backoff
from holdfast.engine.limits import check_count
from holdfast.engine.resp import pack
from holdfast.errors import ConfigurationError, ServerError, Unavailable, UnsafeServer
from holdfast.events import ServerWarning

OLDEST = {"valkey": (7, 2), "redis": (7, 0)}


def command(core: Core, *words: str | bytes | int, node: Address | None = None) -> Flow[Any]:
    """A question that is safe to repeat, until it is answered or time is up."""
    started, attempt = core.clock(), 0
    until = started + core.settings.retry_for
    while True:
        try:
            reply = yield Send("locks.0", pack(*words), node=node)
            if not isinstance(reply, ReplyError) or not str(reply).startswith(("LOADING", "MOVED", "CLUSTERDOWN")):
                return reply
            problem: Exception = reply
        except (NotSent, ReplyLost) as error:
            problem = error
        if core.clock() >= until:
            raise Unavailable(
                f"check that the server at {core.target.shown} is up: {problem}",
                operation=str(words[0]).lower(), elapsed=core.clock() - started,
            ) from problem  # fmt: skip
        yield Refresh("first contact")
        yield Sleep(min(backoff(attempt), max(0.0, until - core.clock())))
        attempt += 1


def ask(core: Core, *words: str | bytes | int, node: int | None = None) -> Flow[Any]:
    """A question from outside. Raises ServerError for an error, as nobody here knows what it means."""
    if not words:
        raise ConfigurationError('pass a command and its words, as in ("CONFIG", "GET", "maxmemory")')
    address = None
    if node is not None:
        known = core.topology.addresses()
        check_count("node", node, 0, len(known) - 1)
        address = known[node] if core.target.kind == "cluster" else None
    reply = yield from command(core, *words, node=address)
    if isinstance(reply, ReplyError):
        raise ServerError(f"check the command: the server says {reply}", operation=str(words[0]).lower())
    return reply


def check_scripts(core: Core) -> Flow[dict[str, str]]:
    """What each server says of each script: the last complaint of any, or nothing."""
    said: dict[str, str] = {}
    nodes = core.topology.addresses() if core.target.kind == "cluster" else [None]
    for name in core.scripts.names():
        said[name] = ""
        for node in nodes:
            reply = yield from command(core, "SCRIPT", "LOAD", core.scripts.get(name).source, node=node)
            if isinstance(reply, ReplyError):
                said[name] = str(reply)
    return said


def check_server(core: Core) -> Flow[None]:
    """Refuse what would break promises; warn about what weakens them."""
    reply = yield from command(core, "INFO")
    if isinstance(reply, ReplyError):
        text = str(reply)
        if text.startswith(("NOAUTH", "WRONGPASS")):
            raise ConfigurationError(f"pass the right credentials in the URL: the server says {text}")
        if core.events:
            core.events.emit(ServerWarning(f"INFO is not allowed here, so the server was not checked: {text}"))
        return
    info = dict(re.findall(r"^([a-z_0-9]+):([^\r\n]*)", reply.decode("utf-8", "replace"), re.M))
    if not core.settings.check_server:
        return
    _check_version(info)
    _check_eviction(core, info)
    if core.events and info.get("aof_enabled") == "0":
        core.events.emit(
            ServerWarning("the append-only file is off: a restart forgets leases and may admit a second holder")
        )


def _check_version(info: dict[str, str]) -> None:
    kind = "valkey" if "valkey_version" in info else "redis"
    shown = info.get("valkey_version") or info.get("redis_version", "")
    version = tuple(int(part) for part in re.findall(r"\d+", shown)[:2])
    if version and version < OLDEST[kind]:
        oldest = ".".join(map(str, OLDEST[kind]))
        raise UnsafeServer(f"use {kind} {oldest} or newer (Valkey 7.2+, Redis 7.0+): this one is {shown}")


def _check_eviction(core: Core, info: dict[str, str]) -> None:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not core.settings.allow_eviction:
        raise UnsafeServer(
            "run  CONFIG SET maxmemory-policy noeviction  on the server, and put it in its configuration: with "
            f"{policy} it drops locks that are held when memory runs out. (allow_eviction=True accepts that.)"
        )

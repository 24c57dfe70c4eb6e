"""Checks of the server: round trip, version, persistence, memory, replicas, clock."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast import Holdfast
from holdfast.cli.clock import wall
from holdfast.cli.findings import Finding, note, ok, problem, warning
from holdfast.cli.output import size
from holdfast.cli.servers import Denied, Server, servers

PINGS = 9
SLOW, VERY_SLOW = 0.01, 0.05
"""Seconds of a round trip. Everything the fleet does is one or two of them."""
OLDEST = {"valkey": (7, 2), "redis": (7, 0)}
FULL, VERY_FULL = 0.8, 0.95
APART, FAR_APART = 1.0, 10.0
"""Seconds between two clocks. Ours decides nothing: it is what people compare logs by."""
Info = dict[str, str]


async def connection(hf: Holdfast) -> list[Finding]:
    """How long is a round trip?"""
    took = [await hf.ping() for _ in range(PINGS)]
    half = statistics.median(took)
    text = f"a round trip takes {half * 1000:.2f} ms, the longest of {PINGS} took {max(took) * 1000:.2f} ms"
    if half > VERY_SLOW:
        return [warning("connection", text, "run workers near the server, and look at its load: `holdfast bench`")]
    if half > SLOW:
        return [note("connection", text, "run workers near the server: `holdfast bench` shows what that gives")]
    return [ok("connection", text)]


async def server(hf: Holdfast) -> list[Finding]:
    """Everything that INFO tells, of each server."""
    found: list[Finding] = []
    for one in await servers(hf):
        try:
            info = await one.info()
        except Denied:
            fix = "ACL SETUSER app +info"
            return [note("server", "INFO is not allowed for this user, so the server was not checked", fix)]
        found += version(one, info)
        for check in (persistence, memory, replicas):
            found += await check(one, info)
    return found


def version(at: Server, info: Info) -> list[Finding]:
    kind = "valkey" if "valkey_version" in info else "redis"
    shown = info.get("valkey_version") or info.get("redis_version", "")
    number = tuple(int(part) for part in re.findall(r"\d+", shown)[:2])
    if number and number < OLDEST[kind]:
        return [
            problem("version", f"{kind} {shown} is too old{at.at}", "use Valkey 7.2 or newer, or Redis 7.0 or newer")
        ]
    return [ok("version", f"{kind} {shown}{at.at}")]


async def persistence(at: Server, info: Info) -> list[Finding]:
    found = []
    if info.get("aof_enabled") == "0":
        text = f"the append-only file is off{at.at}: a restart forgets leases, messages and sessions"
        found.append(warning("persistence", text, "CONFIG SET appendonly yes, and in the server's configuration"))
    elif (sync := await at.config("appendfsync")) == "no":
        text = (
            f"the server never waits for the disk{at.at}: a crash of the machine loses what the kernel has not written"
        )
        found.append(warning("persistence", text, "CONFIG SET appendfsync everysec, and in the server's configuration"))
    elif sync == "everysec":
        text = f"appendfsync is everysec{at.at}: a crash of the machine loses up to about a second of messages"
        found.append(note("persistence", text, "CONFIG SET appendfsync always, if that is too much"))
    for name, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if info.get(name, "ok") != "ok":
            text = f"the last write of the {what} failed{at.at}: the server may refuse writes"
            found.append(problem("persistence", text, "look at the server's log, and at the space on its disk: df -h"))
    return found or [ok("persistence", f"the append-only file is on{at.at}")]


async def memory(at: Server, info: Info) -> list[Finding]:
    found = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        text = f"maxmemory-policy is {policy}{at.at}: out of memory, the server drops locks that are held"
        fix = "CONFIG SET maxmemory-policy noeviction, and in the server's configuration"
        found.append(problem("eviction", text, fix))
    if int(info.get("evicted_keys", "0")):
        text = f"the server has dropped {info['evicted_keys']} keys to make room since it started{at.at}"
        found.append(warning("eviction", text, "CONFIG SET maxmemory-policy noeviction, and give it memory"))
    used, most = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    limit = most or int(info.get("total_system_memory", "0"))
    text = f"{size(used)} of {size(limit)} used{at.at}" if limit else f"{size(used)} used{at.at}"
    part = used / limit if limit else 0.0
    if part > FULL:
        fix = "give it memory (CONFIG SET maxmemory), or see who fills it: `holdfast buffers`, `holdfast dead`"
        found.append((problem if part > VERY_FULL else warning)("memory", text, fix))
    elif not most:
        text += "; maxmemory is not set, so the machine's end is the server's"
        found.append(note("memory", text, "CONFIG SET maxmemory to three quarters of the machine's memory"))
    return found or [ok("memory", text)]


async def replicas(at: Server, info: Info) -> list[Finding]:
    if info.get("role", "master") != "master":
        text = f"this is a replica{at.at}: it refuses writes"
        return [problem("replicas", text, "put the primary's address into the URL, or redis+sentinel://")]
    count = int(info.get("connected_slaves", "0"))
    found: list[Finding] = []
    for number in range(count):
        fields = dict(part.partition("=")[::2] for part in info.get(f"slave{number}", "").split(","))
        if fields.get("state") != "online" or int(fields.get("lag", "0") or 0) > 10:
            how = f"{fields.get('state', '?')}, {fields.get('lag', '?')} s behind"
            text = f"replica {fields.get('ip', '?')} is {how}{at.at}"
            found.append(warning("replicas", text, "look at that replica's log and at the network"))
    if count and await at.config("min-replicas-to-write") == "0":
        text = f"a primary that has lost its replicas goes on acknowledging{at.at}: a failover discards that"
        fix = "CONFIG SET min-replicas-to-write 1, CONFIG SET min-replicas-max-lag 2 (with two replicas or more)"
        found.append(note("replicas", text, fix))
    return found or [ok("replicas", f"{count} replica(s){at.at}")]


async def clock(hf: Holdfast) -> list[Finding]:
    """Is the server's clock this machine's, and are those of several servers the same?"""
    offsets = [await _offset(one.time) for one in await servers(hf)]
    found = []
    worst = max(offsets, key=lambda one: abs(one[0]))
    text = f"the server's clock is {abs(worst[0]):.2f} s {'ahead of' if worst[0] > 0 else 'behind'} this machine's"
    fix = "let both be synchronised: timedatectl set-ntp true; never set the server's clock by hand"
    if abs(worst[0]) - worst[1] > FAR_APART:
        found.append(warning("clock", text, fix))
    elif abs(worst[0]) - worst[1] > APART:
        found.append(note("clock", text, fix))
    spread = max(offsets)[0] - min(offsets)[0]
    if spread - worst[1] > APART:
        text = f"the clocks of the servers are {spread:.2f} s apart: after a failover leases end early or late"
        found.append(warning("clock", text, fix))
    return found or [ok("clock", text)]


async def _offset(ask: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Seconds that it is ahead, and how far off that may be: of the quickest of a few answers."""
    best: Sequence[float] = ()
    for _ in range(3):
        ours, began = wall(), time.monotonic()
        theirs = await ask()
        took = time.monotonic() - began
        if not best or took / 2 < best[1]:
            best = (theirs - ours - took / 2, took / 2)
    return best[0], best[1]

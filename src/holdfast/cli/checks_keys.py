"""Checks of what stands on the server: scripts, rights, keys without an end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.progress import Progress

from holdfast import Holdfast, HoldfastError, Unavailable
from holdfast.cli.findings import Finding, note, ok, problem, warning
from holdfast.cli.output import plain
from holdfast.cli.servers import Denied, Server, servers

PAGE = 1000
EXAMPLES = 3
NEEDED = (
    "evalsha", "script|load", "info", "ping", "client|setname", "ssubscribe", "sunsubscribe", "spublish",
    "pubsub|shardnumsub", "time", "hset", "hsetnx", "hget", "hmget", "hgetall", "hdel", "hexists", "hincrby", "hkeys",
    "hlen", "hstrlen", "lindex", "llen", "lpop", "lpush", "lrange", "lrem", "lset", "ltrim", "rpop", "rpush", "zadd",
    "zrem", "zscore", "zrange", "zrangebyscore", "zremrangebyrank", "zremrangebyscore", "zrevrange",
    "zrevrangebyscore", "zrank", "zcard", "zcount", "zscan", "zpopmax", "xadd", "xdel", "xlen", "xrange", "xrevrange",
    "xtrim", "get", "set", "setrange", "exists", "del", "unlink", "pexpire", "pttl",
)  # fmt: skip
"""What every user of Holdfast must be allowed; docs/how-to/operate.md has the line, and a test compares them."""


async def scripts(hf: Holdfast) -> list[Finding]:
    """Does the server take every script, and does one of them work?"""
    failed = {name: error for name, error in (await hf.check_scripts()).items() if error}
    if failed:
        name, error = next(iter(failed.items()))
        text = f"{len(failed)} scripts are refused, such as {name}: {error}"
        return [problem("scripts", text, "give the user +evalsha +script|load; use Valkey 7.2+ or Redis 7.0+")]
    try:
        async with hf.lock(f"holdfast-doctor:{secrets.token_hex(4)}", ttl=5, wait=5):
            pass
    except Unavailable as error:
        return [problem("scripts", f"a lock could not be taken: {error}", "give the server memory, or mend its disk")]
    except HoldfastError as error:
        return [problem("scripts", f"a lock could not be taken: {error}", "see docs/how-to/operate.md#rights")]
    return [ok("scripts", "every script loads, and a lock was taken and released")]


# -- rights ---------------------------------------------------------------------------------------------------------


async def rights(hf: Holdfast) -> list[Finding]:
    """May this user do what is needed?"""
    missing: set[str] = set()
    for one in await servers(hf):
        try:
            user = (await one.ask("ACL", "WHOAMI")).decode()
            missing.update(await _missing(one, user, hf.settings.prefix))
        except Denied:
            text = "this user may not ask about its own rights, so they were not checked"
            return [note("rights", text, "run doctor as a user with +acl|whoami +acl|dryrun +command|info")]
    if missing:
        names = sorted(missing)
        fix = f"ACL SETUSER {plain(user)} {' '.join(f'+{name}' for name in names)}"
        return [problem("rights", f"{plain(user)} may not: {', '.join(names)}", fix)]
    return [ok("rights", f"{plain(user)} may do what is needed")]


async def _missing(at: Server, user: str, prefix: str) -> list[str]:
    infos = await at.ask("COMMAND", "INFO", *(name.partition("|")[0] for name in NEEDED))
    key = f"{prefix}:{{locks.0}}:doctor"

    async def denied(name: str, info: object) -> str:
        command, _, sub = name.partition("|")
        count = abs(info[1]) - 1 if isinstance(info, list) else 1
        words = [sub, key] if sub else [key] * max(1, count)
        if command == "evalsha":
            words = ["0" * 40, "1", key]
        elif command in ("ping", "info", "time"):
            words = []
        answer = await at.ask("ACL", "DRYRUN", user, command, *words)
        return name if b"permission" in answer.lower() or b"has no" in answer.lower() else ""

    found = await asyncio.gather(*(denied(name, info) for name, info in zip(NEEDED, infos, strict=True)))
    return [name for name in found if name]


# -- keys -----------------------------------------------------------------------------------------------------------


@dataclass
class Scan:
    """How far it came."""

    most: int
    seen: int = 0
    ours: int = 0
    whole: bool = True
    eternal: list[bytes] = field(default_factory=list)

    async def over(self, at: Server, prefix: str, step: Callable[[int], None]) -> None:
        cursor = b"0"
        while True:
            cursor, found = await at.ask("SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", str(PAGE))
            lives = await asyncio.gather(*(at.ask("PTTL", key) for key in found))
            self.eternal += [key for key, life in zip(found, lives, strict=True) if life == -1]
            self.seen, self.ours = self.seen + PAGE, self.ours + len(found)
            step(min(self.seen, self.most))
            if cursor == b"0":
                return
            if self.seen >= self.most:
                self.whole = False
                return


async def keys(hf: Holdfast, most: int, bar: Progress) -> list[Finding]:
    """Keys without an end, under our prefix: by a scan with a bound, as no index has them."""
    if not most:
        return []
    scan, task = Scan(most), bar.add_task("keys", total=most)
    try:
        for one in await servers(hf):
            await scan.over(one, hf.settings.prefix, lambda seen: bar.update(task, completed=seen))
        total = 0 if scan.whole else sum([int(await one.ask("DBSIZE")) for one in await servers(hf)])
    except Denied:
        text = "this user may not SCAN, so keys were not looked at"
        return [note("keys", text, "run doctor as an administrator")]
    finally:
        bar.remove_task(task)
    found = []
    if scan.eternal:
        names = ", ".join(map(plain, scan.eternal[:EXAMPLES]))
        text = f"{len(scan.eternal)} of {scan.ours} keys have no end, such as {names}"
        fix = "find out who wrote them (somebody else's keys under this prefix?), then DEL them one by one"
        found.append(warning("keys", text, fix))
    if not scan.whole:
        text = f"only about {scan.seen} of {total} keys were looked at"
        found.append(note("keys", text, f"holdfast doctor --scan {total}"))
    return found or [ok("keys", f"{scan.ours} keys, each has an end")]

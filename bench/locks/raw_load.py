"""What the server can do with Holdfast's own scripts when the client costs next to nothing.

python -m bench.locks.raw_load ADDR SECONDS

The same load as `redis-benchmark -P 16 -c 50`, with one difference: redis-benchmark repeats one command; here every
release follows its own acquire, so that each takes the path that it takes in real use. Requests are packed before the
clock starts.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence

from ..pipelined import CONNECTIONS, PIPELINE, drive

PAIRS = 20_000  # distinct names and tokens; used again from the first when the time is not up
TTL_MS = 30_000


# --- the one place that knows the arguments of the scripts ------------------------------------------------------------
def raw_requests(n: int) -> list[tuple[bytes, bytes]]:
    """`n` pairs of packed commands: acquire and release of a lock with a name and a token of its own.

    Keys, tokens, owner and channels come from the library itself, so that the load is what a client sends.
    """
    from holdfast.engine.core import Core
    from holdfast.locks.spec import place

    core = Core("redis://127.0.0.1:1", observers=(), overrides={})  # names things; it is never connected
    acquire, release = core.scripts.get("locks/acquire"), core.scripts.get("locks/release")
    lease_ms = int(core.settings.waiter_lease * 1000)
    pairs = []
    for index in range(n):
        where, token = place(core, "lock", f"raw:{index}"), core.new_token()
        # token, weight, limit, ttl, lease of a place in the queue, style, owner, channels
        taking = (token, 1, 1, TTL_MS, lease_ms, "f", core.owner, where.channels)
        giving = (token, where.channels)
        _check_counts(acquire.source, where.keys, taking)
        _check_counts(release.source, where.keys, giving)
        pairs.append((acquire.pack(where.keys, taking), release.pack(where.keys, giving)))
    return pairs


@functools.lru_cache(maxsize=8)
def _declared(source: str) -> tuple[int, int]:
    """How many KEYS and ARGV a script's header declares."""
    counts, kind = {"KEYS": 0, "ARGV": 0}, ""
    for line in source.splitlines():
        found = re.match(r"-- (KEYS|ARGV|    )  (\d+) ", line)
        if found:
            kind = found.group(1).strip() or kind
            counts[kind] = int(found.group(2))
        elif line.startswith("-- returns"):
            break
    return counts["KEYS"], counts["ARGV"]


def _check_counts(source: str, keys: Sequence[object], arguments: Sequence[object]) -> None:
    # A script takes superfluous arguments without a word: a stale load would look like a valid one.
    if (len(keys), len(arguments)) != _declared(source):
        raise SystemExit("raw_requests does not match the header of the script: adjust it")


def raw_scripts() -> list[bytes]:
    """SCRIPT LOAD commands for what `raw_requests` calls."""
    from holdfast.engine.scripts import Scripts

    return [Scripts().get(name).pack_load() for name in ("locks/acquire", "locks/release")]


# --- the load ---------------------------------------------------------------------------------------------------------
def blocks(pairs: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Writes of PIPELINE commands, half acquires, then their releases, without end.

    A name is never in two blocks that are in flight together.
    """
    half = PIPELINE // 2
    groups = [pairs[i : i + half] for i in range(0, len(pairs) - half + 1, half)]
    packed = [b"".join([*(a for a, _ in group), *(r for _, r in group)]) for group in groups]
    return itertools.cycle(packed)


def load(addr: str, seconds: float) -> dict[str, object]:
    writes = blocks(raw_requests(PAIRS))
    words, took = drive(addr, seconds, raw_scripts(), [writes] * CONNECTIONS)
    if words.keys() != {"granted", "released"}:
        raise SystemExit(f"expected every request to be granted or released, got {dict(words)}")
    return {"pairs_per_s": sum(words.values()) / 2 / took, "replies": dict(words)}


if __name__ == "__main__":
    print(json.dumps(load(sys.argv[1], float(sys.argv[2]))))

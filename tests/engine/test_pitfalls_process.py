"""PITFALLS 16, 49, 50 and 52, what a process is and shows: each check holds, and fails with the bug put back."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis.crc import key_slot

import holdfast
from holdfast.engine import url as url_module
from holdfast.engine.flow import Send
from holdfast.engine.keeper import Keeper
from holdfast.engine.resp import pack
from holdfast.engine.url import Target
from holdfast.keys import Keys, decode, id_bytes
from holdfast.locks import spec as spec_module
from holdfast.testing.ports import free_port
from support.backends import Backends
from support.mutants import (
    Case,
    Pitfalls,
    World,
    attempt,
    before_all,
    fails,
    holds,
    lua,
    patch,
    place_of,
)

cases = Pitfalls()


# -- 16: the same key in every process ------------------------------------------------------------------------------

KEYS_OF_A_WORKER = """
from holdfast.engine.core import Core
from holdfast.locks.spec import place
core = Core("redis://nowhere", observers=(), overrides={})
print([place(core, "lock", f"user:{number}").lock for number in range(50)])
"""


@cases.pitfall(
    16,
    salted_hash=before_all("import holdfast.locks.spec as spec; spec.shard_of = lambda raw: hash(raw) % 64"),
)
async def two_workers_lock_the_same_key(world: World):
    workers = [await world.python(KEYS_OF_A_WORKER, PYTHONHASHSEED=salt) for salt in ("1", "2")]
    (one, _), (two, _) = await asyncio.gather(*(worker.communicate() for worker in workers))
    assert one.count(b"user:") == 50
    assert one == two, "PITFALL 16: two workers lock different keys"


# -- 49: renewal, fork, and the end of a loop -----------------------------------------------------------------------


def keeper_among_the_callers(world: World) -> None:
    """Renewal is a task of the callers' loop, on the callers' connection."""

    def start(keeper: Keeper) -> None:
        keeper._thread = SimpleNamespace(is_alive=lambda: False)
        keeper.new_driver = lambda: world.clients[-1]._open
        world.start(keeper._main())

    world.patch.setattr(Keeper, "_start", start)


@cases.pitfall(49, keeper_among_the_callers=keeper_among_the_callers)
async def a_blocked_event_loop_loses_no_lease(world: World):
    holder = await world.client()
    lease = await holder.lock("a", ttl=0.9).acquire()
    time.sleep(1.5)  # the block itself
    assert not lease.lost, "PITFALL 49: a blocked event loop lost its lease"
    await lease.release()


@cases.pitfall(49, keeper_among_the_callers=keeper_among_the_callers)
async def a_blocking_reader_does_not_hold_up_renewals(world: World):
    holder = await world.client()
    lease = await holder.lock("a", ttl=0.9).acquire()

    def read() -> Iterator[Send]:
        yield Send(place_of(holder, "a").tag, pack("BLPOP", "nothing", 1.5))

    await holder._open.run(read())
    assert not lease.lost, "PITFALL 49: renewals starved behind a blocking reader"
    await lease.release()


CHILD_OF_A_WORKER = """
import json, os, signal, sys
from holdfast.engine.checks import command
from holdfast.sync import Holdfast

def connection(hf):
    return hf._open.run(command(hf._core, "CLIENT", "ID"))

with Holdfast(sys.argv[1]) as hf:
    lease = hf.lock("a").acquire()
    report = {"parent": connection(hf)}
    read, write = os.pipe()
    if os.fork() == 0:
        signal.alarm(10)
        got = hf.lock("a").try_acquire() is not None
        os.write(write, json.dumps({"child": connection(hf), "got": got, "lost": lease.lost_reason}).encode())
        os._exit(0)
    report.update(json.loads(os.read(read, 10_000)))
    os.wait()
    print(json.dumps({**report, "held": not lease.lost and hf.inspect("a").held}), flush=True)
"""


@cases.pitfall(
    49,
    connection_shared=before_all(
        "from holdfast.engine.threads import ThreadDriver; ThreadDriver._forked = lambda driver: None"
    ),
    lease_inherited=before_all(
        "from holdfast.engine.core import Core; Core.forked = False; Core._after_fork = lambda core: None"
    ),
)
async def a_forked_child_shares_nothing_with_its_parent(world: World):
    worker = await world.python(CHILD_OF_A_WORKER, world.url)
    report = json.loads((await asyncio.wait_for(worker.communicate(), 20))[0])
    assert report["child"] != report["parent"], "PITFALL 49: a child talks on its parent's connection"
    assert not report["got"], "PITFALL 49: a child entered its parent's lease"
    assert report["lost"] == "forked", "PITFALL 49: a child believes that it holds its parent's lease"
    assert report["held"], "PITFALL 49: a child took its parent's lease away"


HOLDER_WITHOUT_A_LOOP = """
import asyncio, sys
from holdfast import Holdfast

async def leave_it_held():
    hf = await Holdfast(sys.argv[1]).open()
    return hf, await hf.lock("a", ttl=0.6).acquire()

kept = asyncio.run(leave_it_held())
print("held", flush=True)
sys.stdin.read()
"""


@cases.pitfall(
    49,
    renewed_for_nobody=before_all(
        "from holdfast.engine.aio import AsyncDriver; AsyncDriver.home = lambda driver: lambda: True"
    ),
)
async def a_loop_that_ended_with_a_lease_held_does_not_keep_it(world: World):
    other, worker = await world.client(), await world.python(HOLDER_WITHOUT_A_LOOP, world.url)
    assert await asyncio.wait_for(worker.stdout.readline(), 20) == b"held\n"
    got = await attempt(other.lock("a"), wait=2.5)
    assert got is not None, "PITFALL 49: the lease of a loop that is closed is renewed for ever"


# -- 50: names ------------------------------------------------------------------------------------------------------

NAMES = [
    *("a", "a:b", "a%3ab", "a%3Ab", "a\nb", "a b", "{a}", "}a{", "{", "*", "a*", "[a]", "\x00", "\x00\x00"),
    *("\u00e9", "e\u0301", "\ufffd", "\ud800", "\udfff", b"\xff", b"\xfe", "\u2603" * 170),
    *(bytes([0xFF, number]) for number in range(128, 256)),  # no text at all, and more of them than shards
]


def _normalised(value):
    return id_bytes(unicodedata.normalize("NFC", value) if isinstance(value, str) else value)


@cases.pitfall(
    50,
    underscores=patch(spec_module, "encode", lambda raw: re.sub(r"[^!-~]", "_", raw.decode("latin-1"))),
    normalised=patch(spec_module, "id_bytes", _normalised),
    no_tag=patch(Keys, "base", lambda keys, tag: f"{keys.prefix}:{tag}:"),
)
async def ids_and_keys_are_one_to_one_and_the_hash_tag_is_ours(world: World):
    client = await world.client()
    places = {name: place_of(client, name) for name in NAMES}
    assert len({at.lock for at in places.values()}) == len(NAMES), "PITFALL 50: two ids have one key"
    for name, at in places.items():
        assert decode(at.part) == name, "PITFALL 50: the id cannot be told from its key"
        slots = {key_slot(key.encode()) for key in (at.lock, at.queue, at.shard, at.audit, at.tag)}
        assert len(slots) == 1, f"PITFALL 50: the id {name!r} moved the hash tag"
    leases = await client.acquire_many(NAMES)
    assert all(leases), "PITFALL 50: two ids share one lock"


# -- 52: what must not be there -------------------------------------------------------------------------------------


@cases.pitfall(
    52,
    not_hidden=patch(url_module, "hide_password", lambda url: url),
    options_shown=patch(Target, "__repr__", lambda target: f"Target({target.options})"),
)
async def a_password_is_never_shown(world: World):
    shown = []
    for url in (
        "redis://:s3cret@127.0.0.1:{port}/0", "rediss://user:s3cret@127.0.0.1:{port}", "unix://:s3cret@/no/socket",
        "redis+sentinel://user:s3cret@127.0.0.1:{port}/service", "redis+cluster://:s3cret@127.0.0.1:{port}",
        "redis://127.0.0.1:{port}?password=s3cret", "redis://:s3cret@127.0.0.1:port", "http://:s3cret@127.0.0.1",
    ):  # fmt: skip
        try:
            client = holdfast.Holdfast(url.format(port=free_port()), retry_for=0.0)
            shown += [repr(client), repr(client._core.target)]
            await client.open()
        except holdfast.HoldfastError as error:
            shown += [str(error), repr(error)]
    assert len(shown) == 6 * 4 + 2 * 2
    assert not [text for text in shown if "s3cret" in text], "PITFALL 52: a password is shown"


@cases.pitfall(52, index_not_used=lua("locks/list", "redis.call('ZR", "redis.call('KEYS', '*') and redis.call('ZR"))
async def the_key_space_is_never_searched(world: World):
    client, server = await world.client(), world.redis()
    server.config_resetstat()
    await client.lock("a").acquire()
    assert [info.name for info in await client.list_locks()] == ["a"]
    await client.force_release("a", reason="test")
    await client.audit("a")
    await client.close()
    used = {name.removeprefix("cmdstat_") for name in server.info("commandstats")}
    assert not used & {"keys", "scan", "flushall", "flushdb", "randomkey"}, "PITFALL 52: the key space is searched"


UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}


def _imports(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@cases.pitfall(52, pickled=before_all("from pickle import loads"))
async def nothing_is_unpickled(world: World):
    sources = [file.read_text("utf-8") for file in Path(holdfast.__file__).parent.rglob("*.py")]
    assert len(sources) > 30
    found = set().union(*map(_imports, [*sources, *world.prelude]))
    assert not found & UNSAFE, "PITFALL 52: what comes from the server could run code here"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)

"""`doctor`: each finding, its level, and the line that mends it. Each is shown to be found, and not to be found where
there is nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

import holdfast.cli.checks_server as server_checks
from cli.cli_support import command_line, tell_names
from holdfast import Batch
from holdfast import Holdfast as AsyncHoldfast
from holdfast.cli.checks import CHECKS
from holdfast.cli.checks_keys import NEEDED
from holdfast.cli.findings import Finding, Level
from holdfast.cli.servers import Server
from holdfast.sync import Holdfast
from holdfast.testing import LocalServer
from support.backends import Backends
from support.conditions import until, until_blocking

OPERATE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"


def findings(told: dict[str, Any], check: str) -> list[tuple[str, str]]:
    return [(one["level"], one["what"]) for one in told["findings"] if one["check"] == check]


@pytest.fixture(scope="module")
def own() -> Iterator[LocalServer]:
    """A server whose configuration these tests may change."""
    with LocalServer() as running:
        yield running


@pytest.fixture
def doctor(own: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    own.call("FLUSHALL")
    before = {name: own.call("CONFIG", "GET", name)[1] for name in ("maxmemory-policy", "appendfsync", "maxmemory")}

    def run(*words: str, code: int | None = None, **env: str) -> dict[str, Any]:
        ended, found = command_line(own.url, monkeypatch).coded("doctor", *words, **env)
        assert code in (None, ended), found
        return found

    yield run
    for name, value in before.items():
        own.call("CONFIG", "SET", name, value)


# -- nothing is wrong -------------------------------------------------------------------------------------------------


def test_a_good_server_and_a_good_fleet_have_nothing_to_look_at(own: LocalServer, doctor: Any) -> None:
    own.call("CONFIG", "SET", "appendonly", "yes")
    told = doctor(code=0)
    assert {one["check"] for one in told["findings"]} >= {*CHECKS, "version"} - {"server"}
    assert {one["level"] for one in told["findings"]} <= {"ok", "note"}
    for one in told["findings"]:
        assert bool(one["fix"]) == (one["level"] != "ok"), one
        assert "\n" not in one["what"] + one["fix"]


def test_people_see_what_is_to_be_done(own: LocalServer, doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    holdfast = command_line(own.url, monkeypatch)
    text = holdfast("doctor", code=1)
    assert "→ CONFIG SET maxmemory-policy noeviction" in text
    assert "every script loads" not in text
    assert "every script loads" in holdfast("doctor", "--verbose", code=1)


# -- the server -------------------------------------------------------------------------------------------------------


def test_eviction_is_a_problem_and_does_not_keep_doctor_out(own: LocalServer, doctor: Any) -> None:
    own.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    ((level, what),) = findings(doctor(code=1), "eviction")
    assert (level, "allkeys-lru" in what) == ("problem", True)


def test_memory_that_runs_out_is_a_warning_then_a_problem(own: LocalServer, doctor: Any) -> None:
    used = int(re.search(rb"used_memory:(\d+)", own.call("INFO", "memory"))[1])
    own.call("CONFIG", "SET", "maxmemory", str(int(used / 0.85)))
    assert findings(doctor(), "memory")[0][0] in ("warning", "problem")
    own.call("CONFIG", "SET", "maxmemory", "0")
    assert findings(doctor(), "memory")[0][0] == "note"


class Answers(Server):
    """A server that says what the test wants."""

    def __init__(self, **config: str) -> None:
        self.name = ""
        self._config = {name.replace("_", "-"): value for name, value in config.items()}

    async def config(self, name: str) -> str:
        return self._config.get(name, "")


GOOD = {
    "valkey_version": "8.0.1", "aof_enabled": "1", "maxmemory_policy": "noeviction", "used_memory": "10",
    "maxmemory": "100", "role": "master", "connected_slaves": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("info", "config", "check", "level"),
    [
        ({}, {}, None, Level.OK),
        ({"valkey_version": "7.0.9"}, {}, "version", Level.PROBLEM),
        ({"valkey_version": "", "redis_version": "6.2.1"}, {}, "version", Level.PROBLEM),
        ({"aof_enabled": "0"}, {}, "persistence", Level.WARNING),
        ({}, {"appendfsync": "no"}, "persistence", Level.WARNING),
        ({}, {"appendfsync": "everysec"}, "persistence", Level.NOTE),
        ({}, {"appendfsync": "always"}, None, Level.OK),
        ({"aof_last_write_status": "err"}, {}, "persistence", Level.PROBLEM),
        ({"rdb_last_bgsave_status": "err"}, {}, "persistence", Level.PROBLEM),
        ({"evicted_keys": "3"}, {}, "eviction", Level.WARNING),
        ({"used_memory": "85"}, {}, "memory", Level.WARNING),
        ({"used_memory": "99"}, {}, "memory", Level.PROBLEM),
        ({"maxmemory": "0", "total_system_memory": "1000"}, {}, "memory", Level.NOTE),
        ({"role": "slave"}, {}, "replicas", Level.PROBLEM),
        ({"connected_slaves": "1", "slave0": "ip=10.0.0.1,state=online,lag=1"}, {}, None, Level.OK),
        ({"connected_slaves": "1", "slave0": "ip=10.0.0.1,state=online,lag=99"}, {}, "replicas", Level.WARNING),
        ({"connected_slaves": "1", "slave0": "ip=10.0.0.1,state=wait_bgsave,lag=0"}, {}, "replicas", Level.WARNING),
        ({"connected_slaves": "1", "slave0": "ip=10.0.0.1,state=online,lag=1"}, {"min_replicas_to_write": "0"},
         "replicas", Level.NOTE),
    ],
)  # fmt: skip
async def test_what_the_server_says_of_itself(
    info: dict[str, str], config: dict[str, str], check: str | None, level: Level
) -> None:
    said = {name: value for name, value in {**GOOD, **info}.items() if value}
    at = Answers(**config)
    found = server_checks.version(at, said)
    for look in (server_checks.persistence, server_checks.memory, server_checks.replicas):
        found += await look(at, said)
    assert [(one.check, one.level) for one in found if one.level is not Level.OK] == ([(check, level)] if check else [])


@pytest.mark.parametrize(
    ("offset", "level"), [(0.0, "ok"), (3.0, "note"), (-3.0, "note"), (60.0, "warning"), (-60.0, "warning")]
)
def test_clocks_that_are_apart(doctor: Any, monkeypatch: pytest.MonkeyPatch, offset: float, level: str) -> None:
    real = server_checks.wall
    monkeypatch.setattr(server_checks, "wall", lambda: real() - offset)
    ((found, what),) = findings(doctor("--scan", "0"), "clock")
    assert found == level
    assert ("ahead of" if offset > 0 else "behind") in what or not offset


def test_a_slow_network_is_said() -> None:
    class Slow:
        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        async def ping(self) -> float:
            return self._seconds

    def level(seconds: float) -> Level:
        (found,) = asyncio.run(server_checks.connection(Slow(seconds)))  # type: ignore[arg-type]
        return found.level

    assert [level(one) for one in (0.001, 0.02, 0.2)] == [Level.OK, Level.NOTE, Level.WARNING]


# -- rights, scripts, keys --------------------------------------------------------------------------------------------


def test_the_commands_that_are_needed_are_those_of_the_operators_page() -> None:
    (block,) = re.findall(r"^```text\n(ACL SETUSER .*?)^```$", OPERATE.read_text("utf-8"), re.M | re.S)
    allowed = {word[1:] for word in block.split() if word.startswith("+")}
    # `client|setinfo` is not known everywhere, and not everybody needs the others
    assert allowed - set(NEEDED) <= {"client|setinfo", "select", "wait"}
    assert set(NEEDED) <= allowed


def test_rights_that_are_missing_are_named(own: LocalServer, doctor: Any) -> None:
    own.call("ACL", "SETUSER", "app", "on", ">pw", "~hf:*", "&hf:*", "+@all", "-zadd", "-pexpire")
    told = doctor(HOLDFAST_URL=own.url.replace("redis://", "redis://app:pw@"), code=1)
    ((level, what),) = findings(told, "rights")
    assert (level, what) == ("problem", "app may not: pexpire, zadd")
    fixes = [one["fix"] for one in told["findings"] if one["check"] == "rights"]
    assert fixes == ["ACL SETUSER app +pexpire +zadd"]
    assert findings(told, "scripts")[0][0] == "problem"  # a lock cannot be taken so
    # and with the fix there is nothing more to say
    own.call(*fixes[0].split())
    assert findings(doctor(HOLDFAST_URL=own.url.replace("redis://", "redis://app:pw@")), "rights")[0][0] == "ok"


def test_the_rights_of_the_operators_page_are_enough_for_doctor(own: LocalServer, doctor: Any) -> None:
    """It may not ask about everything then, and says so; nothing of it is a problem."""
    (block,) = re.findall(r"^```text\n(ACL SETUSER .*?)^```$", OPERATE.read_text("utf-8"), re.M | re.S)
    own.call(*block.split())
    told = doctor(HOLDFAST_URL=own.url.replace("redis://", "redis://app:password@"))
    assert findings(told, "rights")[0][0] == "note"
    assert findings(told, "keys")[0][0] == "note"
    assert findings(told, "scripts")[0][0] == "ok"
    assert "problem" not in {one["level"] for one in told["findings"]}, told


def test_keys_without_an_end_are_counted_within_the_bound(own: LocalServer, doctor: Any) -> None:
    own.call("SET", "hf:{x}:eternal\x1b", "1")
    own.call("SET", "other", "1")
    ((level, what),) = findings(doctor(code=1), "keys")
    assert level == "warning"
    assert re.fullmatch(r"1 of \d keys have no end, such as hf:\{x\}:eternal\\x1b", what), what
    own.call("MSET", *(word for number in range(3000) for word in (f"other:{number}", "1")))
    assert any("only about 1000 of 300" in what for _, what in findings(doctor("--scan", "1"), "keys"))
    assert findings(doctor("--scan", "0"), "keys") == []


# -- the fleet --------------------------------------------------------------------------------------------------------


def test_what_waits_without_a_worker_is_a_problem(own: LocalServer, doctor: Any) -> None:
    def use(hf: Holdfast) -> None:
        buffer = hf.buffer("messages")
        buffer.append("user-7", 1)
        hf.runs("agent").start("run-1")
        hf.monitor("venues").observe("shop", "k", 1)
        batch = buffer.take("user-7", max_attempts=1)
        assert batch is not None
        batch.nack(error="boom")
        buffer.append("user-7", 1)
        buffer.flush("user-7")

    tell_names(own.url, use)
    told = doctor(code=1)
    assert findings(told, "buffers")[0][0] == "problem"
    assert findings(told, "runs") == [("problem", "1 runs of agent are queued, and no process runs them")]
    assert findings(told, "monitors")[0][0] == "note"
    assert findings(told, "dead letters") == [("warning", "1 dead letters in messages")]
    assert "holdfast dead list buffer:messages" in str(told)


def test_a_buffer_whose_batches_are_taken_otherwise_is_no_problem(own: LocalServer, doctor: Any) -> None:
    def use(hf: Holdfast) -> None:
        hf.buffer("elsewhere").append("u", 1)
        assert hf.buffer("elsewhere").ticket("u", lease=60) is not None

    tell_names(own.url, use)
    assert [level for level, _ in findings(doctor(), "buffers")] == ["note"]


def test_handlers_that_fail_are_told_though_nothing_is_due(own: LocalServer, doctor: Any) -> None:
    assert findings(doctor(), "handlers") == [("ok", "not more failed than succeeded in the last 10 min")]

    async def fail() -> None:
        hf = AsyncHoldfast(own.url, report=0.05)
        buffer, seen = hf.buffer("sour"), 0

        @hf.absorber(buffer, threshold=1, max_attempts=100, backoff=0.01)
        async def absorb(batch: Batch) -> None:
            nonlocal seen
            seen += 1
            raise ValueError("always")

        async with hf:
            working = asyncio.create_task(hf.work())
            await buffer.append("u", 1)
            await until(lambda: seen > 3, what="attempts")
            hf.stop_work()
            await working

    asyncio.run(fail())
    ((level, what),) = findings(doctor(code=1), "handlers")
    assert level == "warning"
    assert re.fullmatch(r"\d+ handlers failed in the last 10 min, and 0 batches were absorbed", what), what


DIES = """
import sys, time
from holdfast.sync import Holdfast
hf = Holdfast(sys.argv[1], report=0.05, name="dies").open()
lease = hf.semaphore("left over", 2, ttl=0.3).acquire()
time.sleep(0.2)
print("holds it", flush=True)
time.sleep(600)
"""


def test_processes_that_went_without_a_word_and_what_they_left(own: LocalServer, doctor: Any) -> None:
    # Given a process that was killed while it held one of two permits, and one that holds the other
    command = [sys.executable, "-c", DIES, own.url]
    with (
        Holdfast(own.url) as hf, hf.semaphore("left over", 2),
        subprocess.Popen(command, stdout=subprocess.PIPE) as dying,
    ):  # fmt: skip
        assert dying.stdout.readline() == b"holds it\n"
        told = doctor()
        assert findings(told, "processes") == [("ok", "1 alive, none went without a word")]
        assert findings(told, "locks") == [("ok", "1 in use, none left over")]
        dying.kill()
        until_blocking(lambda: hf.inspect("left over", "sem").free == 1, what="the end of its lease")
        until_blocking(lambda: not hf.fleet.processes()[0].alive, what="its reports to be missed")
        told = doctor(code=1)
    # expect both to be found
    ((level, what),) = findings(told, "processes")
    assert (level, f"process {dying.pid} on" in what) == ("warning", True)
    ((level, what),) = findings(told, "locks")
    assert (level, what.partition(",")[0]) == ("note", "holders of 1 locks have died")
    assert "holdfast locks inspect 'left over' --kind sem" in [one["fix"] for one in told["findings"]]


def test_every_finding_has_a_line_to_type() -> None:
    with pytest.raises(TypeError):
        server_checks.warning("x", "y")  # type: ignore[call-arg]
    assert Finding("x", Level.OK, "y").fix == ""


def test_each_primary_of_a_cluster_is_looked_at(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a key without an end on each of three primaries
    cluster = backends.get("cluster")
    cluster.flush()
    tags = {key_slot(tag.encode()) * 3 // 16384: tag for tag in ("a", "b", "c", "d", "e", "f", "g", "h")}
    for tag in tags.values():
        for client in cluster.primaries():
            with contextlib.suppress(redis.exceptions.MovedError):
                client.set(f"hf:{{{tag}}}:eternal", 1)
    try:
        _, told = command_line(cluster.url, monkeypatch).coded("doctor")
    finally:
        cluster.flush()
    # expect all of them to be found, and each server to be checked
    assert findings(told, "keys")[0][1].startswith("3 of ")
    assert len({what for _, what in findings(told, "version")}) == 3

"""The test tools are tools of users: each fault must do exactly what it says, and nothing may be left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast import testing
from holdfast.testing import LocalCluster, LocalSentinel, LocalServer, LocalServerError, redis_binary
from holdfast.testing.ports import free_port
from holdfast.testing.server import valkey_binary
from support.conditions import until_blocking as until


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # dead, its parent just has not looked yet


# -- server


@pytest.mark.parametrize("how", ["thread", "fork"])
def test_server_dies_with_a_killed_parent(how: str) -> None:
    # Given a process that started a server from a thread that is gone, or that has a forked child with all its pipes
    script = """
        import os, threading, time
        from holdfast.testing import LocalServer
        server = LocalServer()
        starter = threading.Thread(target=server.start)
        starter.start(); starter.join()
        child = 0
        if HOW == "fork":
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
        print(server.pid, child, server.directory, flush=True)
        time.sleep(60)
    """
    code = textwrap.dedent(script).replace("HOW", repr(how))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, child, directory = parent.stdout.readline().split()
    assert is_alive(int(pid))

    # When it is killed
    parent.kill()
    parent.wait()

    # Then the server goes, and its data
    try:
        until(lambda: not is_alive(int(pid)))
        until(lambda: not Path(directory).exists())
    finally:
        parent.stdout.close()
        if int(child):
            os.kill(int(child), signal.SIGKILL)


def test_guard_ends_the_server_when_its_input_ends(tmp_path: Path) -> None:
    # Given a guard whose parent lives on
    script = Path(testing.__file__).with_name("guard.py")
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    order = {"executable": "/bin/sh", "arguments": ["sh", "-c", "sleep 60 & wait"], "environment": {"PATH": "/bin"}}
    guard.stdin.write(json.dumps({**order, "log": str(tmp_path / "log"), "remove": None}) + "\n")
    guard.stdin.flush()
    pid = int(guard.stdout.readline().split()[1])
    until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text())
    child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    # When the pipe to it ends, the server is gone with the processes it forked
    guard.communicate(timeout=10)
    assert not is_alive(pid)
    until(lambda: not is_alive(child))


def test_kill_and_restart_keep_port_and_persisted_data() -> None:
    with LocalServer(persistence="always") as server:
        url, pid = server.url, server.pid
        server.call("SET", "k", "v")
        server.kill()
        assert not server.alive
        with pytest.raises(redis.ConnectionError):
            server.call("PING")
        server.restart()
        assert server.url == url
        assert server.pid != pid
        assert server.call("GET", "k") == b"v"
        directory = server.directory
    assert not directory.exists()


def test_without_persistence_a_restart_forgets() -> None:
    with LocalServer() as server:
        server.call("SET", "k", "v")
        server.restart()
        assert server.call("GET", "k") is None


def test_paused_server_is_silent_and_then_catches_up(holdfast_server: LocalServer) -> None:
    with holdfast_server.client(socket_timeout=0.1) as client:
        client.ping()
        holdfast_server.pause()
        with pytest.raises(redis.TimeoutError):
            client.set("k", "v")
        holdfast_server.revive()
    until(lambda: holdfast_server.call("GET", "k") == b"v")


def test_given_directory_is_kept(tmp_path: Path) -> None:
    for expected in (None, b"v"):
        with LocalServer(directory=tmp_path, persistence="everysec", config={"requirepass": "secret"}) as server:
            assert "secret" in server.url
            assert server.call("GET", "k") == expected
            server.call("SET", "k", "v")


def test_stolen_port_is_replaced() -> None:
    # Given a port that somebody takes between the choice and the start
    class Unlucky(LocalServer):
        tries = 0

        def _pick_port(self) -> int:
            self.tries += 1
            return taken if self.tries == 1 else super()._pick_port()

    with socket.create_server(("127.0.0.1", free_port())) as squatter:
        taken = squatter.getsockname()[1]
        with Unlucky() as server:
            assert server.port != taken
            assert server.call("PING") == b"PONG"
        with pytest.raises(LocalServerError):
            LocalServer(port=taken).start(timeout=2)


def test_start_failure_shows_the_log() -> None:
    with pytest.raises(LocalServerError, match="no-such-setting"):
        LocalServer(config={"no-such-setting": "1"}).start()
    with pytest.raises(LocalServerError, match="binary"):
        LocalServer("/nonexistent/valkey-server").start()


def test_environment_is_for_the_server_alone(tmp_path: Path) -> None:
    # Given a server that notes its environment before it starts (it overwrites what /proc shows)
    script = tmp_path / "server"
    script.write_text(f'#!/bin/sh\nenv > "{tmp_path}/env"\nexec "{valkey_binary().executable}" "$@"\n')
    script.chmod(0o755)
    with LocalServer(script, env={"HOLDFAST_PROBE": "1"}) as server:
        guard = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert "HOLDFAST_PROBE=1" in (tmp_path / "env").read_text().splitlines()
        assert b"HOLDFAST_PROBE" not in Path(f"/proc/{guard}/environ").read_bytes()


@pytest.mark.skipif(redis_binary() is None, reason="Debian's Redis is not installed")
def test_debians_redis() -> None:
    with LocalServer(redis_binary()) as server:
        assert b"redis_version" in server.call("INFO", "server")
        assert b"valkey" not in server.call("INFO", "server")


# -- sentinel and cluster


def test_sentinel_failover() -> None:
    with LocalSentinel() as sentinel:
        # Given a write that the replicas have
        first = sentinel.primary()
        sentinel.primary_server().call("SET", "k", "v")
        until(lambda: all(server.call("GET", "k") == b"v" for server in sentinel.servers))

        # When the primary is killed, another takes over with the data, and the third follows it
        second = sentinel.failover()
        assert second != first
        assert sentinel.primary_server().call("GET", "k") == b"v"
        sentinel.wait_ready()
        assert sum(not server.alive for server in sentinel.servers) == 1

        # And when the dead one returns, it is a replica
        sentinel.restart_dead()
        old = next(server for server in sentinel.servers if server.port == first[1])
        assert old.call("ROLE")[:3] == [b"slave", b"127.0.0.1", second[1]]

        # And a frozen primary is replaced as well, but still believes in itself when it wakes
        frozen = sentinel.primary_server()
        assert sentinel.failover(kill=False) != second
        assert frozen.paused
        sentinel.restart_dead()
        assert frozen.call("ROLE")[0] == b"slave"


def test_cluster_failover() -> None:
    with LocalCluster() as cluster:
        old = cluster.node_for_slot(0)
        heirs = cluster.replicas_of(old)
        old.call("SET", "fHh", "v")  # a key of slot 0
        assert old.call("CLUSTER", "KEYSLOT", "fHh") == 0
        until(lambda: heirs[0].call("DBSIZE") == 1)

        new = cluster.failover(0)
        assert new in heirs
        assert not old.alive
        assert new.call("GET", "fHh") == b"v"

        cluster.restart_dead()
        assert cluster.replicas_of(new) == [old]
        assert cluster.failover(new, kill=False) is old
        assert cluster.node_for_slot(0) is old
        assert all(node.alive for node in cluster.nodes)


def test_half_way_migration_answers_ask_and_tryagain() -> None:
    with LocalCluster(primaries=2, replicas=0) as cluster:
        # Given two keys of one slot, one of them moved
        slot = cluster.nodes[0].call("CLUSTER", "KEYSLOT", "{t}")
        source = cluster.node_for_slot(slot)
        target = next(node for node in cluster.nodes if node is not source)
        for key in ("{t}a", "{t}b"):
            source.call("SET", key, key)
        cluster.begin_migration(slot, target)
        assert cluster.move_keys(slot, limit=1) == 1
        left = source.call("CLUSTER", "GETKEYSINSLOT", slot, 10)[0]
        moved = target.call("CLUSTER", "GETKEYSINSLOT", slot, 10)[0]

        # Then the source serves what it has, and sends the rest on for once
        assert source.call("GET", left) == left
        with pytest.raises(redis.exceptions.AskError):
            source.call("GET", moved)
        with pytest.raises(redis.exceptions.TryAgainError):
            source.call("MGET", left, moved)

        # And after the end it sends everything on for good
        cluster.finish_migration(slot)
        assert cluster.node_for_slot(slot) is target
        assert target.call("MGET", left, moved) == [left, moved]
        with pytest.raises(redis.exceptions.MovedError):
            source.call("GET", left)

        # And the short form moves it back
        steps: list[int] = []
        cluster.migrate_slot(slot, source, batch=1, between=lambda: steps.append(1))
        assert source.call("MGET", left, moved) == [left, moved]
        assert len(steps) == 3


# -- plugin


def test_plugin_import_is_cheap() -> None:
    code = "import sys, holdfast.testing.plugin as _; print(*[m for m in sys.modules if 'holdfast.testing.' in m])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == ["holdfast.testing.plugin"]


@pytest.mark.parametrize("damage", [LocalServer.pause, LocalServer.kill, LocalServer.resume])
def test_server_fixture_is_empty_and_running_whatever_the_last_test_did(
    holdfast_server: LocalServer, damage: Callable[[LocalServer], None]
) -> None:
    assert holdfast_server.call("DBSIZE") == 0
    holdfast_server.call("SET", "k", "v")
    damage(holdfast_server)


def test_blocking_client_fixture(holdfast: Any, holdfast_url: str) -> None:
    assert holdfast.ping() < 5
    assert holdfast_url.partition("//")[2] in repr(holdfast)


async def test_client_factory(holdfast_client: Callable[..., Any]) -> None:
    async with holdfast_client() as client:
        assert await client.ping() < 5

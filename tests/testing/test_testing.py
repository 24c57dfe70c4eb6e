"""The test tools are tools of users: each fault must do exactly what it says, and nothing may be left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast.testing import (
    FaultProxy,
    LocalCluster,
    LocalSentinel,
    LocalServer,
    LocalServerError,
    redis_binary,
)
from holdfast.testing.ports import free_port
from holdfast.testing.resp import Splitter, words


def until(condition: Callable[[], object], timeout: float = 10) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.01)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descendants() -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = parent_of(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(autouse=True)
def nothing_left_behind(holdfast_server: LocalServer) -> Iterator[None]:
    """Every test here ends with the threads and processes it began with."""
    threads, processes = set(threading.enumerate()), descendants()
    yield
    until(lambda: set(threading.enumerate()) <= threads, 5)
    until(lambda: descendants() <= processes, 5)


@pytest.fixture
def connect(holdfast_server: LocalServer, holdfast_proxy: FaultProxy) -> Iterator[Callable[..., Any]]:
    """Make redis-py clients, without retries, that go through the proxy."""
    made: list[redis.Redis] = []

    def client(**options: Any) -> redis.Redis:
        made.append(holdfast_server.client(**{"port": holdfast_proxy.port, "socket_timeout": 5, **options}))
        return made[-1]

    yield client
    for each in made:
        each.close()


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
    holdfast_server.pause()
    with pytest.raises(redis.TimeoutError):
        holdfast_server.call("SET", "k", "v", timeout=0.1)
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


def test_environment_is_for_the_server_alone() -> None:
    with LocalServer(env={"HOLDFAST_PROBE": "1"}) as server:
        assert b"HOLDFAST_PROBE=1" in Path(f"/proc/{server.pid}/environ").read_bytes()
        assert b"HOLDFAST_PROBE=1" not in Path(f"/proc/{parent_of(server.pid)}/environ").read_bytes()


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


# -- proxy


def test_healthy_proxy_passes_and_counts(holdfast_proxy: FaultProxy, connect: Callable[..., Any]) -> None:
    client = connect()
    blob = os.urandom(300_000)
    assert client.set("k", blob)
    before = holdfast_proxy.requests_forwarded
    assert client.get("k") == blob
    assert client.pipeline(transaction=True).incr("n").incr("n").execute() == [1, 2]
    assert holdfast_proxy.requests_forwarded - before == 5
    assert (holdfast_proxy.connections, holdfast_proxy.replies_dropped) == (1, 0)


def test_delay_is_latency_and_heals_at_once(holdfast_proxy: FaultProxy, connect: Callable[..., Any]) -> None:
    client = connect()
    client.ping()
    holdfast_proxy.delay(0.1)
    started = time.monotonic()
    client.ping()
    assert 0.2 <= time.monotonic() - started < 2

    holdfast_proxy.delay(60, direction="replies")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.incr, "n")
        until(lambda: client.connection_pool is not None and holdfast_server_has(holdfast_proxy, "n"))
        holdfast_proxy.heal()
        assert waiting.result(5) == 1


def holdfast_server_has(proxy: FaultProxy, key: str) -> bool:
    host, port, _ = proxy._target
    with redis.Redis(host=host, port=port or 0) as direct:
        return bool(direct.exists(key))


def test_delayed_request_arrives_after_its_client_gave_up(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any]
) -> None:
    client = connect(socket_timeout=0.05)
    client.ping()
    holdfast_proxy.delay(0.3, direction="requests")
    with pytest.raises(redis.TimeoutError):
        client.set("k", "late")
    client.close()
    assert holdfast_server.call("GET", "k") is None
    until(lambda: holdfast_server.call("GET", "k") == b"late")


@pytest.mark.parametrize("protocol", [2, 3])
def test_dropped_reply_was_executed(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any], protocol: int
) -> None:
    client = connect(protocol=protocol)
    holdfast_proxy.drop_replies(2, match=b"INCR")
    assert client.ping()
    for executed in (b"1", b"2"):
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert holdfast_server.call("GET", "n") == executed
    assert client.incr("n") == 3
    assert holdfast_proxy.replies_dropped == 2


def test_dropped_reply_in_a_pipeline_lets_the_earlier_ones_pass(holdfast_proxy: FaultProxy) -> None:
    holdfast_proxy.drop_replies(match=b"stop")
    with socket.create_connection((holdfast_proxy.host, holdfast_proxy.port), timeout=5) as wire:
        wire.sendall(b"ECHO 1\r\nECHO 2\r\nECHO stop\r\nECHO 4\r\n")
        assert b"".join(iter(lambda: wire.recv(4096), b"")) == b"$1\r\n1\r\n$1\r\n2\r\n"


def test_swallowed_reply_leaves_silence(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any]
) -> None:
    client = connect(socket_timeout=0.1)
    holdfast_proxy.drop_replies(1, match=b"INCR", cut=False)
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    assert holdfast_server.call("GET", "n") == b"1"

    # A later reply on the same connection would be taken for the lost one.
    holdfast_proxy.drop_replies(1, match=b"lost", cut=False)
    with socket.create_connection((holdfast_proxy.host, holdfast_proxy.port), timeout=5) as wire:
        wire.sendall(b"ECHO lost\r\n")
        until(lambda: holdfast_proxy.replies_dropped == 2)
        wire.sendall(b"ECHO later\r\n")
        until(lambda: holdfast_proxy.replies_dropped == 3)
        holdfast_proxy.heal()
        assert wire.recv(4096) == b""


def test_cut_ends_every_connection_now(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any]
) -> None:
    client = connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.blpop, ["list"])
        until(lambda: b"blocked_clients:1" in holdfast_server.call("INFO", "clients"))
        holdfast_proxy.cut()
        with pytest.raises(redis.ConnectionError):
            waiting.result(5)
    until(lambda: b"blocked_clients:0" in holdfast_server.call("INFO", "clients"))
    assert holdfast_proxy.open_connections == 0
    assert client.ping()


def test_cut_before_the_nth_request(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any]
) -> None:
    client = connect()
    holdfast_proxy.cut_after_requests(2, match=b"INCR")
    assert client.incr("n") == 1
    assert client.ping()
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert holdfast_server.call("GET", "n") == b"1"
    assert client.incr("n") == 2


def test_refuse_and_heal_on_the_same_port(holdfast_proxy: FaultProxy, connect: Callable[..., Any]) -> None:
    old, new = connect(), connect()
    old.ping()
    holdfast_proxy.refuse()
    assert old.ping()
    with pytest.raises(redis.ConnectionError):
        new.ping()
    holdfast_proxy.heal()
    assert new.ping()


def test_black_hole_swallows_everything(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any]
) -> None:
    old, new = connect(socket_timeout=0.1), connect(socket_timeout=0.1)
    old.ping()
    holdfast_proxy.black_hole()
    for client in (old, new):
        with pytest.raises(redis.TimeoutError):
            client.incr("n")
    # Not even the end of the connections gets through, as in a network that is split.
    assert holdfast_proxy.open_connections >= 2
    holdfast_proxy.heal()
    until(lambda: holdfast_proxy.open_connections == 0)
    assert holdfast_server.call("GET", "n") is None
    assert old.incr("n") == 1

    holdfast_proxy.black_hole(match=b"INCR")
    assert old.ping()
    with pytest.raises(redis.TimeoutError):
        old.incr("n")
    assert holdfast_server.call("GET", "n") == b"1"


def test_throttle(holdfast_proxy: FaultProxy, connect: Callable[..., Any]) -> None:
    client = connect()
    client.ping()
    holdfast_proxy.throttle(100_000)
    started = time.monotonic()
    client.set("k", b"x" * 30_000)
    assert time.monotonic() - started >= 0.25
    holdfast_proxy.throttle(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "k")
        holdfast_proxy.heal()
        assert len(waiting.result(5)) == 30_000


@pytest.mark.parametrize("protocol", [2, 3])
def test_subscriptions_pass_while_replies_are_dropped(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any], protocol: int
) -> None:
    with connect(protocol=protocol).pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("a", "b", "c")
        until(lambda: holdfast_server.call("PUBSUB", "NUMSUB", "c")[1] == 1)
        holdfast_proxy.drop_replies()
        holdfast_server.call("PUBLISH", "c", "hello")
        received: list[Any] = []
        until(lambda: received.append(subscription.get_message(timeout=0.1)) or received[-1])
        assert received[-1]["data"] == b"hello"


def test_proxy_to_a_unix_socket_and_to_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with FaultProxy(target_path=path) as proxy:
        with redis.Redis(port=proxy.port, retry=None) as client, pytest.raises(redis.ConnectionError):
            client.ping()
        with LocalServer(config={"unixsocket": str(path)}) as server, server.client(port=proxy.port) as client:
            assert client.ping()


def test_splitter_finds_the_same_messages_wherever_the_bytes_are_cut() -> None:
    messages = [
        *(b"+OK\r\n", b"-ERR x\r\n", b":1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"(123\r\n", b"*0\r\n"),
        *(b"$-1\r\n", b"*-1\r\n", b"$0\r\n\r\n", b"$4\r\n\r\n\r\n\r\n", b"=7\r\ntxt:abc\r\n", b"!3\r\nbad\r\n"),
        *(b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", b"%1\r\n+k\r\n*2\r\n:1\r\n:2\r\n", b"~1\r\n:1\r\n"),
        *(b">2\r\n+message\r\n+x\r\n", b"|1\r\n+ttl\r\n:3\r\n*1\r\n:1\r\n", b"PING x\r\n"),
    ]
    stream = b"".join(messages)
    for size in range(1, len(stream) + 1):
        splitter = Splitter(inline=True)
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [message for chunk in chunks for message in splitter.feed(chunk)] == messages

    tls = Splitter(inline=True)
    assert tls.feed(b"\x16\x03\x01") + tls.feed(b"*1\r\n") == [b"\x16\x03\x01", b"*1\r\n"]
    assert words(b"*3\r\n$6\r\nclient\r\n$5\r\nREPLY\r\n$3\r\noff\r\n") == (b"CLIENT", b"REPLY")


# -- plugin


def test_plugin_import_is_cheap() -> None:
    code = "import sys, holdfast.testing.plugin as _; print(*[m for m in sys.modules if 'holdfast.testing.' in m])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == ["holdfast.testing.plugin"]


def test_server_is_empty_again(holdfast_server: LocalServer, request: pytest.FixtureRequest) -> None:
    # Every test above that wrote used this server too.
    assert holdfast_server.call("DBSIZE") == 0


def test_blocking_client_fixture(holdfast: Any, holdfast_url: str) -> None:
    assert holdfast.ping() < 5
    assert holdfast_url.partition("//")[2] in repr(holdfast)


async def test_client_factory(holdfast_client: Callable[..., Any]) -> None:
    async with holdfast_client() as client:
        assert await client.ping() < 5

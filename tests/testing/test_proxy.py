"""Each fault as a plain redis-py client sees it, and what the server did meanwhile."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast.testing import FaultProxy, LocalServer
from holdfast.testing.resp import Splitter, words
from support.conditions import until_blocking as until


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


def test_healthy_proxy_passes_and_counts(holdfast_proxy: FaultProxy, connect: Callable[..., Any]) -> None:
    client = connect()
    blob = os.urandom(300_000)
    assert client.set("k", blob)
    before = holdfast_proxy.requests_forwarded
    assert client.get("k") == blob
    assert client.pipeline(transaction=True).incr("n").incr("n").execute() == [1, 2]
    assert holdfast_proxy.requests_forwarded - before == 5
    assert (holdfast_proxy.connections, holdfast_proxy.replies_dropped) == (1, 0)


def test_delay_is_latency_and_heals_at_once(
    holdfast_server: LocalServer, holdfast_proxy: FaultProxy, connect: Callable[..., Any]
) -> None:
    client = connect()
    client.ping()
    holdfast_proxy.delay(0.1)
    started = time.monotonic()
    client.ping()
    assert 0.2 <= time.monotonic() - started < 2

    holdfast_proxy.delay(60, direction="replies")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.incr, "n")
        until(lambda: holdfast_server.call("EXISTS", "n"))
        holdfast_proxy.heal()
        assert waiting.result(5) == 1


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


def test_a_resp2_subscription_is_left_alone_even_by_its_own_requests(holdfast_proxy: FaultProxy) -> None:
    # There a message looks like a reply, so no reply can be told to belong to a request.
    with socket.create_connection((holdfast_proxy.host, holdfast_proxy.port), timeout=5) as wire:
        wire.sendall(b"SUBSCRIBE a\r\n")
        assert wire.recv(4096).endswith(b":1\r\n")
        holdfast_proxy.drop_replies()
        wire.sendall(b"PING\r\n")
        assert wire.recv(4096) == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"


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

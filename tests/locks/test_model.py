"""Hypothesis drives random interleavings of acquire, release, renew, expire, cancel, kill and force against a model of
each kind of lock, on a real server whose clock the test moves."""

from __future__ import annotations

import socket

import hiredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.backends import Backends
from support.depth import tries
from support.model import CLOCK_KEY, Model, MovedClock

LEASE = 3_000
BASE = "hf:{locks.1}:"
KINDS = {"mutex": (1, (1,)), "semaphore": (3, (1, 2)), "readwrite": (1_000_000, (1, 1_000_000))}


class Ears:
    """A subscribed connection, by hand: answers once the server has confirmed."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._reader = hiredis.Reader()

    def tell(self, command: bytes, channel: str) -> None:
        self._socket.sendall(hiredis.pack_command((command, channel)))
        while True:
            message = self._reader.gets()
            if message is False:
                self._reader.feed(self._socket.recv(65536))
            elif message[0] == command.lower():
                return

    def close(self) -> None:
        self._socket.close()


class LockMachine(RuleBasedStateMachine):
    """Four clients at a time; a killed one is followed by a new one with a new id."""

    server: redis.Redis
    kind = "mutex"

    def __init__(self) -> None:
        super().__init__()
        self.limit, self.weights = KINDS[self.kind]
        self.model = Model(self.limit)
        self.scripts = MovedClock()
        self.server.flushall()
        self.server.script_flush()
        self.ears = Ears(self.server.connection_pool.connection_kwargs["port"])
        self.number = 0
        self.clients: list[str] = []
        self.tokens: dict[str, str] = {}
        self.weight: dict[str, int] = {}
        self.last_fence = 0
        self._set_clock()

    def teardown(self) -> None:
        self.ears.close()

    @initialize()
    def start(self) -> None:
        for _ in range(4):
            self._new_client()

    def _new_client(self) -> None:
        self.number += 1
        client = f"c{self.number}"
        self.clients.append(client)
        self.ears.tell(b"SSUBSCRIBE", f"{BASE}sig:{client}")
        self.model.listening.add(client)
        self._new_token(client)

    def _new_token(self, client: str) -> None:
        self.number += 1
        self.tokens[client] = f"{client}.{self.number}"

    def _set_clock(self) -> None:
        self.server.set(CLOCK_KEY, self.model.now)

    def _call(self, name: str, keys: list[str], *args):
        script = self.scripts.get(name)
        try:
            return self.server.evalsha(script.sha.decode(), len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            self.server.script_load(script.source)
            return self.server.evalsha(script.sha.decode(), len(keys), *keys, *args)

    KEYS = [BASE + "lock:a", BASE + "q.lock:a", BASE + "shard"]  # noqa: RUF012

    # -- what may happen --------------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 3), pick=st.integers(0, 9), wait=st.booleans(), ttl=st.sampled_from([1_000, 5_000, 30_000]))
    def acquire(self, at: int, pick: int, wait: bool, ttl: int) -> None:
        """Ask, or ask again with the same token: a lost reply, or a waiter that shows it lives."""
        token = self.tokens[self.clients[at]]
        weight = self.weight.setdefault(token, self.weights[pick % len(self.weights)])
        lease = LEASE if wait or token in self.model.tickets else 0
        args = (token, weight, self.limit, ttl, lease, "f", "host 1", BASE + "sig:")
        was_held = token in self.model.live()
        expected = self.model.acquire(token, weight, ttl, lease)
        reply = self._call("locks/acquire", self.KEYS, *args)
        assert reply[0].decode() == expected
        if expected == "granted" and not was_held:
            assert reply[1] > self.last_fence

    @rule(at=st.integers(0, 3))
    def release_or_cancel(self, at: int) -> None:
        client = self.clients[at]
        token = self.tokens[client]
        held = token in self.model.holds
        expected = self.model.release(token)
        reply = self._call("locks/release", self.KEYS, token, BASE + "sig:")[0].decode()
        # An expired hold may or may not have been swept up by somebody else's call before.
        assert reply == expected or ({reply, expected} <= {"expired", "not_held"} and held), (reply, expected)
        self._new_token(client)

    @rule(at=st.integers(0, 3), ttl=st.sampled_from([1_000, 30_000]))
    def renew(self, at: int, ttl: int) -> None:
        token = self.tokens[self.clients[at]]
        reply = self._call("locks/renew", [BASE + "shard", BASE + "lock:a"], token, ttl)
        assert reply[2] == int(self.model.renew(token, ttl))

    @rule(ms=st.sampled_from([1, 500, 1_000, 2_999, 3_000, 5_000, 31_000]))
    def time_passes(self, ms: int) -> None:
        self.model.now += ms
        self._set_clock()

    @precondition(lambda self: self.number < 60)
    @rule(at=st.integers(0, 3))
    def kill(self, at: int) -> None:
        """Nobody listens for it any more, and it never calls again."""
        client = self.clients.pop(at)
        self.ears.tell(b"SUNSUBSCRIBE", f"{BASE}sig:{client}")
        self.model.listening.discard(client)
        self._new_client()

    @rule()
    def force(self) -> None:
        self.number += 1
        keys = [*self.KEYS, BASE + "audit"]
        before = len(self.model.holds)
        reply = self._call("locks/force", keys, 0, "test", "test", f"op{self.number}", BASE + "sig:")
        if reply[0] == b"not_held":
            assert not self.model.live()
            self.model.holds.clear()
            return
        assert len(self.model.live()) <= reply[1] <= max(before, reply[1])
        self.model.force()

    # -- what must always be so -------------------------------------------------------------------------------------

    def _server_view(self) -> tuple[dict[str, tuple[int, int]], list[str]]:
        fields = self.server.hgetall(self.KEYS[0])
        holds = {}
        for field, value in fields.items():
            if field.startswith(b"h:"):
                deadline, weight, fence, *_ = map(int, value.split())
                if deadline > self.model.now:
                    holds[field[2:].decode()] = (deadline, weight)
                    self.last_fence = max(self.last_fence, fence)
        return holds, [token.decode() for token in self.server.zrange(self.KEYS[1], 0, -1)]

    @invariant()
    def the_server_agrees_with_the_model(self) -> None:
        holds, queue = self._server_view()
        assert sum(weight for _, weight in holds.values()) <= self.limit
        assert holds == {token: (hold.deadline, hold.weight) for token, hold in self.model.live().items()}
        assert queue == self.model.queue

    @invariant()
    def nothing_lives_for_ever(self) -> None:
        for key in self.server.scan_iter(match="hf:*"):
            assert self.server.pttl(key) > 0, key


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_agree_with_the_model(backends: Backends, kind: str) -> None:
    class Machine(LockMachine):
        pass

    Machine.server = backends.get("valkey").owner.client()
    Machine.kind = kind
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                **tries(25, 2000), stateful_step_count=40,
                suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
    finally:
        Machine.server.flushall()
        Machine.server.close()

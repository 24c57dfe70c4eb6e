"""A client whose requests can be held back and delivered late, and what may happen to a message meanwhile."""

from __future__ import annotations

import socket
from collections import Counter

import hiredis

from holdfast.engine.flow import ReplyLost, Send
from holdfast.sync import Holdfast
from support.backends import Backend

USER = "user-7"


class Bench:
    """A client, a second one, and a hand on the wire."""

    def __init__(self, backend: Backend, hf: Holdfast, other: Holdfast):
        self.hf, self.other = hf, other
        self.server = backend.owner.client()
        self.port = self.server.connection_pool.connection_kwargs["port"]
        bounds = {"capacity": 5, "ttl": 600, "conversations": 3}
        self.buffer = hf.buffer("b", **bounds)
        self.elsewhere = other.buffer("b", **bounds)
        self.place = self.buffer._spec.place(USER)
        self.held_back: list[bytes] = []

    def hold_back(self, name: str) -> None:
        """The next request of this script is not sent, and the client is told that no reply came."""
        self._lose(name, executed=False)

    def lose_reply(self, name: str) -> None:
        """The next request of this script is executed, and its reply is lost."""
        self._lose(name, executed=True)

    def _lose(self, name: str, *, executed: bool) -> None:
        script, driver = self.hf._core.scripts.get(name), self.hf._open
        self.server.script_load(script.source)
        real = type(driver).run.__get__(driver)
        self.held_back.clear()

        def around(flow):
            send, throw = None, None
            while True:
                try:
                    effect = flow.throw(throw) if throw is not None else flow.send(send)
                except StopIteration as stop:
                    return stop.value
                send, throw = None, None
                mine = isinstance(effect, Send) and script.sha in effect.payload and not self.held_back
                if mine:
                    self.held_back.append(effect.payload)
                try:
                    if not mine or executed:
                        send = yield effect
                    if mine:
                        throw = ReplyLost("lost by the test")
                except Exception as error:
                    throw = error

        driver.run = lambda flow: real(around(flow))

    def deliver(self) -> list:
        """The held-back request arrives now."""
        (payload,) = self.held_back
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as wire:
            wire.sendall(payload)
            reader = hiredis.Reader()
            while (reply := reader.gets()) is False:
                reader.feed(wire.recv(1 << 20))
        assert not isinstance(reply, hiredis.ReplyError), reply
        return reply

    def call(self, name: str, keys, *args):
        """One script, built by hand."""
        script = self.hf._core.scripts.get(name)
        self.server.script_load(script.source)
        return self.server.evalsha(script.sha.decode(), len(keys), *keys, *args)

    def stored(self) -> Counter:
        """Everything that is anywhere for this user: waiting, in a batch, in a dead letter."""
        found: Counter = Counter()
        for entry in self.server.lrange(self.place.key, 1, -1):
            found[entry[:10].hex()] += 1
        for letter in self.buffer.dead_letters():
            for message in self.buffer.dead_letter(letter.id).messages:
                found[message.id] += 1
        return found

    def counts(self) -> dict[str, int]:
        return self.buffer.totals().counts

    def take(self, **options):
        batch = self.elsewhere.take(USER, **options)
        assert batch is not None
        return batch


# -- what may happen meanwhile; not `forget`, which forgets repeats too: docs/guarantees.md ------------------


def nothing(b: Bench) -> None:
    pass


def taken(b: Bench) -> None:
    b.take()


def acked(b: Bench) -> None:
    b.take().ack()


def partly_acked(b: Bench) -> None:
    batch = b.take()
    batch.ack([batch.messages[0].id])


def partly_acked_and_given_back(b: Bench) -> None:
    batch = b.take()
    batch.ack([batch.messages[0].id])
    batch.nack()


def popped(b: Bench) -> None:
    assert b.elsewhere.pop(USER, 100)


def cleared(b: Bench) -> None:
    assert b.elsewhere.clear(USER)


def given_back(b: Bench) -> None:
    b.take().nack()


def buried(b: Bench) -> None:
    assert b.take(max_attempts=1).nack(error="test") is True


def buried_and_replayed(b: Bench) -> None:
    buried(b)
    assert b.buffer.replay(b.buffer.dead_letters()[0].id)


def pushed_out(b: Bench) -> None:
    assert b.elsewhere.extend(USER, ["other"] * 5).dropped


def then_another(first):
    def both(b: Bench) -> None:
        first(b)
        b.elsewhere.append(USER, "another")

    both.__name__ = f"{first.__name__}_then_another"
    return both


_ENDS = (nothing, taken, acked, partly_acked, partly_acked_and_given_back, popped, cleared, given_back, buried,
         buried_and_replayed, pushed_out)  # fmt: skip
MEANWHILE = {f.__name__: f for end in _ENDS for f in (end, then_another(end))}

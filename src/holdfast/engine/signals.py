"""Signals: how a release in one process wakes the one waiter, in another, that it granted to.

Each process listens on a channel of its own, one in each shard that it waits in, over one subscribed connection per
server. A signal may be missed (a reconnect, a failover); the waiter then finds out at its next bounded check.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import hiredis

from holdfast.engine.flow import Address, NotSent, backoff
from holdfast.engine.mux import NOTHING
from holdfast.engine.resp import pack
from holdfast.engine.topology import connect, discard

LOOK = "look"
"""What every waiter is told after a reconnect: something may have been missed, ask."""


class Mailbox:
    """Messages by token. A message may come before its waiter waits, so a token is expected from the first request.

    A slot is None (expected), the message that came, or what to call when it comes. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[str, str | Callable[[], None] | None] = {}
        self.on_lost: Callable[[str, str], None] | None = None
        self.on_stop: Callable[[str, str], None] | None = None
        self.feeds: dict[bytes, Callable[[bytes], None]] = {}
        """Called with each message as it came, by channel; with nothing after a reconnect."""
        self.workers: dict[str, Callable[[str], None]] = {}
        """Called with each message for a worker, and with `look` after a reconnect."""

    def expect(self, token: str) -> None:
        self._slots[token] = None

    def forget(self, token: str) -> None:
        self._slots.pop(token, None)

    def take(self, token: str) -> str | None:
        """The message that came, if one did. Nobody is called for this token any more."""
        with self._lock:
            slot = self._slots.get(token)
            if slot is not None:
                self._slots[token] = None
        return slot if isinstance(slot, str) else None

    def park(self, token: str, wake: Callable[[], None]) -> None:
        """Call `wake` when a message comes, or now if it came."""
        with self._lock:
            if not isinstance(self._slots.get(token), str):
                self._slots[token] = wake
                return
        wake()

    def deliver(self, message: str) -> None:
        """`grant TOKEN FENCE MS`, `try TOKEN`, `work TOKEN SHARD MS`, `stop TOKEN REASON` or `lost TOKEN REASON`."""
        word, _, rest = message.partition(" ")
        token, _, detail = rest.partition(" ")
        if word == "work":
            worker = self.workers.get(token)
            if worker is not None:
                worker(detail)
        elif word == "stop":
            if self.on_stop is not None:
                self.on_stop(token, detail)
        elif word != "lost":
            self._put(token, message)
        elif self.on_lost is not None:
            self.on_lost(token, detail)

    def after_fork(self) -> None:
        """In the child: nobody waits here, and the lock may have been another thread's."""
        self._lock = threading.Lock()
        self._slots.clear()
        self.feeds.clear()

    def wake(self, token: str, message: str) -> None:
        """From inside this process. A message that came already stays."""
        self._put(token, message, only_if_empty=True)

    def deliver_all(self) -> None:
        """After a reconnect: whoever waits looks again. A message that came already stays."""
        for feed in list(self.feeds.values()):
            feed(b"")
        for token in list(self._slots):
            self._put(token, LOOK, only_if_empty=True)
        for worker in list(self.workers.values()):
            worker(LOOK)

    def _put(self, token: str, message: str, only_if_empty: bool = False) -> None:
        with self._lock:
            if token not in self._slots:
                return
            slot = self._slots[token]
            if only_if_empty and isinstance(slot, str):
                return
            self._slots[token] = message
        if callable(slot):
            slot()


class _Subscribed(asyncio.Protocol):
    """The protocol of one subscribed connection."""

    def __init__(self, hub: SignalHub) -> None:
        self._hub = hub
        self._reader = hiredis.Reader(notEnoughData=NOTHING)
        self.transport: asyncio.Transport | None = None
        self.made_by: Any = None
        self.confirmed: dict[str, asyncio.Future[None]] = {}
        self.leaving: dict[bytes, int] = {}
        """Channels that we unsubscribed from and that were not confirmed yet."""
        self.closed = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not NOTHING:
            if isinstance(reply, hiredis.ReplyError):
                self._hub.refused(str(reply))
                self.drop(NotSent(str(reply)))
                return
            kind = reply[0]
            if kind == b"smessage":
                feed = self._hub.mailbox.feeds.get(reply[1])
                if feed is None:
                    self._hub.mailbox.deliver(reply[2].decode("utf-8", "replace"))
                else:
                    feed(reply[2])
            elif kind == b"ssubscribe" and (waiting := self.confirmed.get(reply[1].decode())) is not None:
                if not waiting.done():
                    waiting.set_result(None)
            elif kind == b"sunsubscribe" and self.leaving.get(reply[1], 0) > 0:
                self.leaving[reply[1]] -= 1
                if not self.leaving[reply[1]]:
                    del self.leaving[reply[1]]
            elif kind == b"sunsubscribe":
                # The slot moved away: whoever listens must find its new place.
                self.drop(NotSent("the slot moved"))
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(NotSent(f"the subscribed connection was lost: {exc}"))

    def drop(self, error: Exception) -> None:
        if self.transport is not None:
            self.transport.abort()
        for waiting in self.confirmed.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
        if not self.closed.done():
            self.closed.set_result(None)


class SignalHub:
    """Keeps the subscriptions of one process alive on one event loop."""

    def __init__(
        self,
        topology: Any,
        mailbox: Mailbox,
        refresh: Callable[[str], Any],
        timeout: float,
        warn: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._topology = topology
        self.mailbox = mailbox
        self._refresh = refresh
        self._timeout = timeout
        self._channels: dict[str, str] = {}
        self._live: dict[Address, _Subscribed] = {}
        self._lock = asyncio.Lock()
        self._watchers: set[asyncio.Task[None]] = set()
        self._closing = False

    def refused(self, text: str) -> None:
        """Waiters then only find out by asking. That works, a second late, and somebody should mend it."""
        if not text.startswith(("MOVED", "CLUSTERDOWN")):
            self._warn(f"signals are refused, so waiters only ask now and then: the server says {text}")

    def listening(self, channel: str) -> bool:
        address = self._topology.address(self._channels.get(channel, "")) if channel in self._channels else None
        live = self._live.get(address) if address is not None else None
        return (
            live is not None and not live.closed.done() and channel in live.confirmed and live.confirmed[channel].done()
        )

    async def listen(self, tag: str, channel: str) -> bool:
        """Subscribe, unless that is done. Answers True if it was not: then ask once more, a signal may be gone."""
        if self.listening(channel):
            return False
        async with self._lock:
            if self.listening(channel):
                return True
            self._channels[channel] = tag
            try:
                # Not `wait_for`: on Python 3.11 it swallows a cancellation that comes together with the answer.
                async with asyncio.timeout(self._timeout):
                    await self._subscribe(tag, channel)
            except TimeoutError:
                # It counts as lost, as a request without a reply does: the next one connects anew.
                if (live := self._live.get(self._topology.address(tag))) is not None:
                    live.drop(NotSent("no answer to a subscription"))
                raise
        return True

    def unlisten(self, channel: str) -> None:
        """Nobody here wants this channel any more, unless somebody new does."""
        if channel.encode() in self.mailbox.feeds or self._channels.pop(channel, None) is None:
            return
        for live in self._live.values():
            known = live.confirmed.pop(channel, None)
            if known is None or live.closed.done():
                continue
            if not known.done():
                known.set_exception(NotSent("nobody wants it any more"))
                known.exception()
            raw = channel.encode()
            live.leaving[raw] = live.leaving.get(raw, 0) + 1
            assert live.transport is not None
            live.transport.write(pack(b"SUNSUBSCRIBE", raw))

    async def _subscribe(self, tag: str, channel: str) -> None:
        address = self._topology.address(tag)
        if address is None:
            raise NotSent("the server of this shard is not known yet")
        live = self._live.get(address)
        if live is None or live.closed.done():
            live = await self._connect(address)
        if channel not in live.confirmed:
            live.confirmed[channel] = asyncio.get_running_loop().create_future()
            assert live.transport is not None
            live.transport.write(pack(b"SSUBSCRIBE", channel))
        # Others may wait for the same answer: it does not end with whoever was cancelled or lost patience here.
        await asyncio.shield(live.confirmed[channel])

    async def _connect(self, address: Address) -> _Subscribed:
        made = self._topology.aio_connection(address)
        try:
            await connect(made, self._topology.connect_timeout)
        except Exception as error:
            raise NotSent(f"cannot subscribe: {error}") from error
        if self._closing:  # nobody would close it
            discard(made)
            raise NotSent("the client was closed")
        live = _Subscribed(self)
        live.made_by, live.transport = made._writer, made._writer.transport
        made._reader = made._writer = None
        assert live.transport is not None
        live.transport.set_protocol(live)
        self._live[address] = live
        watcher = asyncio.get_running_loop().create_task(self._watch(address, live))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return live

    async def _watch(self, address: Address, live: _Subscribed) -> None:
        """When a subscribed connection ends: subscribe again elsewhere, then let every waiter ask."""
        await live.closed
        if self._live.get(address) is live:
            del self._live[address]
        # Those that were refused are asked for again by whoever wants them, at that one's own pace.
        wanted = [channel for channel, done in live.confirmed.items() if done.done() and done.exception() is None]
        if not wanted:
            return
        attempt = 0
        while wanted and not self._closing:
            with contextlib.suppress(Exception):  # whatever it is, the next try may do better
                await self._refresh("subscription lost")
                for channel in list(wanted):
                    if channel in self._channels:
                        await self.listen(self._channels[channel], channel)
                    wanted.remove(channel)
                break
            await asyncio.sleep(backoff(attempt))
            attempt += 1
        self.mailbox.deliver_all()

    async def close(self) -> None:
        self._closing = True
        for live in list(self._live.values()):
            live.drop(NotSent("the client was closed"))
        for watcher in list(self._watchers):
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._live.clear()

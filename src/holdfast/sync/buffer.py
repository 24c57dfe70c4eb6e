# Written by tools/make_sync.py from src/holdfast/buffers/buffer.py. Change that file, then run `make sync`.
"""A buffer: bounded messages of each user, until somebody absorbs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.buffers import flows, holding, letters, tickets
from holdfast.buffers.holding import Terms
from holdfast.buffers.letters import BufferStats, BufferTotals, DeadLetter, UserStats
from holdfast.buffers.message import Appended, Message
from holdfast.buffers.spec import DEADLINE, MAX_BATCH, MAX_LEASE, MIN_TTL, BufferSpec
from holdfast.buffers.tickets import BatchTicket
from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.engine.payload import encode
from holdfast.engine.threads import ThreadDriver
from holdfast.keys import Id
from holdfast.sync.batch import Batch

NO_PENDING: Mapping[str, float] = {}


class Buffer:
    """Messages of each user, bounded in number, bytes and age. Made by `Holdfast.buffer`; making one sends nothing.

    What `append` acknowledged is handed to a handler at least once, unless capacity, bytes or age removed it, which is
    counted and reported. One worker at a time per user has a batch. A batch in flight does not count against the
    capacity and is never dropped.
    """

    def __init__(self, core: Core, driver: Callable[[], ThreadDriver], spec: BufferSpec) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self.name = spec.name

    @property
    def capacity(self) -> int:
        """How many messages of a user may wait."""
        return self._spec.capacity

    def __repr__(self) -> str:
        return f"<Buffer {self.name} capacity={self._spec.capacity} ttl={self._spec.ttl:g}>"

    # -- in -----------------------------------------------------------------------------------------------------

    def append(
        self, user: Id, data: Any, *, pending: Mapping[str, float | None] | Sequence[str] | None = None
    ) -> Appended:
        """Store one message: any JSON value, or bytes. The oldest are dropped where there is no room.

        `pending`: names of attachments that are still under way, with the seconds until each counts as failed (a list
        of names: 10 s each). The message, and what comes after it, is not handed out until each was resolved or failed.
        A lost reply is asked for again, and the message is stored once. Raises Unavailable if it was surely not stored,
        Indeterminate if that cannot be known; so does a cancellation in the middle."""
        wanted = flows.check_pending(pending, DEADLINE) if pending is not None else NO_PENDING
        return self._driver().run(flows.append(self._core, self._spec, user, (data,), wanted))

    def extend(self, user: Id, items: Sequence[Any]) -> Appended:
        """Store several messages, all in one step or none. Otherwise as `append`."""
        return self._driver().run(flows.append(self._core, self._spec, user, flows.check_items(items), NO_PENDING))

    def resolve(self, user: Id, message: str, name: str, data: Any) -> bool:
        """An attachment is there: `data` comes with its message. False if it is too late: its
        deadline has passed, its message was taken, or there is no such attachment (any more)."""
        outcome = b"r" + encode(data, self._spec.max_message)
        return self._driver().run(flows.settle(self._core, self._spec, user, message, name, outcome))

    def fail(self, user: Id, message: str, name: str) -> bool:
        """An attachment will not come: its message is handed out without it. False if that was decided already."""
        return self._driver().run(flows.settle(self._core, self._spec, user, message, name, b"f"))

    def converse(self, user: Id, said: Any, answered: Any) -> int:
        """Add one turn of the conversation: it is handed out with the messages it explains. Answers how many wait.

        Bounded by `conversations`. A turn lives `conversation_ttl` seconds, and longer while a message that came in
        that time still waits."""
        return self._driver().run(flows.converse(self._core, self._spec, user, [(said, answered)]))

    # -- out ----------------------------------------------------------------------------------------------------

    def take(
        self, user: Id, limit: int = MAX_BATCH, *, lease: float | None = None, max_attempts: int | None = None,
        max_hold: float | None = None,
    ) -> Batch | None:  # fmt: skip
        """Lease what is ready of this user, at most `limit` messages; None if nothing is.

        It is ours for `lease` seconds and renewed in the background, at most for `max_hold`. Raises NotAcquired while
        another batch of the user is in flight. Absorbers do this by themselves. Cancelled, it gives back."""
        terms = self._terms(limit, lease, max_attempts, max_hold)
        driver = self._driver()
        taking = driver.run(holding.take(self._core, self._spec, self._spec.place(user), terms, driver.home()))
        return None if taking is None else Batch(self._core, driver, self._spec, taking, terms)

    def ticket(
        self, user: Id, limit: int = MAX_BATCH, *, lease: float | None = None, max_attempts: int | None = None
    ) -> BatchTicket | None:
        """As `take`, for a worker outside this process: nobody renews the lease but whoever has the token, and closing
        the client does not give the batch back. Raises NotAcquired while a batch of the user is in flight."""
        terms = self._terms(limit, lease, max_attempts, None)
        return self._driver().run(tickets.take(self._core, self._spec, user, terms))

    def renew_ticket(self, user: Id, token: str, *, lease: float | None = None) -> float:
        """Let a batch stay its holder's for `lease` seconds from now on. Answers the seconds. Raises LeaseLost."""
        seconds = self._terms(1, lease, None, None).lease
        return self._driver().run(tickets.renew(self._core, self._spec, user, token, seconds))

    def ack_ticket(self, user: Id, token: str, fence: int, ids: Sequence[str] | None = None) -> int:
        """Remove the batch, or only the messages with these ids. Answers how many messages of it are left.

        Safe to repeat: a second acknowledgement answers 0. Raises LeaseLost if it is somebody else's by now."""
        return self._driver().run(tickets.ack(self._core, self._spec, user, token, fence, ids))

    def nack_ticket(
        self, user: Id, token: str, *, delay: float = 0.0, error: str = "", max_attempts: int | None = None
    ) -> bool:
        """Give a batch back, to be handed out again after `delay` seconds. True if it went to the dead letters."""
        check_seconds("delay", delay, 0.0, MAX_LEASE)
        attempts = self._terms(1, None, max_attempts, None).attempts
        return self._driver().run(tickets.nack(self._core, self._spec, user, token, float(delay), attempts, str(error)))

    def pop(self, user: Id, limit: int = 1) -> list[Message]:
        """Remove and answer the oldest messages that are ready: at most once. If this process dies, or the reply is
        lost (Indeterminate), they are gone. Use `take` for messages that must not be lost."""
        check_count("limit", limit, 1, MAX_BATCH)
        return self._driver().run(flows.pop(self._core, self._spec, user, limit))

    def peek(self, user: Id, limit: int = 100) -> list[Message]:
        """The oldest waiting messages, which stay. What is in a batch, and attachments, are not shown."""
        check_count("limit", limit, 1, MAX_BATCH)
        return (self._driver().run(letters.look(self._core, self._spec, user, limit)))[1]

    def count(self, user: Id) -> int:
        """How many messages wait, not counting a batch in flight."""
        return (self.stats(user)).waiting

    def age(self, user: Id) -> float | None:
        """Seconds since the oldest waiting message was appended; None if nothing waits."""
        return (self.stats(user)).age

    def stats(self, user: Id) -> BufferStats:
        """The numbers of one user."""
        return (self._driver().run(letters.look(self._core, self._spec, user, 0)))[0]

    def totals(self) -> BufferTotals:
        """The numbers of all users together, from the shards' indexes: the key space is not scanned."""
        return self._driver().run(letters.totals(self._core, self._spec))

    def due(self, count: int = 50) -> list[Id]:
        """Users whom a worker should look at now, the most overdue first: their triggers say so, or a batch of theirs
        was given back or lost. From indexes: nothing is scanned."""
        return self._driver().run(letters.due(self._core, self._spec, count))

    def largest(self, count: int = 50, *, offset: int = 0) -> list[UserStats]:
        """Users with the most waiting messages, of those with sixteen and more. From indexes: nothing is scanned.

        They are indexed by about how many wait, and shown with how many do: near neighbours may be out of place."""
        return self._driver().run(letters.users(self._core, self._spec, True, count, offset))

    def oldest(self, count: int = 50, *, offset: int = 0) -> list[UserStats]:
        """Users whose oldest message has waited longest; before them those whose batch was lost by its worker, and of
        whom nothing newer waits (their age is None). From indexes: nothing is scanned."""
        return self._driver().run(letters.users(self._core, self._spec, False, count, offset))

    def in_hand(self, count: int = 50) -> list[UserStats]:
        """Users with a batch that a worker has, or that waits for its next attempt; whose time ends soonest first. From
        indexes: nothing is scanned. With very many who are due some may be left out."""
        return self._driver().run(letters.in_hand(self._core, self._spec, count))

    def flush(self, user: Id) -> bool:
        """Let a worker take what waits now, whatever its triggers say. False if nothing waits."""
        place = self._spec.place(user)
        reply = self._driver().run(
            flows.ask(self._core, "buffers/flush", place, (place.key,), (place.user, place.base))
        )
        return bool(reply[0] == b"forced")

    def clear(self, user: Id) -> int:
        """Remove what waits, with its pairs. A batch in flight stays. Answers how many messages."""
        return (self._driver().run(flows.clear(self._core, self._spec.place(user), "w")))[0]

    def forget(self, user: Id) -> int:
        """Remove every trace of a user: messages, batch in flight, pairs, dead letters. A worker loses the batch at
        once, somebody who took it by hand at the next renewal.

        Answers a fence higher than any given out for the user: record it where you check fences, and a worker that was
        paused meanwhile cannot write the user back."""
        return (self._driver().run(flows.clear(self._core, self._spec.place(user), "a")))[1]

    # -- dead letters -------------------------------------------------------------------------------------------

    def dead_letters(self, count: int = 100) -> list[DeadLetter]:
        """Batches that failed too often, the newest first, without their messages. Kept 30 days, 1000 in each shard."""
        return self._driver().run(letters.dead_letters(self._core, self._spec, count))

    def dead_letter(self, letter: str) -> DeadLetter | None:
        """One of them, with its messages. None if there is no such one."""
        return self._driver().run(letters.dead_letter(self._core, self._spec, letter))

    def replay(self, letter: str) -> int:
        """Put a dead letter back, as the same batch with its attempts counted anew. Answers how many messages; 0 if
        there is no such letter. Raises NotAcquired while another batch of the user is in flight."""
        return self._driver().run(letters.revive(self._core, self._spec, letter, "r"))

    def purge(self, letter: str) -> int:
        """Remove a dead letter for good. Answers how many messages; 0 if there is no such letter."""
        return self._driver().run(letters.revive(self._core, self._spec, letter, "p"))

    # -- inside -------------------------------------------------------------------------------------------------

    def _terms(self, limit: int, lease: float | None, attempts: int | None, max_hold: float | None) -> Terms:
        settings = self._core.settings
        seconds = settings.ttl if lease is None else check_seconds("lease", lease, MIN_TTL, MAX_LEASE)
        if max_hold is not None:
            # The server must not keep it longer either, should this process hang.
            seconds = min(seconds, check_seconds("max_hold", max_hold, MIN_TTL, MAX_LEASE))
        return Terms(
            seconds,
            check_count("limit", limit, 1, MAX_BATCH),
            settings.max_attempts if attempts is None else check_count("max_attempts", attempts, 1, 60_000),
            max_hold,
        )

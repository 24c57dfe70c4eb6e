"""A batch: messages of one user that one worker at a time may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from holdfast.buffers import holding
from holdfast.buffers.holding import Taking, Terms
from holdfast.buffers.message import Message, Pair
from holdfast.buffers.spec import MAX_LEASE, BufferSpec
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.engine.limits import check_seconds
from holdfast.engine.scope import AsyncScope
from holdfast.errors import LeaseLost
from holdfast.keys import Id


class Batch:
    """Messages of one user, leased: nobody else is given them until the deadline, which is put off in the background.

    A batch that is not acknowledged is handed out again as the same batch: same `id`, same messages, higher `attempt`,
    higher `fence`. A sink that keys on `id` and refuses lower fences therefore has each effect once.

        batch = await inbox.take("user-7")
        if batch is not None:
            async with batch:   # acknowledged at the end, given back after an error
                store(batch.messages, batch.id, batch.fence)

    Inside, the loss of the lease cancels the body and LeaseLost is raised.
    """

    __slots__ = (
        "__weakref__", "_core", "_driver", "_leave_span", "_left", "_returned", "_scope", "_spec", "_taking", "_terms",
        "attempt", "buffer", "id", "key", "messages", "pairs",
    )  # fmt: skip

    def __init__(self, core: Core, driver: AsyncDriver, spec: BufferSpec, taking: Taking, terms: Terms) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self._taking = taking
        self._terms = terms
        self._left = len(taking.messages)
        self._returned = False
        self._scope: AsyncScope | None = None
        self._leave_span: Callable[[BaseException | None], None] | None = None
        taking.hold.adopted = True
        self.buffer = spec.name
        self.id = str(taking.id)
        """Unique for the user, not over all users; the same each time the batch is handed out."""
        self.key: Id = holding.user_of(taking.place)
        """The user."""
        self.messages: Sequence[Message] = taking.messages
        self.pairs: Sequence[Pair] = taking.pairs
        """Turns of the conversation, acknowledged with the messages."""
        self.attempt = taking.attempt
        """1 the first time it is handed out."""

    def __repr__(self) -> str:
        state = f"lost: {self._taking.hold.lost_reason}" if self.lost else f"{self.remaining():.1f} s left"
        what = f"{self.id} of {self.buffer}:{self.key!r}, {len(self.messages)} messages"
        return f"<Batch {what}, attempt {self.attempt}, {state}>"

    def __del__(self) -> None:
        # Nobody can acknowledge it any more, so it must not be renewed for ever.
        self._taking.hold.abandoned = True

    @property
    def fence(self) -> int:
        """Higher than that of every earlier hand-out of this user's messages. Check it where you write."""
        return self._taking.hold.fence

    @property
    def deadline(self) -> float:
        """Until when it is ours unless renewed, on the clock of `remaining`."""
        return self._taking.hold.deadline

    def remaining(self) -> float:
        """Seconds until the deadline; 0.0 once lost, acknowledged or given back."""
        if self._taking.hold.over or self.lost:
            return 0.0
        return max(0.0, self._taking.hold.deadline - self._core.clock())

    @property
    def lost(self) -> bool:
        """True once somebody else may have it."""
        hold = self._taking.hold
        if hold.lost_reason or hold.over:
            return bool(hold.lost_reason)
        return self._core.clock() >= hold.deadline or self._core.forked

    @property
    def done(self) -> bool:
        """True once it was acknowledged or given back."""
        return self._taking.hold.over and not self._taking.hold.lost_reason

    def check(self) -> None:
        """Raise LeaseLost if it is lost. Call it before a step that cannot be undone."""
        if self.lost:
            if self._taking.hold.lose("expired"):
                self._core.end_lost(self._taking.hold)
            raise holding.lost(self._taking.hold, "batch/check")

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when it is lost, from whichever thread notices. Answers a function that stops watching."""
        return self._taking.hold.watch(callback)

    async def ack(self, ids: Iterable[str] | None = None) -> int:
        """Remove the batch, or only the messages with these ids. Answers how many messages of it are left.

        Raises LeaseLost if it is no longer ours: its messages are handed out again. Raises Indeterminate if no answer
        came. Cancellation does not stop it."""
        if self.done:
            if self._left:
                raise LeaseLost(
                    "expect the same batch again, by its id: it was given back",
                    reason="given back", operation="buffers/ack", key=self._taking.hold.name,
                )  # fmt: skip
            return 0
        if ids is not None:
            ids = list(ids)
            if not ids:
                return self._left
        self._left = await self._driver.run(holding.ack(self._core, self._spec, self._taking, ids))
        return self._left

    async def nack(self, delay: float = 0.0, *, error: str = "", count: bool = True) -> bool:
        """Give it back, to be handed out again after `delay` seconds, as the same batch.

        After `max_attempts` it goes to the dead letters instead, with `error`: then the answer is True. With
        `count=False` this attempt does not count. Without an answer it comes free when its lease ends."""
        check_seconds("delay", delay, 0.0, MAX_LEASE)
        if self.done:
            return False
        self._returned = True
        attempts = self._terms.attempts if count else 0
        flow = holding.nack(self._core, self._spec, self._taking, float(delay), attempts, str(error))
        return await self._driver.run(flow)

    async def __aenter__(self) -> Self:
        self._scope = AsyncScope(self._taking.hold)
        if self._core.tracing is not None:
            traces = [message.trace for message in self.messages]
            self._leave_span = self._core.enter_span("absorb", traces, holding.about(self._spec, self._taking))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_span, self._leave_span = self._leave_span, None
        with self._core.leaving_span(leave_span, error):
            await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None
        ours = await scope.leave(error)
        if ours or (error is None and self.lost):
            raise holding.lost(self._taking.hold, "batch/body") from error
        if error is None:
            if not self._returned:
                await self.ack()
        elif self.lost:
            return
        else:
            await self.nack(error=repr(error), count=isinstance(error, Exception))

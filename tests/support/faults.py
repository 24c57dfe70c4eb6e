"""Faults at a chosen step of an operation.

An operation is a flow, so a fault is a flow around it: it passes effects on to the real driver and the real server, and
at its step it loses the reply, cuts before sending, or cancels. Running it for step 0, 1, 2 … until a run meets no
fault covers every step there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from holdfast.engine.flow import Flow, NotSent, ReplyLost, Send, Sleep, Together

FAULTS = ("reply dropped", "cut before", "silent", "cancel before", "cancel after")
SOON = 0.002
"""Where nothing else goes wrong it is not worth waiting before the next attempt."""


def worth_a_thread(*faults: str) -> bool:
    """Whether these, met by a blocking client, say more than when they are met by an asynchronous one.

    A lost reply is thrown into the flow, which both twins share, and no driver sees it. How a caller is interrupted
    differs; and the first fault of all is tried on both."""
    return faults == ("reply dropped",) or any(fault.startswith("cancel") for fault in faults)


class Plan:
    """Which effect of all that a client yields meets which fault. `hits` says how many were met."""

    def __init__(self, faults: dict[int, str], cancel: type[BaseException]) -> None:
        self.faults = faults
        self.cancel = cancel
        self.step = 0
        self.hits: list[tuple[int, str, str]] = []

    def around(self, flow: Flow[Any]) -> Flow[Any]:
        """The flow, with the fault."""
        send: Any = None
        throw: BaseException | None = None
        while True:
            try:
                effect = flow.throw(throw) if throw is not None else flow.send(send)
            except StopIteration as stop:
                return stop.value
            send, throw = None, None
            fault = self.faults.get(self.step)
            number, self.step = self.step, self.step + 1
            if fault is None and isinstance(effect, Sleep):
                effect.seconds = min(effect.seconds, SOON)
            if fault is not None:
                self.hits.append((number, fault, type(effect).__name__))
            try:
                if fault == "cancel before":
                    raise self.cancel
                if isinstance(effect, Send) and fault == "cut before":
                    raise NotSent("cut by the test")
                if isinstance(effect, Send) and fault == "silent":
                    raise ReplyLost("never sent, as the test knows and the client cannot")
                send = yield effect
                if fault == "cancel after":
                    raise self.cancel
                if isinstance(effect, Send) and fault == "reply dropped":
                    raise ReplyLost("dropped by the test")
            except (NotSent, ReplyLost, asyncio.CancelledError, KeyboardInterrupt) as error:
                throw = error


def install(client: Any, plan: Plan) -> None:
    """From now on every flow of this client runs inside the plan."""
    driver = client._open
    real = driver.run
    driver.run = lambda flow: real(plan.around(flow))
    if hasattr(driver, "_together"):  # the blocking driver starts these itself
        together = driver._together
        driver._together = lambda effect: together(Together([plan.around(flow) for flow in effect.flows]))


def every_step(fault: str, longest: int = 40) -> Iterator[dict[int, str]]:
    """One fault at step 0, 1, 2 …; stop iterating when a run had no hit."""
    for step in range(longest):
        yield {step: fault}
    raise AssertionError(f"an operation has more than {longest} steps")


async def every_pair(
    run: Callable[[dict[int, str]], Awaitable[int]], first: str, second: str, longest: int = 14
) -> int:
    """Two faults, at every two steps that a run comes to. `run` answers how many it met; answers how many runs met one.

    A run that did not come to its second fault would not come to a later one, so those are left out."""
    met = 0
    for one in range(longest):
        hits = 0
        for two in range(one + 1, longest):
            hits = await run({one: first, two: second})
            met += bool(hits)
            if hits < 2:
                break
        if not hits:
            break
    return met

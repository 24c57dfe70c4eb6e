"""More faults for flows: error replies that mean "not executed", requests executed too late, faults that stay."""

from __future__ import annotations

import asyncio
from typing import Any

from hiredis import ReplyError

from holdfast.engine.flow import Flow, NotSent, ReplyLost, Send
from support.faults import FAULTS, Plan

REPLIES = {
    "NOSCRIPT": "NOSCRIPT No matching script. Please use EVAL.",
    "LOADING": "LOADING The server is loading the dataset in memory",
    "READONLY": "READONLY You can't write against a read only replica.",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
}
REFUSED = ("NOSCRIPT", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN")
SINGLE = (*FAULTS, "late", *REFUSED)


class Always(dict[int, str]):
    """The same fault at every step."""

    def __init__(self, fault: str) -> None:
        super().__init__({-1: fault})
        self._fault = fault

    def get(self, step: int, default: Any = None) -> Any:
        return self._fault


class RunPlan(Plan):
    """`late`: the request is executed, but only when the operation is over (`deliver`). An error reply comes from the
    server instead of an answer."""

    def __init__(self, faults: dict[int, str], cancel: type[BaseException] = asyncio.CancelledError) -> None:
        super().__init__(faults, cancel)
        self.late: list[Send] = []
        self.told: BaseException | None = None
        """What the caller was told."""

    def around(self, flow: Flow[Any]) -> Flow[Any]:
        return super().around(self._with_more(flow))

    def _with_more(self, flow: Flow[Any]) -> Flow[Any]:
        send: Any = None
        throw: BaseException | None = None
        while True:
            try:
                effect = flow.throw(throw) if throw is not None else flow.send(send)
            except StopIteration as stop:
                return stop.value
            send, throw = None, None
            try:
                send = self._instead(effect) if isinstance(effect, Send) else None
                if send is None:
                    send = yield effect
            except (NotSent, ReplyLost, asyncio.CancelledError, KeyboardInterrupt) as error:
                throw = error

    def _instead(self, effect: Send) -> Any:
        fault = self.faults.get(self.step)
        if fault not in REPLIES and fault != "late":
            return None
        self.hits.append((self.step, fault, "Send"))
        self.step += 1
        if fault == "late":
            self.late.append(effect)
            raise ReplyLost("on its way, as the test knows and the client cannot")
        return ReplyError(REPLIES[fault])

    def deliver(self) -> Flow[None]:
        """What is late arrives now. Nobody waits for the answer any more."""
        late, self.late = self.late, []
        for effect in late:
            yield Send(effect.tag, effect.payload, effect.replies, effect.node)

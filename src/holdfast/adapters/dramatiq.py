"""A Dramatiq actor as a run: once in the fleet, however often its message is delivered.

hf = holdfast.sync.Holdfast("redis://…")  # not opened here: each worker process opens its own
agent = hf.runs("agent")
broker.add_middleware(CurrentMessage())

@dramatiq.actor
@as_run(hf, agent, "{run_id}")
def think(run_id, run):
    ...
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from holdfast import ConfigurationError
from holdfast.adapters.claims import Body, Failed, Name, StandBy, Stopped
from holdfast.sync import Holdfast, Runs

try:
    from dramatiq.errors import RateLimitExceeded, Retry
    from dramatiq.middleware import CurrentMessage, SkipMessage
except ImportError:
    raise ConfigurationError("pip install '.[dramatiq]' in Holdfast's clone to use this adapter") from None

AGAIN = (Retry, RateLimitExceeded)
"""What a body raises to have its message tried again."""


def as_run(
    hf: Holdfast, runs: Runs, run_id: Name | None = None, *, key: Name | None = None, lease: float | None = None,
    stand_by: bool = True, give_back: tuple[type[Exception], ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Decorator, below `@dramatiq.actor`: the body of the actor is a run of `runs`.

    `run_id` and `key`: a template that is filled from the arguments and `task_id`, the message's id; or a function of
    the arguments. Without `run_id` it is the message's id. A parameter named `run` gets the ActiveRun and is not part
    of the message. What the body returns is the result of the run. `lease`: seconds that a dead owner keeps the run,
    else as the collection has it. The broker must have the middleware `CurrentMessage`. `hf` is opened in each process
    when its first message comes.

    A message whose run has completed is answered with its result, without running the body. One whose run is live in
    another process stands by: it looks again after the rest of the lease, so that it takes over if the process dies;
    this does not count as a retry. With `stand_by=False` it is skipped. A message that loses its lease, or finds the
    server out of reach, stands by too. One whose run is
    stopped is skipped. When the body raises, the run has failed, and that is final: the message is not tried again, and
    goes to the dead letters. `Retry`, `RateLimitExceeded`, the interrupts of Dramatiq (shutdown, time limit) and the
    exceptions in `give_back` give the run back, and the next try of the message goes on with it."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        body = Body(hf, runs, function, run_id=run_id, key=key, lease=lease, give_back=(*AGAIN, *give_back))

        @functools.wraps(function)
        def actor_body(*args: Any, **kwargs: Any) -> Any:
            message = CurrentMessage.get_current_message()
            try:
                return body(message.message_id if message else None, args, kwargs)
            except (StandBy, Stopped, Failed) as end:
                cause = end.__cause__ or end
                if message is None:
                    raise cause from None
                if isinstance(end, Failed):
                    message.options["max_retries"] = 0
                    raise cause from None
                if isinstance(end, Stopped) or not stand_by:
                    raise SkipMessage(str(end)) from cause
                # The middleware that sends it again adds one; and however often it does, this is no failure.
                message.options["retries"] = message.options.get("retries", 0) - 1
                raise Retry(str(end), delay=math.ceil(end.seconds * 1000)) from cause

        actor_body.__signature__ = body.signature  # type: ignore[attr-defined]
        return actor_body

    return decorate

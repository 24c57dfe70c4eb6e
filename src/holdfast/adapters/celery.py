"""A Celery task as a run: once in the fleet, however often its message is delivered.

hf = holdfast.sync.Holdfast("redis://…")  # not opened here: each worker process opens its own
agent = hf.runs("agent")

@app.task(acks_late=True, reject_on_worker_lost=True)
@as_run(hf, agent, "{run_id}")
def think(run_id, run):
    ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast import ConfigurationError
from holdfast.adapters.claims import Body, Failed, Name, StandBy, Stopped
from holdfast.sync import Holdfast, Runs

try:
    import celery
    from celery.exceptions import Ignore, Reject, Retry
except ImportError:
    raise ConfigurationError("pip install '.[celery]' in Holdfast's clone to use this adapter") from None

AGAIN = (Retry,)
"""What a body raises to have its message delivered again."""


def as_run(
    hf: Holdfast, runs: Runs, run_id: Name | None = None, *, key: Name | None = None, lease: float | None = None,
    stand_by: bool = True, give_back: tuple[type[Exception], ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Decorator, below `@app.task`: the body of the task is a run of `runs`.

    `run_id` and `key`: a template that is filled from the arguments and `task_id`, or a function of the arguments;
    without `run_id` it is the task's id. A parameter named `run` gets the ActiveRun and is not part of the message.
    What the body returns is the result of the run. `lease`: seconds that a dead owner keeps the run, else as the
    collection has it. `hf` is opened in each process when its first message comes.

    A message whose run has completed is answered with its result, without running the body. One whose run is live in
    another process stands by: it is sent again and looks again after the rest of the lease, so that it takes over if
    the process dies; this does not count as a retry. With `stand_by=False` it is ignored. A message that loses its
    lease, or finds the server out of reach, stands by too. A task whose run is stopped ends as REVOKED. When the body
    raises, the run has failed, and that is final: the task fails, and if it is retried it fails again without running
    the body. Only `task.retry()` in the body, and the exceptions in `give_back`, give the run back, and the retry goes
    on with it."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        body = Body(hf, runs, function, run_id=run_id, key=key, lease=lease, give_back=(*AGAIN, *give_back))

        @functools.wraps(function)
        def task_body(*args: Any, **kwargs: Any) -> Any:
            task = celery.current_task
            try:
                return body(task.request.id if task else None, args, kwargs)
            except (StandBy, Stopped, Failed) as end:
                cause = end.__cause__ or end
                if isinstance(end, Failed) or not task or task.request.called_directly or task.request.is_eager:
                    raise cause from None
                if isinstance(end, Stopped):
                    _revoke(task, str(end))
                if not stand_by:
                    raise Ignore(str(end)) from cause
                _send_again(task, end.seconds, cause)

        task_body.__signature__ = body.signature  # type: ignore[attr-defined]
        return task_body

    return decorate


def _send_again(task: Any, seconds: float, cause: BaseException) -> NoReturn:
    # Not by `task.retry`: that counts, and three are allowed; and a `max_retries` passed to it stays with the task.
    again = task.signature_from_request(countdown=seconds, retries=task.request.retries)
    try:
        again.apply_async()
    except Exception as error:
        raise Reject(error, requeue=True) from error  # with acks_late the broker still has it
    raise Retry(str(cause), exc=None, when=seconds) from cause


def _revoke(task: Any, reason: str) -> NoReturn:
    keep = not (task.ignore_result or task.request.ignore_result)
    task.backend.mark_as_revoked(task.request.id, reason, request=task.request, store_result=keep)
    raise Ignore(reason)

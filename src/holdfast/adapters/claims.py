"""What the adapters for task queues share: the function of a message, run under the guard of a run."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from holdfast import ConfigurationError, Indeterminate, LeaseLost, RunActive, RunEnded, RunStopped, Unavailable
from holdfast.sync import ActiveRun, Holdfast, Runs

Name = str | Callable[..., str]
"""A template that is filled from the arguments, or a function of the arguments."""

AWAY = (Unavailable, Indeterminate)
MARGIN = 0.2
"""Seconds after the end of a lease: who asks at the very end asks twice."""

_opening = threading.Lock()
# One for all clients. `open` is not made for two threads at once, and the threads of a queue's worker get their first
# messages at the same moment.


class StandBy(Exception):
    """Somebody else has the run: come back after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"somebody else has the run; looking again in {seconds:.1f} s")


class Stopped(Exception):
    """The run was stopped, now or before this message came."""


class Failed(Exception):
    """The body raised, now or before this message came, and the run is over. The cause is what to raise."""


class _GivenBack(BaseException):
    """Not an Exception: after one of those the run would have failed."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Body:
    """A function that runs as a run: once for each id, in whichever process claims that first.

    A parameter named `run` gets the ActiveRun, and is not part of the message."""

    def __init__(
        self, hf: Holdfast, runs: Runs, function: Callable[..., Any], *, run_id: Name | None, key: Name | None,
        lease: float | None, give_back: tuple[type[Exception], ...],
    ) -> None:  # fmt: skip
        if not isinstance(hf, Holdfast) or not isinstance(runs, Runs):
            raise ConfigurationError("pass a client of holdfast.sync and its hf.runs(...): the body runs on a thread")
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError("decorate a plain function: the body runs on a thread, with blocking methods")
        self._hf = hf
        self._runs = runs
        self._function = function
        self._run_id = run_id
        self._key = key
        self._lease = lease
        self._give_back = give_back
        self._whole = inspect.signature(function)
        seen = [parameter for parameter in self._whole.parameters.values() if parameter.name != "run"]
        self.signature = self._whole.replace(parameters=seen)
        """As callers see it."""

    def __call__(self, message_id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the body returned, now or for an earlier message of the run. Raises StandBy, Stopped and Failed.

        Anything else that it raises leaves the run as it is or gives it back: the message may come again."""
        arguments = self.signature.bind(*args, **kwargs).arguments  # refused before anything is claimed
        run_id = message_id if self._run_id is None else self._fill(self._run_id, message_id, args, kwargs)
        if run_id is None:
            raise ConfigurationError("pass run_id= to call this without a message: there is no id to take")
        key = None if self._key is None else self._fill(self._key, message_id, args, kwargs)
        with _opening:
            self._hf.open()
        try:
            active = self._runs.claim(run_id, key=key, lease=self._lease)
        except RunActive as busy:
            # Nobody may have it: then its key has no free slot, and that has no end which one could wait for.
            raise StandBy((busy.run.remaining or self._hf.settings.ttl) + MARGIN) from busy
        except AWAY as problem:
            raise StandBy(self._hf.settings.ttl) from problem
        except RunEnded as over:
            if over.run.state == "completed":
                return over.run.result
            raise (Stopped(over.run.reason) if over.run.state == "stopped" else Failed()) from over
        return self._run(active, arguments)

    def _run(self, active: ActiveRun, arguments: dict[str, Any]) -> Any:
        value, lost = None, False
        try:
            with active as run:
                try:
                    value = self._call({**arguments, "run": run})
                except self._give_back as error:
                    raise _GivenBack(error) from error
                finally:
                    lost = run.lost
                run.result = run.result if value is None else value
        except _GivenBack as back:
            raise back.error from None
        except RunStopped as stopped:
            raise Stopped(stopped.reason) from stopped
        except AWAY as problem:
            raise StandBy(self._hf.settings.ttl) from problem  # the next look finds how it ended, or takes it over
        except Exception as error:
            # A lease of something else that the body lost ends there as well: the next look finds that the run failed.
            raise (StandBy(MARGIN) if lost or isinstance(error, LeaseLost) else Failed()) from error
        return value

    def _call(self, arguments: dict[str, Any]) -> Any:
        # In the function's own order: `run` may stand before what the message has without names.
        order = ((name, arguments[name]) for name in self._whole.parameters if name in arguments)
        bound = inspect.BoundArguments(self._whole, OrderedDict(order))
        return self._function(*bound.args, **bound.kwargs)

    def _fill(self, name: Name, message_id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if callable(name):
            return name(*args, **kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return name.format(**{"task_id": message_id, **bound.arguments})

"""A runner: what executes the runs of a collection, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.engine.calling import is_blocking
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.runs.spec import MAX_LEASE, RunSpec
from holdfast.settings import MAX_SECONDS

Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Runner:
    """A handler with its limits. Made by `Holdfast.runner`."""

    spec: RunSpec
    handler: Handler
    concurrency: int
    resumable: bool
    timeout: float | None
    grace: float
    stop_stuck: bool

    @property
    def blocking(self) -> bool:
        """A plain function: it runs in a thread, and its run has blocking methods."""
        return is_blocking(self.handler)

    @property
    def attempts(self) -> int:
        """How many owners a run may have: what cannot go on is not begun again."""
        return self.spec.attempts if self.resumable else 1


def make_runner(
    spec: RunSpec, handler: Handler, *, concurrency: int, resumable: bool, timeout: float | None, stop_grace: float,
    stop_stuck: bool,
) -> Runner:  # fmt: skip
    if not callable(handler):
        raise ConfigurationError(f"decorate a function that takes a run, not {handler!r}")
    return Runner(
        spec=spec,
        handler=handler,
        concurrency=check_count("concurrency", concurrency, 1, 10_000),
        resumable=bool(resumable),
        timeout=None if timeout is None else check_seconds("timeout", timeout, 0.001, MAX_SECONDS),
        grace=check_seconds("stop_grace", stop_grace, 0.0, MAX_LEASE),
        stop_stuck=bool(stop_stuck),
    )

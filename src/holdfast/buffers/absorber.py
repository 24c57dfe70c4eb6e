"""An absorber: what is done with a buffer's batches, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.buffers.holding import Terms
from holdfast.buffers.spec import MAX_BATCH, MAX_LEASE, MIN_TTL, BufferSpec
from holdfast.engine.calling import is_blocking
from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.settings import MAX_SECONDS

MAX_QUIET = 30 * 86_400.0
Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Absorber:
    """A handler with its triggers and limits. Made by `Holdfast.absorber`."""

    spec: BufferSpec
    handler: Handler
    threshold: int
    max_age: float
    quiet: float
    terms: Terms
    concurrency: int
    timeout: float
    backoff: float
    backoff_most: float

    @property
    def blocking(self) -> bool:
        """A plain function: it runs in a thread, and its batch has blocking methods."""
        return is_blocking(self.handler)

    @property
    def triggers(self) -> str:
        return f"{self.threshold} {int(self.max_age * 1000)} {int(self.quiet * 1000)}"


def make_absorber(
    core: Core, spec: BufferSpec, handler: Handler, *, threshold: int | None, max_age: float | None,
    quiet: float | None, batch: int | None, concurrency: int, lease: float | None, timeout: float | None,
    max_attempts: int | None, backoff: float, backoff_most: float,
) -> Absorber:  # fmt: skip
    """Checked before anything is sent."""
    if not callable(handler):
        raise ConfigurationError(f"decorate a function that takes a batch, not {handler!r}")
    s = core.settings
    most = min(spec.capacity, MAX_BATCH) if batch is None else check_count("batch", batch, 1, MAX_BATCH)
    limit = s.handler_timeout if timeout is None else check_seconds("timeout", timeout, 0.001, MAX_LEASE)
    seconds = s.ttl if lease is None else check_seconds("lease", lease, MIN_TTL, MAX_LEASE)
    wanted = min(s.threshold, spec.capacity) if threshold is None else threshold
    return Absorber(
        spec=spec,
        handler=handler,
        threshold=check_count("threshold (at most the capacity)", wanted, 1, spec.capacity),
        max_age=0.0 if max_age is None else check_seconds("max_age", max_age, 0.001, MAX_SECONDS),
        quiet=0.0 if quiet is None else check_seconds("quiet", quiet, 0.001, MAX_QUIET),
        terms=Terms(
            seconds,
            most,
            s.max_attempts if max_attempts is None else check_count("max_attempts", max_attempts, 1, 60_000),
            # A handler that blocks its event loop cannot be stopped at its time limit; its lease ends all the same.
            max_hold=limit + seconds,
        ),
        concurrency=check_count("concurrency", concurrency, 1, 10_000),
        timeout=limit,
        backoff=check_seconds("backoff", backoff, 0.0, MAX_LEASE),
        backoff_most=check_seconds("backoff_most", backoff_most, 0.0, MAX_LEASE),
    )

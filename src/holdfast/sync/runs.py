# Written by tools/make_sync.py from src/holdfast/runs/runs.py. Change that file, then run `make sync`.
"""Runs: started once, owned by one process at a time, stopped from anywhere, read by anybody."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.engine.threads import ThreadDriver
from holdfast.errors import ConfigurationError
from holdfast.keys import Id
from holdfast.runs import flows, owning
from holdfast.runs.feed import Reader
from holdfast.runs.record import Event, Run
from holdfast.runs.spec import MAX_LEASE, MIN_LEASE, STATES, RunSpec, check_conflict, check_state
from holdfast.sync.active import ActiveRun

MAX_WAIT = 366 * 86_400.0


class Runs:
    """A collection of runs. Made by `Holdfast.runs`; making one sends nothing.

    A run has one live owner. Once it has ended (completed, failed or stopped) that is final. A stop that was requested
    before (up to a minute), during or after the start is never missed. Events are totally ordered, and a reader that
    comes back with the last id it saw gets every later event once and then the end, also when the owner died.
    """

    def __init__(self, core: Core, driver: Callable[[], ThreadDriver], spec: RunSpec) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self.name = spec.name

    def __repr__(self) -> str:
        return f"<Runs {self.name} kind={self._spec.kind} slots={self._spec.slots}>"

    # -- start and stop -----------------------------------------------------------------------------------------

    def start(self, run_id: Id, input: Any = None, *, key: Id | None = None, conflict: str | None = None) -> Run:
        """Put a run in the queue; a worker with a runner executes it. The same id again answers the same run.

        Raises RunMismatch if this id was started with another input, key or kind. Runs with a `key` share its slots.
        Where none is free, `conflict` decides: "reject" raises RunActive, which carries the active run; "queue" lets
        the new one wait; "replace" stops the active one, and the new one runs when it has ended; "join" answers the
        active one instead. Raises QueueFull where too many wait. After Unavailable nothing was done; after
        Indeterminate, or a cancellation, start it again: that is safe."""
        policy = self._spec.conflict if conflict is None else check_conflict(conflict)
        return self._driver().run(flows.start(self._core, self._spec, run_id, input, key, policy))

    def claim(
        self, run_id: Id, *, input: Any = None, key: Id | None = None, lease: float | None = None,
        max_attempts: int | None = None,
    ) -> ActiveRun:  # fmt: skip
        """Become the owner of a run, in whatever worker this is: the guard alone. Use it with `with`.

        Makes the run if there is none, takes it from the queue, or takes it over from an owner whose lease is over (up
        to `max_attempts` owners in all). Raises RunActive, which carries the run and so says who has it, and RunEnded
        if it is over. When nobody comes back for a run whose owner was lost, it fails after two hours. Cancelled, it
        gives back."""
        spec, driver = self._spec, self._driver()
        seconds = spec.lease if lease is None else check_seconds("lease", lease, MIN_LEASE, MAX_LEASE)
        attempts = spec.attempts if max_attempts is None else check_count("max_attempts", max_attempts, 1, 60_000)
        driver.aside(lambda aio: aio.hear(spec.tag, spec.signals + self._core.client_id))
        flow = owning.claim(self._core, spec, run_id, input, key, seconds, attempts, driver.home())
        return ActiveRun(self._core, driver, spec, driver.run(flow))

    def stop(self, run_id: Id, reason: str = "") -> Run:
        """Stop a run wherever it is. A queued one has ended when this returns; a running one is `stopping`, and its
        handler is cancelled. Once this has answered, the run ends `stopped` whatever its handler makes of it. A run
        that has ended is answered as it is. Raises RunGone if there is no such run; one of this id that is started
        within a minute ends at once."""
        return self._driver().run(flows.stop(self._core, self._spec, run_id, reason))

    def stop_all(self, key: Id, reason: str = "") -> int:
        """Stop every run of a key that has not ended, in one step. Answers how many."""
        return self._driver().run(flows.stop_all(self._core, self._spec, key, reason))

    # -- looking ------------------------------------------------------------------------------------------------

    def get(self, run_id: Id) -> Run:
        """The run as it is now. Raises RunGone if there is no such run, or no longer."""
        return self._driver().run(flows.look(self._core, self._spec, run_id))

    def wait(self, run_id: Id, timeout: float | None = None) -> Run:
        """Wait until the run has ended, and answer it. Raises TimeoutError after `timeout` seconds, and RunGone."""
        if timeout is not None:
            check_seconds("timeout", timeout, 0.0, MAX_WAIT)
        driver, until = self._driver(), None if timeout is None else self._core.clock() + timeout
        run = self.get(run_id)
        if run.over:
            return run
        reader = Reader(self._core, self._spec, run_id, run.last_event, None, None)
        try:
            while not reader.over:
                reader.within(None if until is None else until - self._core.clock())
                driver.run(reader.more())
        finally:
            reader.leave(driver)
        return self.get(run_id)

    def events(
        self, run_id: Id, after: str | None = None, *, timeout: float | None = None, keep_alive: float | None = None
    ) -> Generator[Event, None, None]:
        """The run's events after the one with the id `after`, or all: those that are stored, then each as it comes,
        until the run's end, which is the last one. The same before, during and after the run, until its retention ends.

        Readers of one process share one subscription. `timeout`: raise TimeoutError after so many seconds without an
        event. `keep_alive`: after so many quiet seconds an event of kind "alive" comes. Raises RunGone if there is no
        such run. Ending the iteration does not stop the run."""
        for what, seconds in (("timeout", timeout), ("keep_alive", keep_alive)):
            if seconds is not None:
                check_seconds(what, seconds, 0.001, MAX_WAIT)
        driver = self._driver()
        reader = Reader(self._core, self._spec, run_id, after, timeout, keep_alive)
        try:
            while not reader.over:
                yield from driver.run(reader.more())
        finally:
            reader.leave(driver)

    def list(
        self, *, state: str | None = None, key: Id | None = None, owner: str | None = None, stuck: bool = False,
        count: int = 100,
    ) -> list[Run]:  # fmt: skip
        """Runs without their input and result, at most `count`: of a state, a key or an owner (as `Run.owner` says it),
        or those that made no progress for `stuck_after` seconds. From indexes: the key space is not scanned."""
        self._check_where(state, key, owner)
        check_count("count", count, 1, 10_000)
        flow = flows.list_runs(self._core, self._spec, state, key, owner, stuck, count)
        return self._driver().run(flow)

    def count(self, *, state: str | None = None, key: Id | None = None, owner: str | None = None) -> int:
        """How many runs there are of a state, a key or an owner. Those that ended count until their retention ends."""
        self._check_where(state, key, owner)
        if state is not None and (key is not None or owner is not None):
            raise ConfigurationError("pass state, key or owner: counts are kept for each of them alone")
        where = flows.indexes(self._spec, state, key, owner)
        return sum(self._driver().run(flows.counts(self._core, self._spec, where)))

    def totals(self) -> dict[str, int]:
        """How many runs there are in each state."""
        where = flows.indexes(self._spec, None, None, None)
        return dict(zip(STATES, self._driver().run(flows.counts(self._core, self._spec, where)), strict=True))

    def _check_where(self, state: str | None, key: Id | None, owner: str | None) -> None:
        if state is not None:
            check_state(state)
        if key is not None and owner is not None:
            raise ConfigurationError("pass key or owner, not both")

# Written by tools/make_sync.py from src/holdfast/runs/active.py. Change that file, then run `make sync`.
"""A run as its owner has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from holdfast.engine.core import Core
from holdfast.engine.payload import decode, encode, trace_of
from holdfast.engine.scope import ThreadScope
from holdfast.engine.threads import ThreadDriver
from holdfast.errors import HoldfastError, InvalidPayload, RunStopped
from holdfast.keys import Id
from holdfast.keys import decode as decode_id
from holdfast.runs import owning
from holdfast.runs.outbox import Outbox
from holdfast.runs.owning import Given
from holdfast.runs.spec import RunSpec, check_step


class ActiveRun:
    """A run that this process owns: what a handler gets, and what `Runs.claim` answers.

    It is owned by a lease that is renewed in the background. Whatever it writes (events, checkpoints, steps, its end)
    is refused once the lease is lost, so that two owners never write into one run.

        with agent.claim("run-1") as run:   # completed at the end, failed after an error
            run.emit({"token": "hi"})

    Inside `with`, a request to stop cancels the body, and RunStopped is raised; the loss of the lease cancels it
    and LeaseLost is raised. Cancelled from outside, the run is handed back.
    """

    __slots__ = (
        "__weakref__", "_core", "_driver", "_given", "_leave_span", "_outbox", "_scope", "_spec", "_steps", "attempt",
        "draining", "id", "input", "key", "kind", "result", "saved", "trace",
    )  # fmt: skip

    def __init__(self, core: Core, driver: ThreadDriver, spec: RunSpec, given: Given) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self._given = given
        self._outbox = Outbox(core, spec, given)
        self._steps = dict(given.steps)
        self._scope: ThreadScope | None = None
        self._leave_span: Callable[[BaseException | None], None] | None = None
        given.hold.adopted = True
        self.id: Id = decode_id(given.place.run)
        self.key = given.key
        self.kind = given.kind
        self.attempt = given.attempt
        """1 the first time; higher when it had an owner before."""
        self.input, self.saved = owning.readable(given)
        """What it was started with; and what the last checkpoint saved, None if there was none."""
        self.trace = trace_of(given.input)
        """The W3C traceparent of the span in which it was started, where tracing was on; else None."""
        self.result: Any = None
        """What the run leaves behind when it ends, unless the handler returns something."""
        self.draining = False
        """True once this process is shutting down: a good moment for a checkpoint."""

    def __repr__(self) -> str:
        state = "lost" if self.lost else "stopping" if self.stopping else "running"
        return f"<ActiveRun {self._spec.name}:{self.id!r} attempt={self.attempt} {state}>"

    def __del__(self) -> None:
        # Nobody can end it any more, so it must not be renewed for ever.
        self._given.hold.abandoned = True

    @property
    def fence(self) -> int:
        """Higher than that of every earlier owner. Send it with each write elsewhere, and refuse lower ones there."""
        return self._given.hold.fence

    @property
    def stopping(self) -> bool:
        """True once somebody wants this run to stop."""
        return self._given.hold.stopping

    @property
    def lost(self) -> bool:
        """True once another process may have it, or it has ended."""
        hold = self._given.hold
        return bool(hold.lost_reason or hold.over) or self._core.clock() >= hold.deadline or self._core.forked

    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; 0.0 once lost."""
        return 0.0 if self.lost else max(0.0, self._given.hold.deadline - self._core.clock())

    def check(self) -> None:
        """Raise RunStopped if it should stop, LeaseLost if it is lost. Call it now and then in a long computation."""
        self._check_held("run/check")
        if self._given.hold.stopping:
            raise owning.stopped(self._given.hold, "run/check")

    def _check_held(self, operation: str) -> None:
        hold = self._given.hold
        if self.lost:
            if not hold.over and hold.lose("expired"):
                self._core.end_lost(hold)
            raise owning.lost(hold, operation)

    def on_stop(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when it should stop or is lost, from whichever thread notices. Answers what ends that."""
        return self._given.hold.watch(callback)

    def emit(self, data: Any) -> None:
        """Add an event: any JSON value, or bytes. It is sent within `emit_delay` seconds, in order, with others.

        Returns before it is stored; `flush` waits for that. Waits itself while very many are unsent. Raises LeaseLost
        once the run is lost. Works while stopping, so that a last word can be said."""
        payload = encode(data, self._spec.max_event)
        self._check_held("run/emit")
        if self._outbox.full:
            self._driver.aside(self._outbox.drain)
        self._outbox.put(payload, self._driver)

    def flush(self) -> None:
        """Return when everything emitted so far is stored."""
        self._driver.aside(self._outbox.drain)

    def checkpoint(self, data: Any) -> None:
        """Save where to go on from, together with everything emitted before, in one step. Another owner finds it in
        `saved`. Raises RunStopped if the run should stop, LeaseLost if it is lost (then nothing was saved)."""
        payload = encode(data, self._spec.max_data)
        self.check()
        self._driver.aside(lambda driver: self._outbox.drain(driver, "c", payload))
        self.saved = data
        self.check()

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call this and save its result under a name; if an earlier owner has, answer that result instead.

        What is saved is as durable as a checkpoint. When saving it raises, it may be saved all the same. A process that
        dies after the call and before the result was saved has it called again: give the function something to
        recognise that by, such as the run's id and the name."""
        check_step(name)
        if name not in self._steps:
            self.check()
            result = self._driver.finished(function(*args, **kwargs))
            payload = encode(result, self._spec.max_data)
            self._driver.aside(lambda driver: self._outbox.drain(driver, "s", payload, name))
            self._steps[name] = payload
        return decode(self._steps[name])

    @property
    def steps(self) -> Sequence[str]:
        """Names of the steps that are done."""
        return tuple(self._steps)

    def __enter__(self) -> Self:
        self._scope = ThreadScope(self._given.hold)
        if self._core.tracing is not None:
            self._leave_span = self._core.enter_span("run", [self.trace], owning.about(self._spec, self._given))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_span, self._leave_span = self._leave_span, None
        with self._core.leaving_span(leave_span, error):
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None
        hold = self._given.hold
        ours = scope.leave(error)
        if hold.lost_reason:
            if ours or error is None:
                raise owning.lost(hold, "run/body") from error
            return
        if ours or isinstance(error, RunStopped):
            self._settle("stopped", "")
            raise owning.stopped(hold, "run/body") from error
        if error is None:
            try:
                payload = encode(self.result, self._spec.max_data)
            except InvalidPayload as problem:
                self._settle("failed", f"{type(problem).__name__}: {problem}")
                raise
            if self._settle("completed", "", payload) == "stopped":
                raise owning.stopped(hold, "run/body")
            return
        outcome, reason = "uncounted", "given back"
        if isinstance(error, Exception):
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
        try:
            self._settle(outcome, reason)
        except HoldfastError as problem:  # what the body raised is what the caller must see
            self._core.warn(f"{self._spec.name}: {problem}")

    def _settle(self, outcome: str, reason: str, result: bytes = b"") -> str:
        return self._driver.aside(lambda driver: self._outbox.finish(driver, outcome, reason, result))

# Written by tools/make_sync.py from src/holdfast/once/claim.py. Change that file, then run `make sync`.
"""An id that one caller at a time may work on, until it is done."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from holdfast.engine.core import Core
from holdfast.engine.keeper import Hold
from holdfast.engine.scope import ThreadScope
from holdfast.engine.threads import ThreadDriver
from holdfast.errors import ConfigurationError, Indeterminate, LeaseLost, Unavailable
from holdfast.once import calls, flows
from holdfast.once.spec import NO_DIGEST, Place


class Claim:
    """Work on an id, once: claimed when it is entered, done when the body ends, given back when the body raises.

        with hf.claim("orders", order_id, within=3600) as claim:
            if claim:
                ship(order_id)

    It is true if the id is this caller's to work on. Else `state` says why not: `done`, or `busy` while somebody works
    on it. A worker that dies loses its claim after `lease` seconds, and the next one gets it. Loss of the claim cancels
    the body, and LeaseLost is raised. Use each object once.
    """

    def __init__(
        self, core: Core, driver: Callable[[], ThreadDriver], place: Place, *, lease: float, within: float,
        wait: float | None, policy: str, digest: bytes = NO_DIGEST,
    ) -> None:  # fmt: skip
        self._core = core
        self._driver = driver
        self._place = place
        self._lease = lease
        self._within = within
        self._wait = wait
        self._policy = policy
        self._digest = digest
        self._hold: Hold | None = None
        self._scope: ThreadScope | None = None
        self._result = b""
        self.state = "new"
        """How asking went: `new`, `mine`, `busy`, `done`; while the server is away `allowed` or `denied`."""

    def __repr__(self) -> str:
        return f"<Claim {self._place.shown} {self.state}>"

    def __bool__(self) -> bool:
        return self.state in ("mine", "allowed")

    @property
    def fence(self) -> int:
        """Higher than that of every earlier claim of this id, by the server's clock; 0 without a claim."""
        return 0 if self._hold is None else self._hold.fence

    @property
    def lost(self) -> bool:
        """True once another worker may have it."""
        hold = self._hold
        return hold is not None and (
            bool(hold.lost_reason) or self._core.forked or (not hold.over and self._core.clock() >= hold.deadline)
        )

    def check(self) -> None:
        """Raise LeaseLost if it is lost. Call it now and then in a long computation."""
        if self._hold is not None and self.lost:
            if self._hold.lose("expired"):
                self._core.end_lost(self._hold)
            raise flows.lost(self._hold, "claim/check")

    def begin(self) -> Self:
        """Ask for the id; `with` does this."""
        if self.state != "new":
            raise ConfigurationError("make another claim: each object is used once")
        driver = self._driver()
        asking = flows.Asking(self._core, self._place, self._digest, self._lease, self._wait)
        try:
            begun = driver.run(asking.begin(driver.home()))
        except (Unavailable, Indeterminate) as error:
            allowed = flows.outage(self._core, self._place.space, self._policy, error, "once/begin")
            self.state = "allowed" if allowed else "denied"
            return self
        finally:
            asking.leave(driver)
        self.state, self._hold, self._result = begun
        if self._hold is not None:
            self._hold.adopted = True
        return self

    def confirm(self, result: bytes = b"") -> None:
        """It is done, and stays so for `within` seconds. `with` does this when its body ends.

        Raises LeaseLost if it is somebody else's by now. Raises Indeterminate if no answer came in time (with
        `on_outage="allow"` that is only counted): then it may be worked on again when the lease is over."""
        hold = self._hold
        if hold is None:
            return
        if self.lost:
            self.check()
        if hold.over:
            return
        try:
            self._driver().run(flows.confirm(self._core, self._place, hold, result, self._within))
        except Indeterminate as error:
            if self._policy != "allow":
                raise
            flows.outage(self._core, self._place.space, self._policy, error, "once/confirm")

    def release(self) -> None:
        """Give it back: somebody else may work on it at once. `with` does this when its body raises."""
        if self._hold is not None:
            self._driver().run(flows.give_up(self._core, self._place, self._hold))

    def __enter__(self) -> Self:
        self.begin()
        if self._hold is not None:
            self._scope = ThreadScope(self._hold)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope, self._scope = self._scope, None
        if scope is None or self._hold is None:
            return
        ours = scope.leave(error)
        if self._hold.lost_reason and (ours or error is None):
            raise flows.lost(self._hold, "claim/body") from error
        if error is not None:
            self.release()
            return
        self.confirm()


class CallOnce:
    """Calls a function once for each key, and answers what that call answered to everybody after it."""

    def __init__(
        self, core: Core, driver: Callable[[], ThreadDriver], spec: calls.CallSpec, function: Callable[..., Any]
    ) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        spec = self._spec
        place, digest = spec.identify(args, kwargs)
        claim = Claim(
            self._core, self._driver, place, lease=spec.lease, within=spec.ttl, wait=spec.wait, policy=spec.policy,
            digest=digest,
        )  # fmt: skip
        claim.begin()
        if claim.state == "done":
            return calls.answer(claim._result, place)
        if not claim:
            raise calls.in_progress(claim.state, place)
        scope = None if claim._hold is None else ThreadScope(claim._hold)
        try:
            result = self._driver().finished(self._function(*args, **kwargs))
        except BaseException as error:
            if scope is not None:
                self._failed(claim, scope, error)
            raise
        if scope is None:
            return result
        if scope.leave(None) or claim.lost:
            claim.check()
        stored, problem = calls.result_bytes(result, spec.limit)
        claim.confirm(stored)
        if problem is not None:
            raise problem
        return result

    def _failed(self, claim: Claim, scope: ThreadScope, error: BaseException) -> None:
        """Give it back, or store the failure where that was asked for."""
        assert claim._hold is not None
        ours = scope.leave(error)
        if claim._hold.lost_reason:
            if ours:
                raise flows.lost(claim._hold, "claim/body") from error
            return
        if self._spec.stores(error):
            try:
                claim.confirm(calls.error_bytes(error))
            except (LeaseLost, Indeterminate) as problem:
                error.add_note(f"it was not stored: {problem}")
        else:
            claim.release()

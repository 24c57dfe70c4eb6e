# Written by tools/make_sync.py from src/holdfast/once/entry.py. Change that file, then run `make sync`.
"""What a client can do so that each thing happens once: ids, claims, calls, gates."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from holdfast.engine.core import Core
from holdfast.engine.digest import AnyId
from holdfast.engine.limits import check_seconds, check_wait
from holdfast.engine.threads import ThreadDriver
from holdfast.errors import ConfigurationError
from holdfast.once import flows
from holdfast.once.calls import CallSpec
from holdfast.once.gating import GateSpec, Notice
from holdfast.once.spec import MARK_MAX, Space, check_policy
from holdfast.once.worker import Settler
from holdfast.sync.claim import CallOnce, Claim
from holdfast.sync.gate import Gate

N = TypeVar("N", bound=Callable[[Notice], Any])
I = TypeVar("I", bound=AnyId)  # noqa: E741
P = ParamSpec("P")
R = TypeVar("R")
KNOWN_SPACES = 1000


class OnceCalls:
    """The part of `Holdfast` that does each thing once."""

    _core: Core
    _settlers: dict[str, Settler]
    _spaces: dict[str, Space]

    @property
    def _driver(self) -> ThreadDriver:
        raise NotImplementedError  # the client has it

    def once(self, space: str, id: AnyId, within: float | None = None, *, on_outage: str = "raise") -> bool:
        """True for the first caller with this id in `within` seconds, and False for every other.

        It counts as seen at once, also when the caller then dies: work that must not be lost is done under `claim`.
        `id` is text, bytes, a whole number or a tuple of them. While the server cannot be reached, `on_outage` decides:
        "raise", "allow" (True: rather twice than never) or "deny" (False). Cancelled, or after an error, it is taken
        back."""
        return (self.filter_new(space, [id], within, on_outage=on_outage)) != []

    def filter_new(
        self, space: str, ids: Iterable[I], within: float | None = None, *, on_outage: str = "raise"
    ) -> list[I]:
        """Those of many ids for which `once` would say True, in order, in one round trip for each shard touched.

        An id that is named twice counts once. On one server everything is one step, up to 4096 ids. With
        `on_outage="allow"` all are answered while the server cannot be reached, with "deny" none."""
        if isinstance(ids, (str, bytes)):
            raise ConfigurationError("pass a list of ids, not one id")
        asked, seconds, policy, where = list(ids), self._within(within), check_policy(on_outage), self._space(space)
        if not asked:
            return []
        flow = flows.mark(self._core, where, asked, seconds, policy)
        return [one for one, new in zip(asked, self._driver.run(flow), strict=True) if new]

    def forget(self, space: str, *ids: AnyId) -> int:
        """Let these ids count as new again, also if somebody works on one. Answers how many were known."""
        if not ids:
            return 0
        return self._driver.run(flows.forget(self._core, self._space(space), ids))

    def claim(
        self, space: str, id: AnyId, within: float | None = None, *, lease: float | None = None,
        wait: float | None = 0.0, on_outage: str = "raise",
    ) -> Claim:  # fmt: skip
        """`once` for work that must not be lost: `with hf.claim(…) as claim: if claim: …`

        Done when the body ends, for `within` seconds; given back when it raises; taken over by the next caller
        `lease` seconds after its worker died. `wait`: how long to wait for somebody else who works on it (None: no
        limit). It shares its ids with `once`."""
        return Claim(
            self._core, lambda: self._driver, self._space(space).place(id),
            lease=self._core.settings.ttl if lease is None else check_seconds("lease", lease, 0.05, 86_400.0),
            within=self._within(within), wait=check_wait(wait), policy=check_policy(on_outage),
        )  # fmt: skip

    def idempotent(
        self, key: str | Callable[..., Any], *, ttl: float = 86_400.0, space: str | None = None,
        payload: Callable[..., Any] | None = None, wait: float | None = 30.0, lease: float | None = None,
        store_errors: bool | tuple[type[Exception], ...] = False, on_outage: str = "raise",
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:  # fmt: skip
        """Decorator: one call in the fleet for each key, whose result everybody gets for `ttl` seconds.

        `key` is filled from the call's arguments, as in "{order_id}", or a function of them. The same key with other
        arguments raises KeyMismatch; `payload`, a function of the arguments, says what of them counts. A caller who
        comes while the first is at it waits up to `wait` seconds (None: no limit), then gets InProgress. What the call
        raises is not stored, so that the next caller tries again, unless `store_errors` (or these types) says so: then
        others get EarlierFailure. A worker that dies is taken over `lease` seconds later. Results are JSON values or
        bytes. `space` names the function in keys; without it its module and name do."""

        if callable(key) and inspect.iscoroutinefunction(key):
            raise ConfigurationError('write @hf.idempotent(key="{order_id}"): it needs to know what calls are the same')

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            core = self._core
            spec = CallSpec(
                core, function, key, space=space, payload=payload, ttl=check_seconds("ttl", ttl, 0.001, MARK_MAX),
                lease=core.settings.ttl if lease is None else check_seconds("lease", lease, 0.05, 86_400.0),
                wait=check_wait(wait), store_errors=store_errors, policy=check_policy(on_outage),
            )  # fmt: skip
            once = CallOnce(core, lambda: self._driver, spec, function)

            @functools.wraps(function)
            def called(*args: P.args, **kwargs: P.kwargs) -> R:
                return once(*args, **kwargs)  # type: ignore[no-any-return]

            return called

        return decorate

    def gate(
        self, space: str, window: float | None = None, *, trailing: bool = True, fields: Iterable[str] | None = None,
        ignore: Iterable[str] = (), keep: float | None = None, on_outage: str = "raise",
    ) -> Gate:  # fmt: skip
        """Judges which states of things are worth telling. It may be made before the client is opened.

        A state that was told within `window` seconds is not told again; with `trailing` it is made up for at the
        window's end, if it is still the thing's state: see `Gate.due` and `settled`. Of states that are dicts only
        `fields` count, if named, and never those in `ignore`. What nobody asked about for `keep` seconds is
        forgotten."""
        spec = GateSpec(
            self._core, space, window=window, trailing=trailing, fields=fields, ignore=ignore, keep=keep,
            policy=on_outage,
        )  # fmt: skip
        return Gate(self._core, lambda: self._driver, spec)

    def settled(self, gate: Gate, *, lease: float = 30.0) -> Callable[[N], N]:
        """Decorator: call this with each notice of `Gate.due`, in whichever process runs `work`.

        It counts as told when the handler returns. When it raises, takes longer than `lease` seconds, or its worker
        dies, it comes again."""
        check_seconds("lease", lease, 0.05, 86_400.0)

        def register(handler: N) -> N:
            if gate.name in self._settlers:
                raise ConfigurationError(f"register one handler for a gate: {gate.name!r} has one")
            self._settlers[gate.name] = Settler(self._core, gate._spec, handler, lease)
            return handler

        return register

    def _space(self, name: str) -> Space:
        known = self._spaces.get(name) if isinstance(name, str) else None
        if known is None:
            if len(self._spaces) >= KNOWN_SPACES:
                self._spaces.clear()
            known = self._spaces[name] = Space(self._core, name)
            self._core.use("once", name)
        return known

    def _within(self, within: float | None) -> float:
        return self._core.settings.within if within is None else check_seconds("within", within, 0.001, MARK_MAX)

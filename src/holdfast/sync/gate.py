# Written by tools/make_sync.py from src/holdfast/once/gate.py. Change that file, then run `make sync`.
"""A gate: lets through the states that are worth telling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.digest import AnyId
from holdfast.engine.limits import check_count, check_seconds
from holdfast.engine.threads import ThreadDriver
from holdfast.once import gating
from holdfast.once.gating import Decision, GateSpec, Notice


class Gate:
    """Judges states of things: tell it, or not. Made by `Holdfast.gate`; making one sends nothing.

    A state that was told within the window is not told again. With `trailing` (the default) that is made up for at the
    end of its window, if the thing is still in that state and something else was told last: see `due`.
    `check` counts a state as told when it answers; who must not lose a notice in a crash uses a monitor, or `claim`.
    """

    def __init__(self, core: Core, driver: Callable[[], ThreadDriver], spec: GateSpec) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self.name = spec.name

    def __repr__(self) -> str:
        return f"<Gate {self.name} window={self._spec.window:g}>"

    def check(self, key: AnyId, state: Any, *, fields: Iterable[str] | None = None) -> Decision:
        """Is this state of this thing worth telling? In one atomic step it becomes the thing's state.

        `state` is any JSON value; of a dict only `fields` count, if named. A digest of your own is passed as text."""
        return (self._driver().run(gating.check(self._core, self._spec, [(key, state)], fields)))[0]

    def check_many(
        self, things: Iterable[tuple[AnyId, Any]], *, fields: Iterable[str] | None = None
    ) -> Sequence[Decision]:
        """The same for many (key, state), in one round trip for each shard touched. Answers in order."""
        return self._driver().run(gating.check(self._core, self._spec, list(things), fields))

    def due(self, count: int = 100, *, lease: float = 30.0) -> Sequence[Notice]:
        """What is in a state that was not told, and whose window is over. Tell it, then call `told`.

        What is handed out here comes again after `lease` seconds unless `told` was called: also when a worker dies."""
        check_count("count", count, 1, 10_000)
        check_seconds("lease", lease, 0.001, 86_400.0)
        notices, _ = self._driver().run(gating.due(self._core, self._spec, count, lease))
        return notices

    def told(self, notice: Notice) -> bool:
        """That was told. False if the thing is in another state by now, which is judged by itself."""
        return self._driver().run(gating.told(self._core, self._spec, notice))

    def forget(self, key: AnyId) -> bool:
        """Forget a thing: its next state is the first. Answers whether it was known."""
        return self._driver().run(gating.forget(self._core, self._spec, key))

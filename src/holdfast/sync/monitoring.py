# Written by tools/make_sync.py from src/holdfast/monitor/entry.py. Change that file, then run `make sync`.
"""What a client can do with monitors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.engine.core import Core
from holdfast.engine.limits import check_count
from holdfast.engine.threads import ThreadDriver
from holdfast.errors import ConfigurationError
from holdfast.monitor.parts import MonitorParts
from holdfast.monitor.record import Store
from holdfast.monitor.spec import MonitorSpec
from holdfast.monitor.worker import MonitorWorker
from holdfast.sync.monitor import Monitor


class MonitorCalls:
    """The part of `Holdfast` that watches for changes."""

    _core: Core
    _monitors: dict[str, MonitorWorker]
    _parts: dict[str, MonitorParts]

    @property
    def _driver(self) -> ThreadDriver:
        raise NotImplementedError  # the client has it

    def monitor(
        self, name: str, *, fields: Iterable[str] | None = None, ignore: Iterable[str] = (), window: float = 0.0,
        store: Store | None = None, allow: Sequence[str] = (), workers: int = 10, keep: float | None = None,
        backlog: int | None = None,
    ) -> Monitor:  # fmt: skip
        """Watches things for changes, and tells who wants to know. It may be made before the client is opened.

        `fields`: what counts of a state that is a dict; `ignore`: what never does. `window`: within so many seconds a
        thing's state is told once, and what it is in the end is told after that; 0: every change is told. `store`: a
        `holdfast.memory.MonitorStore`, for subscribers, history and the push log. `allow`: hosts and networks that may
        be told or fetched although they are private or without TLS. `workers`: messages that a process sends at once.
        `keep`: seconds for which a thing is remembered that nobody observes. `backlog`: changes in the log. The same
        name again is the same monitor; parsers and functions are registered for both."""
        if store is not None and not callable(getattr(store, "put_subscriber", None)):
            raise ConfigurationError(
                'pass store=holdfast.memory.MonitorStore("sqlite:///monitor.db").open(), or what has its methods'
            )
        spec = MonitorSpec(self._core, name, fields=fields, ignore=ignore, window=window, keep=keep, backlog=backlog)
        parts = self._parts.get(name)
        if parts is not None:
            first = self._monitors[name].spec
            if (fields, tuple(ignore), window, keep, backlog) == (None, (), 0.0, None, None):
                spec = first  # only named: as it was made
            elif spec != first:
                raise ConfigurationError(f"pass the same options each time: {name!r} was made with others")
        if parts is None:
            parts = self._parts[name] = MonitorParts(store, _names(allow), check_count("workers", workers, 1, 1000))
            self._monitors[name] = MonitorWorker(self._core, spec, parts)
        elif (store is not None and parts.store is not store) or (allow and tuple(allow) != parts.allow):
            raise ConfigurationError(f"pass the same store and allow each time: {name!r} was made with others")
        return Monitor(self._core, lambda: self._driver, spec, parts)

    def look_at_monitor(
        self, name: str, *, fields: Iterable[str] | None = None, ignore: Iterable[str] = (), window: float = 0.0,
        store: Store | None = None, allow: Sequence[str] = (), keep: float | None = None, backlog: int | None = None,
    ) -> Monitor:  # fmt: skip
        """A monitor to look at, or to observe with. It is not worked on for this, and does not settle the options of
        whoever makes it later with `monitor`; where that was done here, it is that one, whatever is passed."""
        parts = self._parts.get(name)
        if parts is not None:
            return Monitor(self._core, lambda: self._driver, self._monitors[name].spec, parts)
        spec = MonitorSpec(self._core, name, fields=fields, ignore=ignore, window=window, keep=keep, backlog=backlog)
        return Monitor(self._core, lambda: self._driver, spec, MonitorParts(store, _names(allow), 1))


def _names(allow: Sequence[str]) -> Sequence[str]:
    if isinstance(allow, str):
        raise ConfigurationError("pass allow as a list of hosts, not as one text")
    return allow

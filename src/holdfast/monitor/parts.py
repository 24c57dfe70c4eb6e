"""What is registered with a monitor in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import ConfigurationError
from holdfast.monitor.matching import as_record
from holdfast.monitor.outgoing import Outgoing
from holdfast.monitor.record import Handler, Key, Store, Subscriber
from holdfast.monitor.sinks import make_sink
from holdfast.monitor.spec import to_text

if TYPE_CHECKING:
    from holdfast.monitor.fetch import Fetch


class Observation(NamedTuple):
    """What somebody saw."""

    source: str
    key: Key
    state: Any
    observed_at: float | datetime | None = None


def observation(one: Any) -> Observation:
    if isinstance(one, Observation):
        return one
    if not isinstance(one, (tuple, list)) or not 3 <= len(one) <= 4:
        raise ConfigurationError("pass observations as (source, key, state) or (source, key, state, observed_at)")
    return Observation(*one)


def rows(found: Any) -> Iterable[Sequence[Any]]:
    """What a parser answers."""
    if not isinstance(found, Iterable):
        raise ConfigurationError("return or yield (key, state) or (key, state, observed_at) from a parser, plainly")
    return found


class MonitorParts:
    """Store, parsers, functions and pages of one monitor. Monitors of one name share them in a client."""

    def __init__(self, store: Store | None, allow: Sequence[str], workers: int) -> None:
        self.store = store
        self.allow = tuple(allow)
        self.workers = workers
        self.parsers: dict[str, Callable[[Any], Any]] = {}
        self.functions: dict[str, Subscriber] = {}
        self.calls: dict[str, Handler] = {}
        self.fetches: list[Fetch] = []

    def records(self) -> dict[str, bytes]:
        """The functions, as other processes are told of them."""
        return {name: to_text(as_record(replace(one, secret=""))) for name, one in self.functions.items()}

    def outgoing(self, **options: Any) -> Outgoing:
        return Outgoing(allow=self.allow, **options)

    def check_target(self, subscriber: Subscriber) -> None:
        """Raises ConfigurationError for an address that can never be told."""
        make_sink(subscriber, outgoing=self.outgoing(), calls=self.calls)

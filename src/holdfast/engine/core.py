"""What the primitives of one client share, whichever driver runs them."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.clock import system_clock
from holdfast.engine.embedded import EmbeddedServer
from holdfast.engine.flow import NotSent
from holdfast.engine.keeper import Hold, Keeper
from holdfast.engine.payload import traced
from holdfast.engine.scripts import Scripts
from holdfast.engine.signals import Mailbox
from holdfast.engine.threads import ThreadDriver
from holdfast.engine.topology import Topology
from holdfast.engine.url import Target, parse
from holdfast.errors import RunStopped, Unavailable
from holdfast.events import Event, Events, Lost, Observer, ServerWarning
from holdfast.keys import Keys
from holdfast.settings import Settings

CLOSE_SECONDS = 5.0
TOKENS_AT_ONCE = 128
EARLY = 256
USED = 10_000
OURS = "holdfast."
"""What we use ourselves is nobody's business."""


class SharedFeed(Protocol):
    """What the readers of one channel share."""

    readers: dict[str, None]

    def pushed(self, message: bytes) -> None:
        """A message came; nothing: one may have been missed."""


class Tally(Protocol):
    """Counts what happens too often to be an event."""

    def __call__(self, event: Event) -> None:
        """An event happened."""

    def add(self, name: str, number: int) -> None:
        """This happened so often."""

    def timed(self, name: str, timed: str, seconds: float) -> None:
        """This happened, and took so long."""


F = TypeVar("F", bound=SharedFeed)


class Tracing(Protocol):
    """What makes spans. An observer that can has it as its attribute `tracing`. It raises nothing."""

    def current(self) -> str:
        """The W3C traceparent of the span that is open here. Empty: none is, or it is not to be carried."""

    def span(
        self, name: str, traces: Iterable[str | None], attributes: Mapping[str, object], *, beside: bool = False
    ) -> AbstractContextManager[Callable[[str], None]]:
        """A span for what is done with what was written in these traces. What is entered takes the kind of an error;
        nothing: there was none. `beside`: it is linked to the span that is open here."""


class Core:
    """Settings, keys, scripts, clock, events, and every hold of this client."""

    def __init__(self, url: str | None, *, observers: Iterable[Observer], overrides: Mapping[str, Any]) -> None:
        self.target: Target = parse(url)
        self.settings = Settings.load(overrides)
        self.keys = Keys(self.settings.prefix)
        self.scripts = Scripts()
        self.clock = system_clock()
        observers = tuple(observers)
        self.events = Events(observers)
        self.tracing: Tracing | None = None
        """Asked for by whoever writes or handles something; nobody has it unless an observer traces."""
        for observer in observers:
            self._trace_with(observer)
        self.mailbox = Mailbox()
        self.mailbox.on_lost = self._told_lost
        self.mailbox.on_stop = self._told_to_stop
        self.holds: dict[str, Hold] = {}
        self._early_stops: dict[str, str] = {}
        self.entered: dict[tuple[str, Any], Any] = {}
        """Leases by lock key and owning task or thread: where re-entry is found."""
        self.specs: dict[Any, Any] = {}
        self.feeds: dict[str, Any] = {}
        """What is shared by the readers of one channel."""
        self.feeds_lock = threading.Lock()
        self.undoing: dict[str, dict[bytes, None]] = {}
        """Marks that are being taken back, by space: for this process they are not there."""
        self.used: dict[str, dict[str, None]] = {}
        """Kind and name of the collections that this process works with."""
        self.working: tuple[str, ...] = ()
        """Those it works on now."""
        self.tally: Tally | None = None
        """Counts for the reports to the fleet what happens too often to be an event."""
        self.on_fork: Callable[[], None] | None = None
        self.busy_until: dict[tuple[str, int], tuple[float, float]] = {}
        """Locks that were seen busy: when, and until when at the latest."""
        self._embedded: EmbeddedServer | None = None
        self._name_process()

    def _name_process(self) -> None:
        self._pid = os.getpid()
        self.client_id = secrets.token_hex(8)
        self._random: list[str] = []
        self._ops: list[bytes] = []
        # Free text from outside: one line, and nothing that the wire cannot carry.
        label = " ".join(self.settings.name.encode("utf-8", "replace").decode().split())
        self.owner = f"{socket.gethostname()} {os.getpid()} {label}".rstrip()

    @property
    def forked(self) -> bool:
        """Is this a child of the process that opened the client? Then nothing that was held is ours."""
        return os.getpid() != self._pid

    def new_token(self) -> str:
        """Unguessable, and its first part says on which channel its process listens.

        Random bytes are fetched for many tokens at once: a system call for each would be a tenth of a lock's cost."""
        try:
            return self.client_id + self._random.pop()
        except IndexError:
            pool = secrets.token_hex(8 * TOKENS_AT_ONCE)
            self._random = [f".{pool[at : at + 16]}" for at in range(0, len(pool), 16)]
            return self.client_id + self._random.pop()

    def new_op(self) -> bytes:
        """Eight random bytes that name an operation: a repeated one is known by them."""
        try:
            return self._ops.pop()
        except IndexError:
            pool = secrets.token_bytes(8 * TOKENS_AT_ONCE)
            self._ops = [pool[at : at + 8] for at in range(0, len(pool), 8)]
            return self._ops.pop()

    # -- assembly -----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Start or find the embedded server and work out the topology. Blocking."""
        self._opened_by = os.getpid()
        if self.forked:
            self._name_process()  # made before a fork and opened after it: it is this process's own
        target = self.target
        if target.kind == "embedded":
            self._embedded = EmbeddedServer.open(target.embedded)
            target = parse(f"unix://{self._embedded.socket_path}")
        s = self.settings
        self.topology = Topology(
            target, connect_timeout=s.connect_timeout, call_timeout=s.call_timeout, client_name="holdfast",
            revive=self._revive_embedded if self._embedded is not None else None,
        )  # fmt: skip
        self.keeper = Keeper(
            clock=self.clock, scripts=self.scripts, events=self.events, driver=self.async_driver,
            on_lost=self.end_lost, watch_primary=target.kind == "sentinel",
        )  # fmt: skip
        if target.kind == "sentinel":
            self.keeper.start()  # it asks the Sentinels every second; who holds nothing writes to the primary too

    def _revive_embedded(self) -> None:
        embedded = self._embedded
        if embedded is None or self.forked:
            return
        try:
            # Not longer than a connection may take: whoever asked tries again until its own time is up.
            embedded.ensure_running(timeout=max(1.0, self.settings.connect_timeout))
        except Unavailable as error:
            raise NotSent(str(error)) from error

    def async_driver(self) -> AsyncDriver:
        s = self.settings
        return AsyncDriver(
            self.topology, self.mailbox, timeout=s.call_timeout, in_flight=s.max_in_flight,
            warn=lambda text: self.events.emit(ServerWarning(text)),
        )  # fmt: skip

    def thread_driver(self) -> ThreadDriver:
        return ThreadDriver(
            self.topology,
            self.mailbox,
            self.keeper,
            timeout=self.settings.call_timeout,
            after_fork=self._after_fork,
        )

    def disconnect(self) -> None:
        """After the driver was closed. Blocking."""
        embedded, self._embedded = self._embedded, None
        self.mailbox.deliver_all()  # whoever still waits finds that this is closed
        if os.getpid() != self._opened_by:
            return  # a forked child: the keeper and the embedded server are its parent's
        self.keeper.close(CLOSE_SECONDS)
        if embedded is not None:
            embedded.close()

    def _after_fork(self) -> None:
        """The child is another process: it has none of its parent's leases and a name of its own."""
        for hold in self.keeper.after_fork():
            hold.lose("forked")
        self.holds.clear()
        self.entered.clear()
        self.feeds_lock = threading.Lock()
        self.feeds.clear()
        self.mailbox.after_fork()
        self._name_process()
        if self.on_fork is not None:
            self.on_fork()

    def observe(self, observer: Observer) -> None:
        """Call this with every event from now on."""
        self.events.add(observer)
        self._trace_with(observer)

    def _trace_with(self, observer: Observer) -> None:
        if self.tracing is None:
            self.tracing = getattr(observer, "tracing", None)

    def carried(self, room: int | None = None) -> bytes:
        """What goes before a payload so that the span open here is known where it is read: nothing without tracing,
        or if there is no room for so many bytes."""
        if self.tracing is None:
            return b""
        lead = traced(self.tracing.current())
        return b"" if room is not None and len(lead) > room else lead

    def enter_span(
        self, name: str, traces: Iterable[str | None], about: Mapping[str, object]
    ) -> Callable[[BaseException | None], None] | None:
        """Open a span around a body that this code only sees begin and end. Answers what ends it, given what came of
        the body; nothing without tracing."""
        if self.tracing is None:
            return None
        around = self.tracing.span(name, traces, about, beside=True)
        failed = around.__enter__()

        def leave(error: BaseException | None) -> None:
            calm = error is None or isinstance(error, (CancelledError, RunStopped))
            failed("" if calm else type(error).__name__)
            around.__exit__(None, None, None)

        return leave

    @staticmethod
    @contextlib.contextmanager
    def leaving_span(
        leave: Callable[[BaseException | None], None] | None, error: BaseException | None
    ) -> Iterator[None]:
        """Around the end of such a body: the span ends after it, with what came of both."""
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if leave is not None:
                leave(error)

    def warn(self, text: str) -> None:
        """Something went wrong in the background: whoever observes is told, else the log is."""
        if self.events.observed:
            self.events.emit(ServerWarning(text))
        else:
            logging.getLogger("holdfast").warning(text)

    def use(self, kind: str, name: str) -> None:
        """This process works with a collection: the fleet is told. Only looking at one is no use of it."""
        names = self.used.get(kind)
        if names is None:
            names = self.used.setdefault(kind, {})
        if name in names or name.startswith(OURS):
            return
        if len(names) >= USED:  # names may come from outside: the first of them has been told
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # somebody else did so just now
                del names[next(iter(names))]
        names[name] = None

    # -- feeds --------------------------------------------------------------------------------------------------

    def join_feed(self, channel: str, make: Callable[[], F]) -> tuple[F, str]:
        """Share what comes over a channel with others of this process. Answers that, and a token to wait with."""
        token = self.new_token()
        self.mailbox.expect(token)
        with self.feeds_lock:
            feed: F | None = self.feeds.get(channel)
            if feed is None:
                feed = self.feeds[channel] = make()
                self.mailbox.feeds[channel.encode()] = feed.pushed
            feed.readers[token] = None
        return feed, token

    def leave_feed(self, channel: str, feed: SharedFeed, token: str, driver: Any) -> None:
        """The last one to leave ends the subscription."""
        self.mailbox.forget(token)
        with self.feeds_lock:
            feed.readers.pop(token, None)
            last = not feed.readers and self.feeds.get(channel) is feed
            if last:
                del self.feeds[channel]
                self.mailbox.feeds.pop(channel.encode(), None)
        if last:
            driver.later(lambda aio: aio.hub.unlisten(channel))

    # -- holds --------------------------------------------------------------------------------------------------

    def begin(self, hold: Hold) -> None:
        self.holds[hold.token] = hold
        if self._early_stops and hold.token in self._early_stops:
            hold.ask_to_stop(self._early_stops.pop(hold.token, ""))
        self.keeper.add(hold)

    def end(self, hold: Hold) -> None:
        self.keeper.remove(hold)
        self.holds.pop(hold.token, None)
        if hold.entry is not None:
            self.entered.pop(hold.entry, None)

    def end_lost(self, hold: Hold) -> None:
        """The keeper or the server said that it is lost."""
        self.end(hold)
        if self.events:
            self.events.emit(Lost(hold.name, hold.fence, self.clock() - hold.started, hold.lost_reason, hold.what))

    def _told_to_stop(self, token: str, reason: str) -> None:
        hold = self.holds.get(token)
        if hold is not None:
            hold.ask_to_stop(reason)
            return
        # The message may be faster than the reply that says what this token was given.
        while len(self._early_stops) >= EARLY:
            self._early_stops.pop(next(iter(self._early_stops), ""), None)
        self._early_stops[token] = reason

    def _told_lost(self, token: str, reason: str) -> None:
        hold = self.holds.get(token)
        if hold is not None and hold.lose(reason):
            self.end_lost(hold)

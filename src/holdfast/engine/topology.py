"""Which server to talk to: one server, the primary that the Sentinels name, or the owner of a slot.

Finding out is blocking and rare. The asyncio side runs it in a thread, so there is one implementation.
redis-py makes every connection; its retries are off, because a retry below us would send writes twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import redis
import redis.asyncio.connection as aio
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from holdfast.engine.flow import Address, NotSent
from holdfast.engine.url import Target
from holdfast.errors import ConfigurationError, NotPermitted

_FATAL = (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)


class Topology:
    """Where each tag lives. Thread-safe: the callers, the keeper and the signal hub share one."""

    def __init__(
        self, target: Target, *, connect_timeout: float, call_timeout: float, client_name: str,
        revive: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.target = target
        self._revive = revive
        """Starts the embedded server again, should somebody have killed it."""
        self._options: dict[str, Any] = {
            **target.options,
            "socket_connect_timeout": connect_timeout,
            "socket_timeout": call_timeout,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "client_name": client_name,
            "health_check_interval": 0,
            "decode_responses": False,
        }
        self.connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._primary: Address | None = target.hosts[0] if target.kind == "single" and target.hosts else None
        self._slots: dict[int, Address] = {}
        self._tags: dict[str, Address] = {}
        self._known: list[Address] = list(target.hosts)
        self.generation = 0
        self._questions = 0
        """Goes up with every answer, so that of many who ask at once only one does."""
        self.problem = "nobody was asked yet"
        self._check_options()

    def _check_options(self) -> None:
        """redis-py takes what stands in a URL's query as it is, and fails much later."""
        try:
            self.connection(("localhost", 1))
            self.aio_connection(("localhost", 1))
        except (TypeError, ValueError, redis.RedisError) as error:
            raise ConfigurationError(
                f"mend the options after `?` in {self.target.shown}: {self.target.redact(str(error))}"
            ) from None

    @property
    def local(self) -> bool:
        return "path" in self._options

    # -- asking -------------------------------------------------------------------------------------------------

    def address(self, tag: str) -> Address | None:
        """Where this tag lives, as far as known; None means `refresh` first."""
        if self.target.kind == "cluster":
            found = self._tags.get(tag)
            if found is None and (found := self._slots.get(key_slot(tag.encode()))) is not None:
                self._tags[tag] = found
            return found
        return ("", 0) if self.local else self._primary

    def place(self, node: Address | None, tag: str) -> Address | None:
        """Where a request goes: to a named node (an empty host means the one that was asked), or to the tag's owner."""
        owner = self.address(tag)
        if node is None or node[0] or owner is None:
            return node or owner
        return owner[0], node[1]

    def addresses(self) -> list[Address]:
        """Every primary that is known."""
        if self.target.kind == "cluster":
            return sorted(set(self._slots.values()))
        found = self.address("")
        return [found] if found else []

    def refresh(self, seen: int) -> None:
        """Ask the Sentinels or the Cluster again, unless somebody has since generation `seen`. Blocking.

        Many may find out at once that nobody answers, and each question then takes its whole time: who waits for
        somebody else's takes its outcome, whatever that is."""
        before = self._questions
        with self._lock:
            if seen != self.generation:
                return
            if before != self._questions:
                raise NotSent(self.problem)
            try:
                if self._revive is not None:
                    self._revive()
                if self.target.kind == "sentinel":
                    self._primary = self._ask_sentinels()
                elif self.target.kind == "cluster":
                    self._slots = self._ask_cluster()
                    self._tags = {}
            except NotSent as error:
                self.problem = str(error)
                raise
            finally:
                self._questions += 1
            self.generation += 1

    def _ask_sentinels(self) -> Address:
        """The primary of the newest configuration that any Sentinel knows, if it says itself that it is one.

        After a failover a Sentinel may go on naming the old primary for seconds, and that one, restarted, answers as a
        primary until it is demoted; what it is told then is lost. So all Sentinels are asked, and the newest counts."""
        problem: Exception | None = None
        named: dict[Address, int] = {}
        for place in list(self._known):
            try:
                # The one that leads a failover has the new epoch first, and names the new primary only here.
                with _Asker(self._sentinel_connection(place)) as ask:
                    state = ask("SENTINEL", "MASTER", self.target.service)
                    found = ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.target.service)
                address = (found[0].decode(), int(found[1]))
                epoch = int(state[state.index(b"config-epoch") + 1])
                named[address] = max(named.get(address, -1), epoch)
            except _FATAL as error:
                raise connect_problem(error, self.target) from None
            except (redis.RedisError, OSError, ValueError, TypeError) as error:
                problem = error
                self._known.remove(place)  # asked last from now on, as it may be slow to fail
                self._known.append(place)
        if not named:
            raise NotSent(f"no Sentinel named a primary of {self.target.service!r}: {problem}")
        address = max(named, key=lambda one: named[one])
        try:
            with _Asker(self.connection(address)) as ask:
                role = ask("ROLE")[0]
        except _FATAL as error:
            raise connect_problem(error, self.target) from None
        except (redis.RedisError, OSError) as error:
            raise NotSent(f"the primary that the Sentinels name does not answer: {error}") from None
        if role != b"master":
            raise NotSent(f"{address[0]}:{address[1]} is no primary yet")
        return address

    def confirm(self, address: Address) -> None:
        """After connecting: is this still the primary? The answer that led here may have been an old one."""
        if self.target.kind != "sentinel":
            return
        self.refresh(self.generation)
        if self._primary != address:
            raise NotSent(f"{address[0]}:{address[1]} is no longer the primary")

    def _ask_cluster(self) -> dict[int, Address]:
        problem: Exception | None = None
        for place in list(dict.fromkeys([*self._known, *self.target.hosts])):
            try:
                with _Asker(self.connection(place)) as ask:
                    ranges = ask("CLUSTER", "SLOTS")
            except _FATAL as error:
                raise connect_problem(error, self.target) from None
            except redis.exceptions.ResponseError as error:
                raise ConfigurationError(
                    f"use redis:// instead of redis+cluster://, or name a Cluster: {error}"
                ) from None
            except (redis.RedisError, OSError) as error:
                problem = error
                continue
            slots = {}
            for first, last, node, *_ in ranges:
                address = ((node[0] or place[0].encode()).decode(), int(node[1]))
                slots.update(dict.fromkeys(range(first, last + 1), address))
            if slots:
                self._known = sorted(set(slots.values()))
                return slots
        raise NotSent(f"no node of the cluster answered: {problem}")

    # -- connecting ---------------------------------------------------------------------------------------------

    def connection(self, address: Address) -> Any:
        """A blocking redis-py connection, not yet connected."""
        if self.local:
            kind: Any = redis.UnixDomainSocketConnection
            return kind(**self._options)
        kind = redis.SSLConnection if self.target.tls else redis.Connection
        return kind(host=address[0], port=address[1], **self._options)

    def aio_connection(self, address: Address) -> Any:
        """The same for asyncio."""
        if self.local:
            made: Any = aio.UnixDomainSocketConnection(**self._options)
        else:
            kind = aio.SSLConnection if self.target.tls else aio.Connection
            made = kind(host=address[0], port=address[1], **self._options)
        made.socket_connect_timeout = None  # `connect` has it
        return made

    def _sentinel_connection(self, place: Address) -> Any:
        keep: Mapping[str, Any] = {k: v for k, v in self._options.items() if k not in ("db",)}
        kind = redis.SSLConnection if self.target.tls else redis.Connection
        return kind(host=place[0], port=place[1], **keep)


class _Asker:
    """A connection for one or two questions, closed afterwards whatever happens."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> Any:
        self._connection.connect()
        return self._ask

    def _ask(self, *words: str) -> Any:
        self._connection.send_command(*words)
        return self._connection.read_response()

    def __exit__(self, *_: object) -> None:
        self._connection.disconnect()


async def connect(made: Any, seconds: float) -> None:
    """Connect, or leave nothing behind.

    redis-py waits with `wait_for`, which on Python 3.11 swallows a cancellation that comes together with the result: it
    is raised here instead. And the time limit is ours: redis-py's may strike when the connection is made and it does
    not know of it yet, and nobody would close that."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        async with asyncio.timeout(seconds):
            await made.connect()
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
    except BaseException:
        discard(made)
        raise


def discard(made: Any) -> None:
    """A connection of redis-py that was given up half made keeps its socket open until somebody closes it."""
    writer, made._writer, made._reader = made._writer, None, None
    if writer is not None:
        writer.transport.abort()


def connect_problem(error: BaseException, target: Target) -> Exception:
    """What a failed connection attempt means for the caller. redis-py's asyncio side hides the reason in the cause."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, _FATAL):
            return NotPermitted(f"mend the credentials of {target.shown}: {target.redact(str(reason))}")
        reason = reason.__cause__
    return NotSent(f"cannot connect: {target.redact(str(error)) or type(error).__name__}")

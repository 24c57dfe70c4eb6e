"""Every error Holdfast raises.

    HoldfastError
    ├── ConfigurationError      what was passed can never work (also a ValueError)
    │   ├── InvalidId           an id that is empty, too long or of the wrong type
    │   ├── InvalidPayload      data that is neither a JSON value nor bytes
    │   │   └── TooLarge        data that is larger than allowed
    │   ├── RunMismatch         this run id was started with something else
    │   ├── KeyMismatch         this key was used for a call with other arguments
    │   ├── NotPermitted        the server does not let this client in, or not do this
    │   └── UnsafeServer        the server would break the promises: eviction, too old
    ├── NotAcquired             somebody else has it; nothing is held
    │   ├── NotReplicated       granted, but too few replicas confirmed it in time; given back
    │   ├── InProgress          somebody works on it at this moment
    │   ├── RunActive           somebody runs it, or its key has no free slot
    │   └── RunEnded            it is over and does not run again
    ├── WouldDeadlock           this task would wait for itself
    ├── QueueFull               too many wait already; nothing was added
    ├── RunStopped              somebody wants this run to stop
    ├── RunGone                 there is no such run, or no longer
    ├── LeaseLost               it was held and no longer is
    ├── EarlierFailure          the call with this key has failed before, and that was stored
    ├── Fenced                  the resource has seen a newer holder; the write was refused
    ├── Unavailable             the server was not reached or did not act; nothing happened
    │   └── ServerFull          the server is out of memory and refused to add anything
    ├── Indeterminate           it was sent and no answer came; it may or may not have happened
    ├── UnreadablePayload       stored data that cannot be read
    │   └── NewerPayload        stored by a newer version; it stays where it is
    └── ServerError             an answer that should not exist; please report it

"Not acquired", "lost", "unavailable" and "indeterminate" ask for different reactions and so never share a branch.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """The root of the tree.

    The first line says what to do. `operation`, `key` and `elapsed` say where it happened.
    """

    def __init__(self, message: str, *, operation: str = "", key: str = "", elapsed: float | None = None) -> None:
        self.operation = operation
        self.key = key
        self.elapsed = elapsed
        where = ", ".join(
            part
            for part in (
                operation and f"operation {operation}",
                key and f"key {key!r}",
                f"after {elapsed:.3f} s" if elapsed is not None else "",
            )
            if part
        )
        super().__init__(f"{message} ({where})" if where else message)


class ConfigurationError(HoldfastError, ValueError):
    """What was passed can never work. Nothing was sent."""


class InvalidId(ConfigurationError):
    """An id is empty, longer than 512 bytes, or neither text nor bytes."""


class InvalidPayload(ConfigurationError):
    """The data is neither a JSON value nor bytes. Nothing was sent."""


class TooLarge(InvalidPayload):
    """The data is larger than allowed. Nothing was sent."""


class RunMismatch(ConfigurationError):
    """This run id was started before, with another input, key or kind. `run` is that run."""

    def __init__(self, message: str, *, run: Any = None, **where: object) -> None:
        self.run = run
        super().__init__(message, **where)  # type: ignore[arg-type]


class KeyMismatch(ConfigurationError):
    """This key was used for a call with other arguments. Nothing was called."""


class NotPermitted(ConfigurationError):
    """The server does not let this client in, or not do this: its password or rights are wrong. Nothing was done."""


class UnsafeServer(ConfigurationError):
    """The server is set up so that it would break promises. The message has the line that fixes it."""


class NotAcquired(HoldfastError):
    """Somebody else has it. Nothing is held and nothing is left behind in the queue."""


class NotReplicated(NotAcquired):
    """It was granted, but too few replicas confirmed in time, so it was given back."""


class InProgress(NotAcquired):
    """Somebody works on it at this moment. Nothing was called; ask again later."""


class RunActive(NotAcquired):
    """Somebody runs it, or its key has no free slot. `run` is who is in the way."""

    def __init__(self, message: str, *, run: Any = None, **where: object) -> None:
        self.run = run
        super().__init__(message, **where)  # type: ignore[arg-type]


class RunEnded(NotAcquired):
    """The run is over and does not run again. `run` says how it ended."""

    def __init__(self, message: str, *, run: Any = None, **where: object) -> None:
        self.run = run
        super().__init__(message, **where)  # type: ignore[arg-type]


class QueueFull(HoldfastError):
    """Too many wait already. Nothing was added; `observed` says of a monitor's observations which were stored."""

    def __init__(self, message: str, *, observed: Any = (), **where: object) -> None:
        self.observed = observed
        super().__init__(message, **where)  # type: ignore[arg-type]


class RunStopped(HoldfastError):
    """Somebody wants this run to stop. Clean up and return. `reason` is what that one said, where it is known here."""

    def __init__(self, message: str, *, reason: str = "", **where: object) -> None:
        self.reason = reason
        super().__init__(message, **where)  # type: ignore[arg-type]


class RunGone(HoldfastError):
    """There is no such run: it was never started, or it ended longer ago than it is kept."""


class WouldDeadlock(HoldfastError):
    """The caller already holds this in a way that makes it wait for itself."""


class LeaseLost(HoldfastError):
    """The lease ended before it was released. Whatever came after its deadline was not protected."""

    def __init__(self, message: str, *, reason: str = "", **where: object) -> None:
        self.reason = reason
        super().__init__(message, **where)  # type: ignore[arg-type]


class EarlierFailure(HoldfastError):
    """The call with this key has failed before, and that was stored. `error` is the name of what it raised."""

    def __init__(self, message: str, *, error: str = "", **where: object) -> None:
        self.error = error
        super().__init__(message, **where)  # type: ignore[arg-type]


class Fenced(HoldfastError):
    """The resource has seen a higher fence. The write was refused: a newer holder exists."""

    def __init__(self, message: str, *, fence: int = 0, seen: int | None = None, **where: object) -> None:
        self.fence = fence
        self.seen = seen
        super().__init__(message, **where)  # type: ignore[arg-type]


class Unavailable(HoldfastError):
    """The server was not reached, or said that it did not act. Nothing happened; trying again is safe."""


class ServerFull(Unavailable):
    """The server is out of memory and refused to add anything. What frees memory still works."""


class Indeterminate(HoldfastError):
    """A request was sent and no answer came in time. It may or may not have happened."""


class UnreadablePayload(HoldfastError):
    """Stored data cannot be read: it is damaged, or something else wrote it."""


class NewerPayload(UnreadablePayload):
    """Stored data is of a newer version than this process knows. It stays where it is."""


class ServerError(HoldfastError):
    """The server gave an answer that should not exist."""

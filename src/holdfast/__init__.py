"""Holdfast: a fleet of workers on one Valkey or Redis that behaves like one careful worker."""

from holdfast.buffers.batch import Batch
from holdfast.buffers.buffer import Buffer
from holdfast.buffers.letters import BufferStats, BufferTotals, DeadLetter
from holdfast.buffers.message import Appended, Message, Pair
from holdfast.client import Holdfast
from holdfast.errors import (
    ConfigurationError,
    Fenced,
    HoldfastError,
    Indeterminate,
    InvalidId,
    InvalidPayload,
    LeaseLost,
    NewerPayload,
    NotAcquired,
    NotReplicated,
    QueueFull,
    RunActive,
    RunEnded,
    RunGone,
    RunMismatch,
    RunStopped,
    ServerError,
    ServerFull,
    TooLarge,
    Unavailable,
    UnreadablePayload,
    UnsafeServer,
    WouldDeadlock,
)
from holdfast.locks.fencing import SqlGuard
from holdfast.locks.inspect import AuditEntry, Holder, LockInfo, Waiter
from holdfast.locks.lease import Lease
from holdfast.locks.lock import AllLocks, Lock, ReadWriteLock, Semaphore
from holdfast.runs.active import ActiveRun
from holdfast.runs.record import Event, Run
from holdfast.runs.runs import Runs
from holdfast.sessions.entry import Context, Draft, Entry, Saved, Trimmed
from holdfast.sessions.sessions import Sessions

__version__ = "0.1.0"

__all__ = [
    "ActiveRun",
    "AllLocks",
    "Appended",
    "AuditEntry",
    "Batch",
    "Buffer",
    "BufferStats",
    "BufferTotals",
    "ConfigurationError",
    "Context",
    "DeadLetter",
    "Draft",
    "Entry",
    "Event",
    "Fenced",
    "Holder",
    "Holdfast",
    "HoldfastError",
    "Indeterminate",
    "InvalidId",
    "InvalidPayload",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockInfo",
    "Message",
    "NewerPayload",
    "NotAcquired",
    "NotReplicated",
    "Pair",
    "QueueFull",
    "ReadWriteLock",
    "Run",
    "RunActive",
    "RunEnded",
    "RunGone",
    "RunMismatch",
    "RunStopped",
    "Runs",
    "Saved",
    "Semaphore",
    "ServerError",
    "ServerFull",
    "Sessions",
    "SqlGuard",
    "TooLarge",
    "Trimmed",
    "Unavailable",
    "UnreadablePayload",
    "UnsafeServer",
    "Waiter",
    "WouldDeadlock",
]

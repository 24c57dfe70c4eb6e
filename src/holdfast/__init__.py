"""Holdfast: a fleet of workers on one Valkey or Redis that behaves like one careful worker."""

from holdfast.client import Holdfast
from holdfast.errors import (
    ConfigurationError,
    Fenced,
    HoldfastError,
    Indeterminate,
    InvalidId,
    LeaseLost,
    NotAcquired,
    NotReplicated,
    ServerError,
    ServerFull,
    Unavailable,
    UnsafeServer,
    WouldDeadlock,
)
from holdfast.locks.fencing import SqlGuard
from holdfast.locks.inspect import AuditEntry, Holder, LockInfo, Waiter
from holdfast.locks.lease import Lease
from holdfast.locks.lock import AllLocks, Lock, ReadWriteLock, Semaphore

__version__ = "0.1.0"

__all__ = [
    "AllLocks",
    "AuditEntry",
    "ConfigurationError",
    "Fenced",
    "Holder",
    "Holdfast",
    "HoldfastError",
    "Indeterminate",
    "InvalidId",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockInfo",
    "NotAcquired",
    "NotReplicated",
    "ReadWriteLock",
    "Semaphore",
    "ServerError",
    "ServerFull",
    "SqlGuard",
    "Unavailable",
    "UnsafeServer",
    "Waiter",
    "WouldDeadlock",
]

"""Holdfast: a fleet of workers on one Valkey or Redis that behaves like one careful worker."""

from holdfast.buffers.batch import Batch
from holdfast.buffers.buffer import Buffer
from holdfast.buffers.letters import BufferStats, BufferTotals, DeadLetter, UserStats
from holdfast.buffers.message import Appended, Message, Pair
from holdfast.buffers.tickets import BatchTicket
from holdfast.client import Holdfast
from holdfast.errors import (
    ConfigurationError,
    EarlierFailure,
    Fenced,
    HoldfastError,
    Indeterminate,
    InProgress,
    InvalidId,
    InvalidPayload,
    KeyMismatch,
    LeaseLost,
    NewerPayload,
    NotAcquired,
    NotPermitted,
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
from holdfast.fleet.fleet import Fleet
from holdfast.fleet.record import Action, Named, Process, Series, Slot, Times
from holdfast.locks.fencing import SqlGuard
from holdfast.locks.inspect import AuditEntry, Holder, LockInfo, Waiter
from holdfast.locks.lease import Lease
from holdfast.locks.lock import AllLocks, Lock, ReadWriteLock, Semaphore
from holdfast.locks.tickets import Ticket
from holdfast.monitor.flows import DeadDelivery, Observed
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.parts import Observation
from holdfast.monitor.record import Change, Delivery, DeliveryFailed, Push, Snapshot, Subscriber
from holdfast.once.claim import Claim
from holdfast.once.gate import Gate
from holdfast.once.gating import Decision, Notice
from holdfast.runs.active import ActiveRun
from holdfast.runs.record import Event, Run
from holdfast.runs.runs import Runs
from holdfast.sessions.entry import Context, Draft, Entry, Saved, Trimmed
from holdfast.sessions.sessions import Sessions

__version__ = "0.1.0"

__all__ = [
    "Action",
    "ActiveRun",
    "AllLocks",
    "Appended",
    "AuditEntry",
    "Batch",
    "BatchTicket",
    "Buffer",
    "BufferStats",
    "BufferTotals",
    "Change",
    "Claim",
    "ConfigurationError",
    "Context",
    "DeadDelivery",
    "DeadLetter",
    "Decision",
    "Delivery",
    "DeliveryFailed",
    "Draft",
    "EarlierFailure",
    "Entry",
    "Event",
    "Fenced",
    "Fleet",
    "Gate",
    "Holder",
    "Holdfast",
    "HoldfastError",
    "InProgress",
    "Indeterminate",
    "InvalidId",
    "InvalidPayload",
    "KeyMismatch",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockInfo",
    "Message",
    "Monitor",
    "Named",
    "NewerPayload",
    "NotAcquired",
    "NotPermitted",
    "NotReplicated",
    "Notice",
    "Observation",
    "Observed",
    "Pair",
    "Process",
    "Push",
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
    "Series",
    "ServerError",
    "ServerFull",
    "Sessions",
    "Slot",
    "Snapshot",
    "SqlGuard",
    "Subscriber",
    "Ticket",
    "Times",
    "TooLarge",
    "Trimmed",
    "Unavailable",
    "UnreadablePayload",
    "UnsafeServer",
    "UserStats",
    "Waiter",
    "WouldDeadlock",
]

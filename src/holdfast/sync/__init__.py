"""The blocking twin: the same names, for threads. Generated from the asyncio classes by `make sync`."""

from holdfast.sync.active import ActiveRun
from holdfast.sync.batch import Batch
from holdfast.sync.buffer import Buffer
from holdfast.sync.claim import Claim
from holdfast.sync.client import Holdfast
from holdfast.sync.gate import Gate
from holdfast.sync.lease import Lease
from holdfast.sync.lock import AllLocks, Lock, ReadWriteLock, Semaphore
from holdfast.sync.monitor import Monitor
from holdfast.sync.runs import Runs
from holdfast.sync.sessions import Sessions

__all__ = [
    "ActiveRun",
    "AllLocks",
    "Batch",
    "Buffer",
    "Claim",
    "Gate",
    "Holdfast",
    "Lease",
    "Lock",
    "Monitor",
    "ReadWriteLock",
    "Runs",
    "Semaphore",
    "Sessions",
]

"""The blocking twin: the same names, for threads. Generated from the asyncio classes by `make sync`."""

from holdfast.sync.client import Holdfast
from holdfast.sync.lease import Lease
from holdfast.sync.lock import AllLocks, Lock, ReadWriteLock, Semaphore

__all__ = ["AllLocks", "Holdfast", "Lease", "Lock", "ReadWriteLock", "Semaphore"]

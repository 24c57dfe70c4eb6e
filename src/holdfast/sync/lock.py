# Written by tools/make_sync.py from src/holdfast/locks/lock.py. Change that file, then run `make sync`.
"""What is locked: a mutex, one side of a read/write lock, or permits of a semaphore."""

from __future__ import annotations

from types import EllipsisType, TracebackType

from holdfast.engine.core import Core
from holdfast.engine.limits import check_wait
from holdfast.engine.scope import ThreadScope
from holdfast.engine.threads import ThreadDriver
from holdfast.errors import NotAcquired
from holdfast.keys import Id
from holdfast.locks import admin, flows, tickets
from holdfast.locks.inspect import LockInfo
from holdfast.locks.spec import Spec
from holdfast.locks.tickets import Ticket
from holdfast.sync.lease import Lease


class Lock:
    """A name that one holder at a time may have. Made by `Holdfast.lock` and its siblings; making one sends nothing.

    Fair: first come, first served, and a release hands over to the next live waiter in the same step.
    Re-entrant: the thread that holds it may take it again and must release it as often. Other threads of the same process
    wait like anybody.
    """

    def __init__(self, core: Core, driver: ThreadDriver, spec: Spec, name: Id, wait: float | None) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self._wait = check_wait(wait)
        self._inside: list[tuple[object, Lease, ThreadScope]] = []
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec.place.kind}:{self._spec.place.name}>"

    def acquire(self, *, wait: float | EllipsisType | None = ...) -> Lease:
        """Take it, waiting in line at most `wait` seconds (None: no limit, 0: not at all; default: as made).

        Raises NotAcquired when the wait runs out, Unavailable when the server cannot be reached. Cancelling leaves the
        line and gives back what was just granted."""
        patience = self._wait if isinstance(wait, EllipsisType) else check_wait(wait)
        spec, core = self._spec, self._core
        entry = (spec.place.lock, self._driver.owner()) if spec.reentrant else None
        if entry is not None and (known := core.entered.get(entry)) is not None:
            lease: Lease | None = known()
            if lease is not None and lease._reenter(spec.weight):
                return lease
            core.entered.pop(entry, None)
        hold = self._driver.run(flows.acquire(core, spec, patience, self._driver.home()))
        lease = Lease(core, self._driver, spec, hold, self.name)
        if entry is not None:
            lease._remember(entry)
        return lease

    def try_acquire(self) -> Lease | None:
        """Take it if it is free, and, unless made with `fair=False`, nobody waits for it; None if not."""
        try:
            return self.acquire(wait=0)
        except NotAcquired:
            return None

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._inside.append((self._driver.owner(), lease, lease._enter()))
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner = self._driver.owner()
        at = max(i for i, (who, _, _) in enumerate(self._inside) if who is owner)
        _, lease, scope = self._inside.pop(at)
        lease._leave(scope, error)

    def ticket(self, *, wait: float | EllipsisType | None = ...) -> Ticket:
        """As `acquire`, for a holder outside this process: nobody renews it but whoever has its token, and closing the
        client does not release it. Without `renew_ticket` it ends after its TTL."""
        patience = self._wait if isinstance(wait, EllipsisType) else check_wait(wait)
        return self._driver.run(tickets.grant(self._core, self._spec, self.name, patience))

    def renew_ticket(self, token: str) -> float:
        """Let it last its TTL from now on. Answers the seconds. Raises LeaseLost if it has ended: it stays so."""
        return self._driver.run(tickets.renew(self._core, self._spec, token))

    def return_ticket(self, token: str) -> bool:
        """Give it back; the next live waiter is granted in the same step. False if it had ended before."""
        return self._driver.run(tickets.give_back(self._core, self._spec, token))

    def inspect(self) -> LockInfo:
        """Who holds it, since when and with which fence, and who waits."""
        return self._driver.run(admin.inspect(self._core, self._spec.place))

    def busy(self, max_age: float = 1.0) -> bool:
        """Would a caller have to wait? "Busy" may be up to `max_age` seconds old; "free" is never from the cache.

        Free now is no promise for the next moment: to act on it, acquire."""
        return self._driver.run(admin.busy(self._core, self._spec, max_age))

    def force_release(self, *, reason: str, by: str = "", fence: int | None = None) -> int:
        """End somebody else's lease, or the one with this fence; kept in the audit log. Answers how many ended.

        A process that has waited in the same shard is told at once, any other at its next renewal; until then it may
        still act, so guard by fence."""
        return self._driver.run(admin.force(self._core, self._spec.place, fence, reason, by))


class ReadWriteLock:
    """Many readers or one writer. Fair between them: a waiting writer stops later readers from passing it."""

    def __init__(self, reading: Lock, writing: Lock) -> None:
        self._reading = reading
        self._writing = writing
        self.name = reading.name

    def read(self) -> Lock:
        """To be held together with other readers."""
        return self._reading

    def write(self) -> Lock:
        """To be held alone. A thread that holds the read side gets WouldDeadlock."""
        return self._writing

    def inspect(self) -> LockInfo:
        """Who reads or writes, and who waits."""
        return self._writing.inspect()


class Semaphore(Lock):
    """`permits` that expire with their holder: a crashed one gives its permits back. Not re-entrant."""


class AllLocks:
    """Several names, taken together or not at all, without deadlock whatever order they were named in."""

    def __init__(self, core: Core, driver: ThreadDriver, specs: list[tuple[Id, Spec]], wait: float | None) -> None:
        self._core = core
        self._driver = driver
        self._specs = specs
        # Everybody waits in the same order, so that no circle can form: that of the keys.
        self._order = sorted(range(len(specs)), key=lambda at: specs[at][1].place.lock)
        self._wait = check_wait(wait)
        self._inside: list[tuple[object, list[Lease], list[ThreadScope]]] = []

    def acquire(self, *, wait: float | EllipsisType | None = ...) -> list[Lease]:
        """Take all of them, in the order named; NotAcquired leaves nothing held."""
        patience = self._wait if isinstance(wait, EllipsisType) else check_wait(wait)
        specs = [self._specs[at][1] for at in self._order]
        owner = self._driver.owner()
        for spec in specs:
            if (known := self._core.entered.get((spec.place.lock, owner))) is not None and known() is not None:
                raise flows.would_deadlock(spec.place.name, "release it before asking for it with others")
        holds = self._driver.run(flows.acquire_all(self._core, specs, patience, self._driver.home()))
        leases = {
            at: Lease(self._core, self._driver, self._specs[at][1], hold, self._specs[at][0])
            for at, hold in zip(self._order, holds, strict=True)
        }
        return [leases[at] for at in range(len(leases))]

    def __enter__(self) -> list[Lease]:
        leases = self.acquire()
        self._inside.append((self._driver.owner(), leases, [lease._enter() for lease in leases]))
        return leases

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner = self._driver.owner()
        at = max(i for i, (who, _, _) in enumerate(self._inside) if who is owner)
        _, leases, scopes = self._inside.pop(at)
        lost: BaseException | None = None
        for lease, scope in zip(reversed(leases), reversed(scopes), strict=True):
            try:
                lease._leave(scope, error)
            except BaseException as problem:  # every lock is given back before anything is raised
                lost = lost or problem
        if lost is not None:
            raise lost

    def __repr__(self) -> str:
        return f"<AllLocks {[name for name, _ in self._specs]!r}>"

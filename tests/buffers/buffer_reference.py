"""What a shard of a buffer is, in the plainest Python: the reference for the scripts, with a clock that the test moves.

What is past its life is removed when somebody who may write looks at it, here as there, so that counters agree at every
moment. `visible` is what a reader may see.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

HOUR, DAY = 3_600_000, 86_400_000


@dataclass
class File:
    """An attachment: pending until its deadline, resolved (`r` and payload) or failed (`f`)."""

    deadline: int
    value: bytes = b"p"


@dataclass
class Entry:
    """A message."""

    id: bytes
    at: int
    size: int
    files: dict[str, File] = field(default_factory=dict)
    taken: bool = False


@dataclass
class Turn:
    """A pair of a conversation."""

    op: bytes
    at: int
    life: int


@dataclass
class Held:
    """A batch in flight."""

    id: int
    entries: list[Entry]
    turns: int
    attempt: int
    fence: int
    deadline: int
    token: str


@dataclass
class Letter:
    user: str
    entries: list[Entry]
    turns: list[Turn]


@dataclass
class User:
    name: str
    waiting: list[Entry] = field(default_factory=list)
    held: Held | None = None
    turns: list[Turn] = field(default_factory=list)
    last: int = 0
    due: int = 0
    forced: bool = False
    ttl: int = 0
    triggers: tuple[int, int, int] = (0, 0, 0)

    @property
    def known(self) -> bool:
        return bool(self.waiting or self.held)

    @property
    def in_flight_turns(self) -> int:
        return self.held.turns if self.held else 0


class Reference:
    """Users of one shard."""

    def __init__(self, *, capacity: int, most_bytes: int, ttl: int, turns: int) -> None:
        self.capacity, self.most_bytes, self.ttl, self.most_turns = capacity, most_bytes, ttl, turns
        self.now = 1_000_000_000_000
        self.users: dict[str, User] = {}
        self.letters: dict[int, Letter] = {}
        self.acked: dict[int, int] = {}
        """When what was handed out with a fence was acknowledged wholly."""
        self.counts: Counter[str] = Counter()
        self.conf = (0, 0, 0)
        self.appended = 0

    def user(self, name: str) -> User:
        return self.users.setdefault(name, User(name))

    # -- what follows from the state -------------------------------------------------------------------------

    def visible(self, u: User) -> list[Entry]:
        return [entry for entry in u.waiting if entry.at + u.ttl > self.now]

    def ready(self, entries: list[Entry], most: int) -> tuple[int, int]:
        """How many leading messages may be taken, and until when the next one blocks (0: it does not)."""
        for at, entry in enumerate(entries[:most]):
            open_until = max((f.deadline for f in entry.files.values() if f.value == b"p"), default=0)
            if open_until > self.now:
                return at, open_until
        return min(len(entries), most), 0

    def look_at(self, u: User) -> int:
        """When somebody must look at this user next; 0: never."""
        if u.held:
            return u.held.deadline
        if not u.waiting:
            return 0
        count, blocked = self.ready(u.waiting, 100_000)
        if count == 0:
            return min(blocked, u.waiting[0].at + u.ttl)
        if u.forced:
            return min(u.due, self.now) if u.due else self.now
        threshold, age, quiet = u.triggers
        oldest = u.waiting[0].at
        at = oldest + u.ttl - min(HOUR, u.ttl // 2)
        if age:
            at = min(at, oldest + age)
        if quiet:
            at = min(at, u.last + quiet)
        if threshold and count >= threshold:
            at = min(at, u.due if 0 < u.due <= self.now else self.now)
        return min(at, blocked) if blocked else at

    def is_due(self, u: User) -> bool:
        """Must a claim that looks now find something here?"""
        if u.held:
            return u.held.deadline <= self.now
        waiting = self.visible(u)
        count, _ = self.ready(waiting, 100_000)
        if count == 0:
            return False
        threshold, age, quiet = u.triggers
        oldest = waiting[0].at
        return (
            u.forced
            or bool(threshold and count >= threshold)
            or bool(age and oldest + age <= self.now)
            or bool(quiet and u.last + quiet <= self.now)
            or oldest + u.ttl - min(HOUR, u.ttl // 2) <= self.now
        )

    # -- steps -----------------------------------------------------------------------------------------------

    def touch(self, u: User) -> None:
        if not u.held:
            self.expire(u)
        u.due = self.look_at(u)
        if not u.known:
            u.last, u.forced, u.ttl, u.triggers = 0, False, 0, (0, 0, 0)

    def expire(self, u: User) -> int:
        kept = self.visible(u)
        gone = len(u.waiting) - len(kept)
        u.waiting = kept
        self.counts["dropped.age"] += gone
        return gone

    def prune_turns(self, u: User) -> int:
        """A turn outlives its time while a message that came within it still waits."""
        gone = 0
        while u.turns and not u.in_flight_turns:
            end = u.turns[0].at + u.turns[0].life
            if end > self.now or (u.waiting and u.waiting[0].at <= end):
                break
            u.turns.pop(0)
            gone += 1
        self.counts["dropped.pair_age"] += gone
        return gone

    def bury(self, u: User) -> None:
        held = u.held
        assert held
        self.letters[held.id] = Letter(u.name, held.entries, u.turns[: held.turns])
        del u.turns[: held.turns]
        self.counts["dead"] += len(held.entries)
        u.held = None

    # -- operations: each answers what the script must answer ------------------------------------------------

    def append(self, u: User, entries: list[Entry]) -> list:
        if not u.known:
            u.triggers = self.conf
        u.ttl = self.ttl
        aged = self.expire(u)
        self.appended += len(entries)
        u.last = self.now
        u.waiting += entries
        over = max(0, len(u.waiting) - self.capacity)
        del u.waiting[:over]
        heavy = 0
        while sum(entry.size for entry in u.waiting) > self.most_bytes and len(u.waiting) > 1:
            u.waiting.pop(0)
            heavy += 1
        self.counts["dropped.capacity"] += over
        self.counts["dropped.bytes"] += heavy
        self.touch(u)
        return [b"stored", len(u.waiting), self.now - u.waiting[0].at, aged, over, heavy]

    def take(self, u: User, token: str, lease: int, most: int, attempts: int) -> str:
        if not u.known:
            return "empty"
        if u.held and u.held.deadline > self.now:
            if u.held.token != token:
                return "busy"
            u.held.deadline = self.now + lease
            self.touch(u)
            return "taken"
        if u.held and u.held.attempt >= attempts:
            self.bury(u)
        return "taken" if self.lease_out(u, token, lease, most) else "empty"

    def lease_out(self, u: User, token: str, lease: int, most: int) -> bool:
        """Id and fence are what the server says; the caller fills them in."""
        self.expire(u)
        if u.held:
            self.counts["redelivered"] += 1
        else:
            count, _ = self.ready(u.waiting, most)
            if count == 0:
                self.touch(u)
                return False
            self.prune_turns(u)
            u.held = Held(0, u.waiting[:count], len(u.turns), 0, 0, 0, "")
            u.waiting = u.waiting[count:]
            u.forced = u.forced and bool(u.waiting)
            for entry in u.held.entries:
                entry.taken = True
        u.held.attempt, u.held.token, u.held.deadline = u.held.attempt + 1, token, self.now + lease
        self.touch(u)
        return True

    def holds(self, u: User, token: str, batch: int) -> bool:
        h = u.held
        return bool(h and h.token == token and batch in (0, h.id) and h.deadline > self.now)

    def ack(self, u: User, token: str, fence: int, ids: list[bytes]) -> list:
        if not (self.holds(u, token, 0) and u.held and u.held.fence == fence):
            return [b"acked", 0, 0] if fence in self.acked else [b"not_held"]
        assert u.held
        left = [entry for entry in u.held.entries if ids and entry.id not in ids]
        removed = len(u.held.entries) - len(left)
        self.counts["absorbed"] += removed
        u.held.entries = left
        if not left:
            del u.turns[: u.held.turns]
            u.held = None
            self.counts["batches"] += 1
            self.acked[fence] = self.now
        self.touch(u)
        return [b"acked", removed, len(left)]

    def nack(self, u: User, token: str, batch: int, delay: int, attempts: int) -> list:
        if not self.holds(u, token, batch):
            return [b"buried"] if batch in self.letters else [b"not_held"]
        assert u.held
        if attempts and u.held.attempt >= attempts:
            self.bury(u)
            self.touch(u)
            return [b"buried"]
        u.held.attempt -= attempts == 0
        u.held.token, u.held.deadline = "", self.now + delay
        self.touch(u)
        return [b"returned"]

    def renew(self, u: User, token: str, lease: int) -> int:
        if not self.holds(u, token, 0):
            return 0
        assert u.held
        u.held.deadline = self.now + lease
        self.touch(u)
        return 1

    def pop(self, u: User, most: int) -> list[Entry]:
        self.expire(u)
        count, _ = self.ready(u.waiting, most)
        out, u.waiting = u.waiting[:count], u.waiting[count:]
        self.counts["popped"] += count
        self.touch(u)
        return out

    def clear(self, u: User) -> int:
        had = bool(u.waiting)
        self.expire(u)
        removed = len(u.waiting)
        if had:
            u.waiting, u.forced = [], False
            self.counts["cleared"] += removed
            self.touch(u)
        del u.turns[u.in_flight_turns :]
        return removed

    def forget(self, u: User) -> int:
        removed = len(u.waiting) + (len(u.held.entries) if u.held else 0)
        for name in [name for name, letter in self.letters.items() if letter.user == u.name]:
            removed += len(self.letters.pop(name).entries)
        self.counts["forgotten"] += removed
        self.users[u.name] = User(u.name)
        return removed

    def flush(self, u: User) -> list:
        if not u.known:
            return [b"empty"]
        self.expire(u)
        u.forced = u.forced or bool(u.waiting)
        self.touch(u)
        return [b"forced", len(u.waiting)] if u.waiting else [b"empty"]

    def converse(self, u: User, turn: Turn) -> list:
        if any(one.op == turn.op for one in u.turns):
            return [b"replayed", len(u.turns) - u.in_flight_turns]
        aged = self.prune_turns(u)
        u.turns.append(turn)
        start = u.in_flight_turns
        over = max(0, len(u.turns) - start - self.most_turns)
        del u.turns[start : start + over]
        self.counts["dropped.pair_capacity"] += over
        return [b"stored", len(u.turns) - start, aged, over]

    def settle(self, u: User, entry: Entry, name: str, outcome: bytes) -> bytes:
        held = u.held.entries if u.held else []
        if not any(one is entry for one in [*u.waiting, *held]):
            return b"missing"
        file = entry.files[name]
        if file.value == outcome:
            return b"settled"
        if entry.taken or file.value != b"p" or file.deadline <= self.now:
            return b"late"
        file.value = outcome
        self.touch(u)
        return b"settled"

    def replay(self, name: int) -> list:
        letter = self.letters.get(name)
        if letter is None:
            return [b"missing"]
        u = self.user(letter.user)
        if u.held:
            return [b"busy"]
        if not u.known:
            u.triggers, u.ttl = self.conf, DAY
        del self.letters[name]
        u.held = Held(name, letter.entries, len(letter.turns), 0, 0, self.now, "")
        u.turns = letter.turns + u.turns
        self.counts["replayed"] += len(letter.entries)
        self.touch(u)
        return [b"revived", len(letter.entries)]

    def purge(self, name: int) -> list:
        letter = self.letters.pop(name, None)
        if letter is None:
            return [b"missing"]
        self.counts["purged"] += len(letter.entries)
        return [b"purged", len(letter.entries)]

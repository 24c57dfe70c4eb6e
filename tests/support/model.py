"""What a lock is, in the plainest Python: the reference for the scripts, with a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.engine.scripts import Scripts

CLOCK_KEY = "test:clock"


class MovedClock(Scripts):
    """The real scripts, with the server's TIME replaced by a key that the test sets (in ms)."""

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if name == "_time" and text is not None:
            assert "call('TIME')" in text
            text = text.replace(
                "local time = call('TIME')", f"local ms = call('GET', '{CLOCK_KEY}')\nlocal time = {{ms / 1000, 0}}"
            )
        return text


@dataclass
class Hold:
    deadline: int
    weight: int
    ttl: int


@dataclass
class Ticket:
    deadline: int
    weight: int
    ttl: int
    lease: int


@dataclass
class Model:
    limit: int
    now: int = 1_000_000_000_000
    holds: dict[str, Hold] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    tickets: dict[str, Ticket] = field(default_factory=dict)
    listening: set[str] = field(default_factory=set)
    """Clients whose process is alive: only they can be granted to while they wait."""

    @property
    def used(self) -> int:
        return sum(hold.weight for hold in self.live().values())

    def live(self) -> dict[str, Hold]:
        return {token: hold for token, hold in self.holds.items() if hold.deadline > self.now}

    def _drop_dead(self) -> None:
        self.holds = self.live()

    def _pump(self, me: str | None = None) -> bool:
        """Hand out what is free, in order. True if nobody who listens is left waiting."""
        at = 0
        while self.used < self.limit:
            if at >= len(self.queue):
                return True
            token = self.queue[at]
            ticket = self.tickets[token]
            if ticket.deadline <= self.now:
                self._forget(token)
            elif self.used + ticket.weight > self.limit:
                return False
            elif token == me or token.partition(".")[0] in self.listening:
                self._forget(token)
                ms = ticket.ttl if token == me else min(ticket.ttl, ticket.lease)
                self.holds[token] = Hold(self.now + ms, ticket.weight, ticket.ttl)
            else:
                at += 1
        return False

    def _forget(self, token: str) -> None:
        self.queue.remove(token)
        del self.tickets[token]

    def acquire(self, token: str, weight: int, ttl: int, lease: int) -> str:
        if token in self.live():
            self.holds[token].deadline = self.now + ttl
            self.holds[token].ttl = ttl
            return "granted"
        self._drop_dead()
        mine = token in self.tickets
        waiting = bool(self.queue)
        if waiting and not mine and self.used < self.limit:
            waiting = not self._pump()
        if self.used + weight <= self.limit and not waiting:
            self.holds[token] = Hold(self.now + ttl, weight, ttl)
            return "granted"
        if lease == 0:
            return "busy"
        if not mine:
            self.queue.append(token)
        self.tickets[token] = Ticket(self.now + lease, weight, ttl, lease)
        self._pump(token)
        return "granted" if token in self.holds else "queued"

    def release(self, token: str) -> str:
        hold, ticket = self.holds.get(token), self.tickets.get(token)
        if hold is None and ticket is None:
            return "not_held"
        alive = hold is not None and hold.deadline > self.now
        self.holds.pop(token, None)
        if ticket is not None:
            self._forget(token)
        self._drop_dead()
        self._pump()
        if hold is None:
            return "withdrawn"
        return "released" if alive else "expired"

    def renew(self, token: str, ttl: int) -> bool:
        if token not in self.live():
            return False
        self.holds[token].deadline = self.now + ttl
        self.holds[token].ttl = ttl
        return True

    def force(self) -> int:
        ended = len(self.holds)
        if ended:
            self.holds.clear()
            self._pump()
        return ended

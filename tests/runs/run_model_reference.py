"""What a collection of runs is, in the plainest Python: the reference for the scripts, with a clock that is moved."""

from __future__ import annotations

from dataclasses import dataclass, field

ENDED = ("completed", "failed", "stopped")
ORPHAN = 7_200_000
SWEEP = 32
Position = tuple[int, int]


@dataclass
class Entry:
    """An entry of a run's log: `b` a batch of events, `r` another owner went on."""

    at: Position
    kind: str
    count: int
    size: int
    data: list[object]


@dataclass
class Run:
    id: str
    key: str
    input: int
    slots: int
    created: int
    state: str = "queued"
    waits: bool = False
    guard: bool = False
    attempt: int = 0
    tries: int = 0
    free: int = 0
    fence: int = 0
    deadline: int = 0
    span: int = 0
    token: str = ""
    owner: str = ""
    stop: str | None = None
    reason: str = ""
    ended: int = 0
    place: int = 0
    """In the queue: when it may be taken (us); as a guarded one without an owner: until when it waits (ms)."""
    arrived: int = 0
    log: list[Entry] = field(default_factory=list)
    last: Position = (0, 0)
    kept: int = 0
    bytes: int = 0
    dropped: int = 0
    gone: Position = (0, 0)
    batch: int = 0
    saved: object = None
    saved_at: Position = (0, 0)
    steps: dict[str, bytes] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def events(self) -> list[object]:
        return [one for entry in self.log if entry.kind == "b" for one in entry.data]


class Reference:
    """All runs of a collection. Each operation answers the first word of what the script must answer."""

    def __init__(self, *, slots: int, waiting: int, queued: int, retention: int, events: int, size: int) -> None:
        self.slots, self.waiting, self.queued, self.retention = slots, waiting, queued, retention
        self.most_events, self.most_bytes = events, size
        self.now = 1_000_000_000_000
        self.runs: dict[str, Run] = {}
        self.fence = 0

    # -- what follows from the state ---------------------------------------------------------------------------

    def owned(self, r: Run) -> bool:
        return r.state in ("running", "stopping") and r.deadline > self.now

    def mine(self, r: Run | None, token: str) -> bool:
        return r is not None and r.token == token and self.owned(r)

    def active(self, key: str) -> list[Run]:
        found = [r for r in self.runs.values() if r.key == key and not r.over and not r.waits]
        return sorted(found, key=lambda r: (r.arrived, r.id))

    def waits(self, key: str) -> list[Run]:
        found = [r for r in self.runs.values() if r.key == key and r.waits]
        return sorted(found, key=lambda r: (r.arrived, r.id))

    def due(self) -> list[Run]:
        found = [r for r in self.runs.values() if r.state == "queued" and not r.waits and not r.guard]
        return sorted(found, key=lambda r: (r.place, r.id))

    def held(self) -> list[tuple[int, str]]:
        found = [(r.deadline, r.id) for r in self.runs.values() if r.state in ("running", "stopping")]
        return sorted(found)

    def orphans(self) -> list[tuple[int, str]]:
        return sorted((r.place, r.id) for r in self.runs.values() if r.state == "queued" and r.guard)

    # -- steps -------------------------------------------------------------------------------------------------

    def next_id(self, r: Run, count: int) -> Position:
        r.last = (self.now, count - 1) if self.now > r.last[0] else (r.last[0], r.last[1] + count)
        return r.last

    def add(self, r: Run, kind: str, count: int, size: int, data: list[object]) -> None:
        self.next_id(r, count)
        r.log.append(Entry(r.last, kind, count, size, data))

    def trim(self, r: Run, count: int, size: int) -> int:
        """The oldest go, whole entries, until there is room for this and an eighth more."""
        if r.kept + count <= self.most_events and r.bytes + size <= self.most_bytes:
            return 0
        before = r.dropped
        most, large = self.most_events - self.most_events // 8, self.most_bytes - self.most_bytes // 8
        while r.kept > 0 and not (r.kept + count <= most and r.bytes + size <= large):
            entry = r.log.pop(0)
            r.kept, r.bytes, r.dropped, r.gone = (
                r.kept - entry.count,
                r.bytes - entry.size,
                r.dropped + entry.count,
                entry.at,
            )
        return r.dropped - before

    def promote(self, key: str) -> None:
        while waiting := self.waits(key):
            head = waiting[0]
            if len(self.active(key)) >= head.slots:
                return
            head.waits, head.place = False, head.arrived

    def finish(self, r: Run, state: str, reason: str) -> None:
        self.next_id(r, 1)
        r.state, r.reason, r.ended, r.deadline, r.waits, r.steps = state, reason, self.now, 0, False, {}
        if r.key:
            self.promote(r.key)

    def requeue(self, r: Run, at: int) -> None:
        r.state, r.owner, r.deadline, r.span = "queued", "", 0, 0
        r.place = self.now + ORPHAN if r.guard else at

    def judge(self, r: Run) -> None:
        if self.owned(r):  # further away than it was given for: the clock was set back, and nobody gains by that
            r.deadline = min(r.deadline, self.now + r.span)
        if r.over or self.owned(r):
            return
        if r.state == "queued":
            if r.guard and r.place <= self.now:
                self.finish(r, "failed", "worker lost")
            return
        r.token = ""
        if r.stop is not None:
            self.finish(r, "stopped", r.stop)
        elif r.attempt - r.free >= r.tries:
            self.finish(r, "failed", "worker lost")
        else:
            self.requeue(r, r.created * 1000)

    def sweep(self, lease: int = 1 << 60) -> int:
        if self.held() and self.held()[-1][0] - self.now > lease:
            for _, run in self.held()[-16:]:
                self.judge(self.runs[run])
        for score, run in [one for one in self.held() if one[0] <= self.now][:SWEEP]:
            assert score <= self.now
            self.judge(self.runs[run])
        for _, run in [one for one in self.orphans() if one[0] <= self.now][:8]:
            self.judge(self.runs[run])
        held = self.held()
        return max(0, held[0][0] - self.now) if held else -1

    def room(self, key: str, most: int) -> int:
        """How many have a slot, after those that lost their owner were seen to."""
        if len(self.active(key)) >= most:
            self.sweep()
            if head := self.active(key):
                self.judge(head[0])
        self.promote(key)
        return len(self.active(key))

    def halt(self, r: Run, reason: str) -> None:
        self.judge(r)
        if r.state == "queued":
            self.finish(r, "stopped", reason)
        elif not r.over and r.stop is None:
            r.stop, r.state = reason, "stopping"

    def create(self, run: str, key: str, data: int, waits: bool) -> Run:
        r = Run(run, key, data, self.slots, self.now, waits=waits, place=self.now * 1000, arrived=self.now * 1000)
        self.runs[run] = r
        return r

    def give(self, r: Run, token: str, owner: str, lease: int, most: int) -> None:
        self.fence = self.now * 1000 if self.fence < self.now * 1000 else self.fence + 1
        r.fence, r.attempt, r.tries, r.token, r.batch, r.owner = self.fence, r.attempt + 1, most, token, 0, owner
        r.deadline, r.span, r.state = self.now + lease, lease, "running"
        if r.attempt > 1:
            self.trim(r, 1, 32)
            self.add(r, "r", 1, 32, [r.attempt])
            r.kept, r.bytes = r.kept + 1, r.bytes + 32

    # -- operations --------------------------------------------------------------------------------------------

    def start(self, run: str, key: str, data: int, conflict: str) -> tuple[str, str]:
        if r := self.runs.get(run):
            self.judge(r)
            return ("exists" if (r.key, r.input) == (key, data) else "mismatch"), run
        waits = False
        if key:
            held, waiting = self.room(key, self.slots), len(self.waits(key))
            if conflict == "replace" and held + waiting >= self.slots and (waiting or not self.full()):
                self.replace(run, key)
                held, waiting = len(self.active(key)), 0
            if held >= self.slots or waiting:
                if conflict == "reject":
                    return "busy", self.active(key)[0].id
                staying = [r for r in self.active(key) if r.stop is None]
                if conflict == "join" and staying:
                    return "joined", staying[-1].id
                if waiting >= self.waiting and conflict != "replace":
                    return "full", ""
                waits = True
        if self.full():
            return "full", ""
        self.create(run, key, data, waits)
        return "created", run

    def full(self) -> bool:
        return len([r for r in self.runs.values() if r.state == "queued"]) >= self.queued

    def replace(self, run: str, key: str) -> None:
        for other in self.waits(key):
            self.halt(other, f"replaced by {run}")
        going = [r for r in self.active(key) if r.stop is None]
        for other in going[: max(0, len(going) - self.slots + 1)]:
            self.halt(other, f"replaced by {run}")

    def claim(self, run: str, key: str, token: str, owner: str, lease: int, most: int) -> tuple[str, str]:
        r = self.runs.get(run)
        if r:
            if self.mine(r, token):
                return "taken", run
            self.judge(r)
            if r.over:
                return "ended", run
            if self.owned(r):
                return "busy", run
            if r.waits:
                self.room(r.key, r.slots)
                if r.waits:
                    return "busy", self.active(r.key)[0].id
        else:
            if key and self.room(key, self.slots) >= self.slots:
                return "busy", self.active(key)[0].id
            r = self.create(run, key, 0, False)
        r.guard = True
        self.give(r, token, owner, lease, most)
        return "taken", run

    def take(self, tokens: list[str], owner: str, lease: int, most: int) -> list[Run]:
        self.sweep(lease)
        taken = [r for r in self.due() if r.place <= self.now * 1000][: len(tokens)]
        for r, token in zip(taken, tokens, strict=False):
            self.give(r, token, owner, lease, most)
        return taken

    def write(self, run: str, token: str, number: int, data: list[object], size: int, what: str, value: bytes) -> list:
        r = self.runs.get(run)
        if r is None or not self.mine(r, token):
            return [b"not_held"]
        stop = int(r.stop is not None)
        if number <= r.batch:
            return [b"replayed", stop, 0]
        lost = self.store(r, number, data, size)
        if what == "c":
            r.saved, r.saved_at = value, r.last
        elif what == "s":
            r.steps["pay"] = value
        return [b"written", stop, lost]

    def store(self, r: Run, number: int, data: list[object], size: int) -> int:
        r.batch = number
        if not data:
            return 0
        lost = self.trim(r, len(data), size)
        self.add(r, "b", len(data), size, data)
        r.kept, r.bytes = r.kept + len(data), r.bytes + size
        return lost

    def settle(self, run: str, token: str, number: int, data: list[object], size: int, outcome: str, delay: int) -> str:
        r = self.runs.get(run)
        if r is None:
            return ""
        if r.token == token and (r.state == "queued" or r.over):
            return r.state
        if not self.mine(r, token):
            return ""
        if data and number > r.batch:
            self.store(r, number, data, size)
        if r.stop is not None:
            self.finish(r, "stopped", r.stop)
        elif outcome in ENDED:
            self.finish(r, outcome, "why")
        elif outcome == "returned" and r.attempt - r.free >= r.tries:
            self.finish(r, "failed", "why")
        else:
            r.free += outcome == "uncounted"
            self.requeue(r, (self.now + delay) * 1000 if delay else r.created * 1000)
        return r.state

    def stop_all(self, key: str) -> int:
        runs = [*self.waits(key), *self.active(key)]
        count = 0
        for r in runs:
            self.judge(r)
            count += not r.over
            self.halt(r, "all")
        return count

    def renew(self, run: str, token: str, lease: int) -> int:
        r = self.runs.get(run)
        if r is None or not self.mine(r, token):
            return 0
        r.deadline, r.span = self.now + lease, lease
        return 2 if r.stop is not None else 1

    def move(self, ms: int) -> None:
        """Time passes, or is set back. What ended long ago is gone."""
        self.now += ms
        for run in [r.id for r in self.runs.values() if r.over and r.ended + self.retention < self.now]:
            del self.runs[run]

"""What can happen to the users of one shard, on a real server whose clock is moved, against the reference."""

from __future__ import annotations

from typing import Any

import redis
from buffer_reference import Entry, File, Reference, Turn, User
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.buffers.message import parse_messages
from holdfast.engine.payload import decode, encode
from support.model import CLOCK_KEY, MovedClock

BASE = "hf:{buffer.b.1}:"
DUE, STAT, DEAD = BASE + "due", BASE + "stat", BASE + "dead"
NAMES = ("u0", "u1", "u2")
CAPACITY, MOST_BYTES, TTL, TURNS, TURN_LIFE = 5, 500, 100_000, 3, 20_000
ATTEMPTS, BATCH = 2, 3
REPEATS_FOR = 50_000
"""Repeats are known for 60 s; less here, because the moved clock and the lives of keys differ by some ms."""
TRIGGERS = ((4, 0, 0), (3, 10_000, 0), (5, 0, 2_500), (5, 30_000, 0))

users = st.sampled_from(NAMES)
sizes = st.sampled_from([1, 40, 120])


LIVES = "test:lives"
WRITE_DOWN = f"""
local function call(what, ...)
  local args, now = {{...}}, tonumber(redis.call('GET', '{CLOCK_KEY}'))
  local before = tonumber(redis.call('HGET', '{LIVES}', args[1] or '') or 0)
  if what == 'PTTL' then
    local real = redis.call('PTTL', args[1])
    return real < 0 and real or before - now
  end
  if what == 'PEXPIRE' and args[3] == 'GT' then
    if redis.call('PTTL', args[1]) == -1 or before >= now + args[2] then return 0 end
    args[3] = nil
  end
  local answer = redis.call(what, unpack(args))
  if what == 'PEXPIRE' and answer == 1 then redis.call('HSET', '{LIVES}', args[1], now + args[2]) end
  if what == 'SET' then redis.call('HSET', '{LIVES}', args[1], now + args[4]) end
  return answer
end
"""
"""Until when each key lives by the moved clock: the real clock goes on while a test runs, and never twice the same."""


class KeysEndToo(MovedClock):
    """The moved clock, by which keys end as well."""

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if name == "_time" and text is not None:
            assert "local call = redis.call\n" in text
            text = text.replace("local call = redis.call\n", WRITE_DOWN)
        return text


class BufferMachine(RuleBasedStateMachine):
    """Three users, two or three workers, small bounds."""

    server: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.model = Reference(capacity=CAPACITY, most_bytes=MOST_BYTES, ttl=TTL, turns=TURNS)
        self.scripts = KeysEndToo()
        self.server.flushall()
        self.number = 0
        self.fence = 0
        self.tokens: list[tuple[str, str, int, int]] = []
        """User, token, batch and fence of every hand-out."""
        self.ops: list[tuple[str, list[Any], int]] = []
        """User, arguments and time of each append that was stored by a repeat, while its first request is late."""
        self.attached: list[tuple[User, Entry, str]] = []
        self.vanished = 0
        self.forgotten: set[str] = set()
        self._set_clock()

    # -- talking to the server -------------------------------------------------------------------------------

    def _set_clock(self) -> None:
        self.server.set(CLOCK_KEY, self.model.now, keepttl=False)

    def _call(self, name: str, keys: list[str], *args: Any) -> Any:
        script = self.scripts.get(name)
        try:
            return self.server.evalsha(script.sha.decode(), len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            self.server.script_load(script.source)
            return self.server.evalsha(script.sha.decode(), len(keys), *keys, *args)

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _user(self, name: str) -> User:
        return self.model.user(name)

    def _mine(self, name: str, script: str, *args: Any) -> Any:
        """A script that is about one user."""
        return self._call(script, [BASE + "u:" + name], name, BASE, *args)

    @initialize(triggers=st.sampled_from(TRIGGERS))
    def start(self, triggers: tuple[int, int, int]) -> None:
        self.configure(triggers)

    # -- in --------------------------------------------------------------------------------------------------

    def _append(self, script: str, name: str, payloads: list[bytes], names: list[tuple[str, int]]) -> None:
        u, op = self._user(name), self._next().to_bytes(8, "big")
        kind = b"\x01" if names else b"\x00"
        numbers = ((CAPACITY, 4), (MOST_BYTES, 4), (TTL, 5), (len(payloads), 2))
        limits = b"".join(number.to_bytes(size, "big") for number, size in numbers)
        args: list[Any] = [op, name, limits, *(kind + p for p in payloads)]
        entries = [
            Entry(op + at.to_bytes(2, "big"), self.model.now, 17 + len(p)) for at, p in enumerate(payloads)
        ]  # fmt: skip
        for file, ms in names:
            args += [0, file, ms]
            entries[0].files[file] = File(self.model.now + ms)
            self.attached.append((u, entries[0], file))
        expected = self.model.append(u, entries)
        reply = self._call(script, [BASE + "u:" + name], *args)
        assert reply == expected or (reply == expected[:3] and not any(expected[3:]))
        if script == "buffers/reappend":
            self.ops.append((name, args, self.model.now))

    @rule(name=users, size=sizes, first=st.booleans())
    def append(self, name: str, size: int, first: bool) -> None:
        self._append("buffers/append" if first else "buffers/reappend", name, [encode("x" * size, 1000)], [])

    @rule(name=users, some=st.lists(sizes, min_size=2, max_size=7), first=st.booleans())
    def extend(self, name: str, some: list[int], first: bool) -> None:
        bodies = [encode("x" * size, 1000) for size in some]
        self._append("buffers/append" if first else "buffers/reappend", name, bodies, [])

    @rule(name=users, deadlines=st.lists(st.sampled_from([400, 10_000, 40_000]), min_size=1, max_size=2))
    def append_with_attachments(self, name: str, deadlines: list[int]) -> None:
        names = [(f"file{at}", ms) for at, ms in enumerate(deadlines)]
        self._append("buffers/append", name, [encode("x", 1000)], names)

    @precondition(lambda self: self.ops)
    @rule(back=st.integers(0, 3), script=st.sampled_from(["buffers/append", "buffers/reappend"]))
    def late_append(self, back: int, script: str) -> None:
        """The first request of an append that was repeated comes late, or it is repeated once more."""
        name, args, at = self.ops[-1 - back % len(self.ops)]
        u = self._user(name)
        if self.model.now - at >= REPEATS_FOR or name in self.forgotten:
            return
        reply = self._call(script, [BASE + "u:" + name], *args)
        oldest = u.waiting[0].at if u.waiting else self.model.now
        assert reply == [b"replayed", len(u.waiting), self.model.now - oldest]

    @precondition(lambda self: self.attached)
    @rule(back=st.integers(0, 3), outcome=st.sampled_from([b"r" + encode("png", 100), b"r" + encode("gif", 100), b"f"]))
    def settle(self, back: int, outcome: bytes) -> None:
        u, entry, name = self.attached[-1 - back % len(self.attached)]
        expected = self.model.settle(self._user(u.name), entry, name, outcome)
        keys = [f"{BASE}a:{u.name}", f"{BASE}u:{u.name}"]
        assert self._call("buffers/settle", keys, u.name, BASE, entry.id, name, outcome, 1 << 30)[0] == expected

    @rule(name=users)
    def converse(self, name: str) -> None:
        u = self._user(name)
        turn = Turn(self._next().to_bytes(8, "big"), self.model.now, TURN_LIFE)
        keys = [f"{BASE}c:{name}", f"{BASE}u:{name}"]
        args = (name, BASE, TURNS, TURN_LIFE, TTL, turn.op, encode(["said", "answered"], 1000))
        assert self._call("buffers/converse", keys, *args) == self.model.converse(u, turn)
        again = self._call("buffers/reconverse", keys, *args)
        assert again == [b"replayed", len(u.turns) - u.in_flight_turns]

    # -- out -------------------------------------------------------------------------------------------------

    def _told(self, u: User, reply: list[Any], new: bool) -> None:
        """A batch as its holder hears of it."""
        assert reply[0] == b"taken"
        assert reply[1].decode() == u.name
        assert u.held
        if new:
            assert reply[3] > self.fence, "a fence did not rise"
            self.fence = u.held.fence = reply[3]
            u.held.id = u.held.id or reply[2]
            self.tokens.append((u.name, u.held.token, u.held.id, u.held.fence))
        numbers = [u.held.id, u.held.fence, u.held.attempt, u.held.deadline - self.model.now, len(u.waiting)]
        assert reply[2:7] == numbers
        assert [entry[:10] for entry in reply[8]] == [entry.id for entry in u.held.entries]
        assert [pair[11:19] for pair in reply[9]] == [turn.op for turn in u.turns[: u.held.turns]]
        messages, bad = parse_messages(reply[8], reply[10])
        files = [
            {name: decode(file.value[1:]) for name, file in entry.files.items() if file.value[:1] == b"r"}
            for entry in u.held.entries
        ]
        assert not bad
        assert [dict(message.attachments) for message in messages] == files

    @rule(name=users, lease=st.sampled_from([1_000, 30_000]), most=st.sampled_from([1, BATCH]), again=st.booleans())
    def take(self, name: str, lease: int, most: int, again: bool) -> None:
        u = self._user(name)
        token = u.held.token if again and u.held and u.held.token else f"t.{self._next()}"
        same = self.model.holds(u, token, 0)
        expected = self.model.take(u, token, lease, most, ATTEMPTS)
        reply = self._mine(name, "buffers/take", token, lease, most, ATTEMPTS)
        assert reply[0].decode() == expected
        if expected == "taken":
            self._told(u, reply, new=not same)
        elif expected == "busy":
            assert u.held
            assert reply[1] == u.held.deadline - self.model.now

    @rule(lease=st.sampled_from([1_000, 30_000]))
    def claim(self, lease: int) -> None:
        """The most overdue by the second, then the largest backlog; who is not due after all is put in its place."""
        m, token = self.model, f"t.{self._next()}"
        looked = [u for u in m.users.values() if 0 < u.due <= m.now]
        spent = [u for u in looked if u.held and u.held.deadline <= m.now and u.held.attempt >= ATTEMPTS]
        ready = [u for u in looked if m.is_due(u)]
        reply = self._call("buffers/claim", [DUE], BASE, token, lease, BATCH, ATTEMPTS, "worker.1234567890")
        taken = m.user(reply[1].decode()) if reply[0] == b"taken" else None
        if ready and not spent:
            first = min(u.due // 1000 for u in ready)
            rivals = [u for u in ready if u.due // 1000 == first]
            assert taken in rivals, "not the most overdue"
            assert len(taken.waiting) == max(len(u.waiting) for u in rivals), "not the largest backlog"
        for u in spent:
            assert u.held
            if self.server.exists(f"{BASE}x:{u.held.id}"):
                m.bury(u)
                m.touch(u)
            else:
                assert taken, "a batch that was tried too often was left there"
                assert taken is not u, "a batch that was tried too often was handed out"
        self._put_in_place(looked, taken)
        if taken is None:
            assert not any(m.is_due(u) for u in m.users.values()), "somebody is due and was not found"
            return
        assert m.is_due(taken)
        assert m.lease_out(taken, token, lease, BATCH)
        self._told(taken, reply, new=True)
        found = self._call("buffers/find", [DUE], BASE, token, lease)
        self._told(taken, found, new=False)

    def _put_in_place(self, looked: list[User], taken: User | None) -> None:
        """Whom the claim looked at on its way lost what is too old and got a new time; the others are untouched."""
        scores = {name.decode(): int(score) for name, score in self.server.zrange(DUE, 0, -1, withscores=True)}
        for u in looked:
            if u is taken:
                continue
            was = u.due
            self._catch_up(u, max(0, self.server.llen(BASE + "u:" + u.name) - 1), scores.get(u.name, 0))
            new = self.model.look_at(u)
            assert scores.get(u.name, 0) in ((was, new) if taken else (new,))
            if scores.get(u.name, 0) == new and (u.held or len(self.model.visible(u)) == len(u.waiting)):
                self.model.touch(u)

    def _hold(self, back: int) -> tuple[User, str, int, int]:
        name, token, batch, fence = self.tokens[-1 - back % len(self.tokens)]
        return self._user(name), token, batch, fence

    @precondition(lambda self: self.tokens)
    @rule(back=st.integers(0, 4), part=st.sampled_from([0, 0, 1, 2]))
    def ack(self, back: int, part: int) -> None:
        u, token, batch, fence = self._hold(back)
        ids = [entry.id for entry in u.held.entries[-part:]] if part and u.held and u.held.id == batch else []
        gone = self.model.acked.get(fence)
        expected = self.model.ack(u, token, fence, ids)
        reply = self._mine(u.name, "buffers/ack", token, fence, *ids)
        if gone is not None and (self.model.now - gone > REPEATS_FOR or u.name in self.forgotten):
            assert reply in ([b"acked", 0, 0], [b"not_held"])
        else:
            assert reply == expected

    @precondition(lambda self: self.tokens)
    @rule(back=st.integers(0, 4), delay=st.sampled_from([0, 5_000, 200_000]), attempts=st.sampled_from([0, ATTEMPTS]))
    def nack(self, back: int, delay: int, attempts: int) -> None:
        u, token, batch, _ = self._hold(back)
        expected = self.model.nack(u, token, batch, delay, attempts)
        assert self._mine(u.name, "buffers/nack", token, batch, delay, attempts, "test") == expected

    @precondition(lambda self: self.tokens)
    @rule(back=st.integers(0, 4), lease=st.sampled_from([1_000, 30_000]))
    def renew(self, back: int, lease: int) -> None:
        u, token, *_ = self._hold(back)
        expected = self.model.renew(u, token, lease)
        assert self._call("buffers/renew", [DUE, BASE + "u:" + u.name], token, lease)[2] == expected

    @rule(name=users, most=st.sampled_from([1, 3]))
    def pop(self, name: str, most: int) -> None:
        expected = self.model.pop(self._user(name), most)
        reply = self._mine(name, "buffers/pop", most)
        assert [entry[:10] for entry in reply[2]] == [entry.id for entry in expected]

    @rule(name=users)
    def clear(self, name: str) -> None:
        assert self._mine(name, "buffers/clear", "w")[1] == self.model.clear(self._user(name))

    @rule(name=users, really=st.integers(0, 3))
    def forget(self, name: str, really: int) -> None:
        if really:  # rarely, or nothing gets old
            return
        self.forgotten.add(name)
        expected = self.model.forget(self._user(name))
        reply = self._mine(name, "buffers/clear", "a")
        assert reply[1] == expected
        assert reply[2] > self.fence
        self.fence = reply[2]

    @rule(name=users)
    def force(self, name: str) -> None:
        assert self._mine(name, "buffers/flush") == self.model.flush(self._user(name))

    @precondition(lambda self: self.model.letters)
    @rule(back=st.integers(0, 2), how=st.sampled_from("rrp"))
    def dead_letter(self, back: int, how: str) -> None:
        known = sorted(self.model.letters)
        name = known[back % len(known)]
        expected = self.model.replay(name) if how == "r" else self.model.purge(name)
        assert self._call("buffers/revive", [DEAD], BASE, name, how) == expected

    @rule(triggers=st.sampled_from(TRIGGERS))
    def configure(self, triggers: tuple[int, int, int]) -> None:
        changed = self.model.conf != triggers
        reply = self._call("buffers/configure", [STAT, DUE], BASE, " ".join(map(str, triggers)), 0, 1000)
        assert reply[0] == (b"changed" if changed else b"same")
        self.model.conf = triggers
        for u in self.model.users.values():
            if changed and u.known:
                u.triggers = triggers
                self.model.touch(u)

    # -- time ------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 400, 1_000, 2_500, 10_000, 31_000, 65_000, 130_000]))
    def time_passes(self, ms: int) -> None:
        self.model.now += ms
        self._set_clock()
        keys = sorted(self.server.scan_iter(match="hf:*", count=1000), key=lambda key: (b":u:" not in key, key))
        for key in keys:  # records first
            assert self.server.pttl(key) > 0, f"{key} lives for ever"
            if int(self.server.hget(LIVES, key)) <= self.model.now:
                self._ends(key.decode())
                self.server.delete(key)

    def _ends(self, key: str) -> None:
        """The life of a key is over: nobody may need it any more."""
        kind, _, name = key.removeprefix(BASE).partition(":")
        u = self._user(name) if name else None
        if kind == "u":
            assert not u.held or u.held.deadline + u.ttl <= self.model.now, f"a batch in flight vanished: {u}"
            assert not self.model.visible(u), f"messages vanished before their time: {u}"
            self.vanished += len(u.waiting) + (len(u.held.entries) if u.held else 0)
            u.waiting, u.held = [], None  # its turns are as old as it and are pruned when somebody looks
            self.model.touch(u)
        elif kind == "c":
            assert not u.in_flight_turns, f"the conversation of a batch in flight vanished: {u}"
            seen = self.model.visible(u)
            for turn in u.turns:
                end = turn.at + turn.life
                needed = end > self.model.now or (seen and seen[0].at <= end)
                assert not needed, f"a turn vanished early: {turn} {u}"
            u.turns = []
        elif kind == "a":
            held = u.held.entries if u.held else []
            assert not any(entry.files for entry in [*self.model.visible(u), *held]), f"attachments vanished: {u}"
        else:
            assert kind in ("g", "r", "idle"), key

    # -- what must always be so ------------------------------------------------------------------------------

    @invariant()
    def the_server_agrees_with_the_model(self) -> None:
        look = self.scripts.get("buffers/look")
        pipe = self.server.pipeline(transaction=False)
        pipe.script_load(look.source)
        for name in NAMES:
            pipe.evalsha(look.sha.decode(), 2, f"{BASE}u:{name}", f"{BASE}c:{name}", 100)
            pipe.lrange(f"{BASE}u:{name}", 1, -1)
            pipe.lrange(f"{BASE}c:{name}", 0, -1)
        pipe.zrange(DUE, 0, -1, withscores=True)
        pipe.hgetall(STAT)
        pipe.zrange(DEAD, 0, -1)
        _, *parts, due, stat, dead = pipe.execute()
        scores = {name.decode(): int(score) for name, score in due if name != b"!"}
        for at, name in enumerate(NAMES):
            self._catch_up(self._user(name), len(parts[3 * at + 1]), scores.get(name, 0))
            self._same_user(self._user(name), *parts[3 * at : 3 * at + 3])
        self._same_index(scores)
        self._same_counts({name.decode(): value for name, value in stat.items()})
        assert {int(name) for name in dead} == set(self.model.letters)

    def _catch_up(self, u: User, length: int, score: int) -> None:
        """When exactly the server removes what is too old is its own business, as long as it is counted."""
        if length < len(u.waiting) + (len(u.held.entries) if u.held else 0):
            self.model.expire(u)
            if not u.known or score == self.model.look_at(u):
                self.model.touch(u)

    def _same_user(self, u: User, look: list[Any], entries: list[bytes], pairs: list[bytes]) -> None:
        held = u.held.entries if u.held else []
        assert [entry[:10] for entry in entries] == [entry.id for entry in [*held, *u.waiting]]
        assert [pair[11:19] for pair in pairs] == [turn.op for turn in u.turns]
        seen = self.model.visible(u)
        assert [entry[:10] for entry in look[11]] == [entry.id for entry in seen]
        age = self.model.now - seen[0].at if seen else -1
        assert look[2:6] == [len(seen), sum(entry.size for entry in seen), age, len(held)]
        if u.held:
            live = u.held.deadline > self.model.now
            numbers = [u.held.attempt, max(0, u.held.deadline - self.model.now), u.held.fence]
            assert look[6:9] == numbers or u.held.fence == 0
            assert look[9] == int(live and u.held.token != "")
        if u.held is None:
            assert len(seen) <= CAPACITY

    def _same_index(self, scores: dict[str, int]) -> None:
        """Whoever has something is in the index, at the right time, and nobody else but those whose key vanished."""
        for u in self.model.users.values():
            if u.known:
                assert scores.get(u.name) == u.due, f"{u.name} is not in its place: {scores} {u}"
                assert u.due <= self.model.now or not self.model.is_due(u), f"{u.name} is due and not looked at: {u}"
            elif u.name in scores:
                assert self.vanished
                assert not self.server.exists(BASE + "u:" + u.name)

    def _same_counts(self, stat: dict[str, bytes]) -> None:
        counts = {name: int(value) for name, value in stat.items() if not name.startswith("conf")}
        counts.pop("vanished", None)
        assert counts == {name: value for name, value in self.model.counts.items() if value}
        ended = sum(
            counts.get(name, 0)
            for name in ("absorbed", "popped", "cleared", "forgotten", "purged", "dropped.age", "dropped.capacity",
                         "dropped.bytes")
        )  # fmt: skip
        here = sum(len(u.waiting) + (len(u.held.entries) if u.held else 0) for u in self.model.users.values())
        dead = sum(len(letter.entries) for letter in self.model.letters.values())
        assert ended + here + dead + self.vanished == self.model.appended

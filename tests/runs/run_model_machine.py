"""What can happen to the runs of one collection, on a real server whose clock is moved, against the reference."""

from __future__ import annotations

from collections import Counter
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from run_model_audit import GUARD, WAITS, View
from run_model_reference import Reference, Run

from holdfast.engine.payload import encode
from holdfast.engine.scripts import Scripts
from holdfast.runs.record import pack_events
from holdfast.runs.spec import ENDED, STATES
from support.model import CLOCK_KEY

BASE = "hf:{runs.agent}:"
RUNS = tuple(f"r{number}" for number in range(6))
KEYS = ("", "k0", "k1")
WAITING, QUEUED, RETENTION, EVENTS, BYTES = 2, 6, 60_000, 12, 2_000
LIVES = "test:lives"
MOVED = f"""
local call = function(what, ...)
  local answer = redis.call(what, ...)
  if what == 'PEXPIRE' and answer == 1 then
    local key, ms = ...
    redis.call('HSET', '{LIVES}', key, redis.call('GET', '{CLOCK_KEY}') + ms)
  end
  return answer
end
local set_ms = tonumber(redis.call('GET', '{CLOCK_KEY}'))
local time = {{math.floor(set_ms / 1000), (set_ms % 1000) * 1000}}
"""
"""Until when each key lives by the moved clock: it ends by that one, too."""

runs = st.sampled_from(RUNS)
keys = st.sampled_from(KEYS)
policies = st.sampled_from(["reject", "queue", "queue", "replace", "join"])
leases = st.sampled_from([1_000, 10_000, 30_000])
owners = st.sampled_from(["o0", "o1"])


class KeysEndToo(Scripts):
    """The real scripts, with the server's TIME replaced by a key that the test sets, to the ms."""

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if name == "_time" and text is not None:
            for line in ("local call = redis.call\n", "local time = call('TIME')\n"):
                assert line in text
                text = text.replace(line, MOVED if "redis" in line else "")
        return text


class RunMachine(RuleBasedStateMachine):
    """Six run ids, two keys, two owners, small bounds."""

    server: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.scripts = self.make_scripts()
        self.server.flushall()
        self.model = self.make_model(1)
        self.number = 0
        self.fence = 0
        self.tokens: list[tuple[str, str]] = []
        """Run and token of every hand-out."""
        self.writes: Counter[str] = Counter()
        self.set_back = False
        self._set_clock()

    def make_scripts(self) -> Scripts:
        return KeysEndToo()

    @staticmethod
    def make_model(slots: int, waiting: int = WAITING) -> Reference:
        return Reference(
            slots=slots, waiting=waiting, queued=QUEUED, retention=RETENTION, events=EVENTS, size=BYTES
        )  # fmt: skip

    @initialize(slots=st.sampled_from([1, 1, 2]), waiting=st.sampled_from([WAITING, WAITING, 0]))
    def begin(self, slots: int, waiting: int) -> None:
        self.model = self.make_model(slots, waiting)

    # -- talking to the server ---------------------------------------------------------------------------------

    def _set_clock(self) -> None:
        self.server.set(CLOCK_KEY, self.model.now)

    def _call(self, name: str, keys: list[str], *args: Any) -> Any:
        script = self.scripts.get(name)
        try:
            return self.server.evalsha(script.sha.decode(), len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            self.server.script_load(script.source)
            return self.server.evalsha(script.sha.decode(), len(keys), *keys, *args)

    def _about(self, name: str, run: str, *args: Any) -> Any:
        return self._call(name, [f"{BASE}r:{run}"], BASE, run, *args)

    @property
    def _limits(self) -> bytes:
        numbers = ((self.model.slots, 2), (RETENTION, 5), (EVENTS, 4), (BYTES, 5))
        return b"".join(number.to_bytes(size, "big") for number, size in numbers)

    def _token(self) -> str:
        self.number += 1
        return f"client0123456789.{self.number}"

    def _handed(self, r: Run, one: list[Any], again: bool = False) -> None:
        """What a new owner is told is what the reference says, and its fence is higher than every one before."""
        assert one[:4] == [r.id.encode(), r.fence, r.attempt, r.deadline - self.model.now]
        assert (one[4].decode(), one[7], one[9]) == (r.key, r.saved, int(r.stop is not None))
        assert one[8] == (
            [part for name, value in r.steps.items() for part in (name.encode(), value)] if r.attempt > 1 else []
        )
        if not again:
            assert one[1] > self.fence, "a fence did not rise"
            self.fence = one[1]
            self.tokens.append((r.id, r.token))

    # -- in ----------------------------------------------------------------------------------------------------

    @rule(run=runs, key=keys, data=st.sampled_from([0, 0, 0, 1]), policy=policies)
    def start(self, run: str, key: str, data: int, policy: str) -> None:
        digest = f"{key} {data}"
        word, other = self.model.start(run, key, data, policy)
        reply = self._about(
            "runs/start", run, digest, self._limits, key, policy, "agent", b"input", self.model.waiting, QUEUED, 0
        )  # fmt: skip
        assert reply[0].decode() == word
        if other:
            assert reply[2].decode() == other

    @rule(run=runs, key=keys, owner=owners, lease=leases, most=st.sampled_from([1, 3]), again=st.booleans())
    def claim(self, run: str, key: str, owner: str, lease: int, most: int, again: bool) -> None:
        known = self.model.runs.get(run)
        token = known.token if again and known and known.token else self._token()
        same = self.model.mine(known, token)
        word, other = self.model.claim(run, key, token, owner, lease, most)
        digest = f"{key} 0"
        reply = self._about(
            "runs/claim", run, digest, self._limits, key, "agent", b"input", token, owner, lease, most, 0
        )  # fmt: skip
        assert reply[0].decode() == word
        if word == "taken":
            self._handed(self.model.runs[run], reply[2], same)
        else:
            assert reply[2].decode() == other

    @rule(count=st.integers(1, 3), owner=owners, lease=leases, most=st.sampled_from([1, 2, 3]))
    def take(self, count: int, owner: str, lease: int, most: int) -> None:
        tokens = [self._token() for _ in range(count)]
        taken = self.model.take(tokens, owner, lease, most)
        reply = self._call("runs/take", [BASE + "due"], BASE, "worker", owner, lease, most, 10**11, *tokens)
        assert [one[0].decode() for one in reply[4:]] == [r.id for r in taken], "not those that waited longest"
        for r, one in zip(taken, reply[4:], strict=True):
            self._handed(r, one)
        nexts = [at - self.model.now for at, _ in self.model.held()[:1]]
        nexts += [-(-(r.place - self.model.now * 1000) // 1000) for r in self.model.due()[:1]]
        assert reply[1] == max(0, min(nexts, default=-1)) if nexts else reply[1] == -1
        found = self._call("runs/find", [f"{BASE}o:{owner}"], BASE, *tokens)
        assert {one[0].decode() for one in found[4:]} == {r.id for r in taken}

    # -- own ---------------------------------------------------------------------------------------------------

    def _hold(self, back: int) -> tuple[str, str]:
        return self.tokens[-1 - back % len(self.tokens)]

    def _batch(self, token: str, count: int, again: bool) -> tuple[int, list[object], bytes]:
        self.writes[token] += 0 if again and self.writes[token] else 1
        data: list[object] = [f"{token}/{self.writes[token]}/{at}" for at in range(count)]
        return self.writes[token], data, pack_events([encode(one, 1000) for one in data]) if data else b""

    @precondition(lambda self: self.tokens)
    @rule(
        back=st.integers(0, 4), count=st.integers(0, 4), what=st.sampled_from(["", "", "c", "s"]), again=st.booleans()
    )
    def write(self, back: int, count: int, what: str, again: bool) -> None:
        """With the number of the last one: its reply was lost."""
        run, token = self._hold(back)
        number, data, blob = self._batch(token, count, again)
        value = f"saved {self.number}".encode()
        expected = self.model.write(run, token, number, data, len(blob), what, value)
        assert self._about("runs/write", run, token, number, blob, what, value, "pay") == expected

    @precondition(lambda self: self.tokens)
    @rule(
        back=st.integers(0, 4), count=st.integers(0, 2), delay=st.sampled_from([0, 0, 5_000]), twice=st.booleans(),
        outcome=st.sampled_from(["completed", "failed", "stopped", "returned", "uncounted"]),
    )  # fmt: skip
    def settle(self, back: int, count: int, delay: int, twice: bool, outcome: str) -> None:
        run, token = self._hold(back)
        number, data, blob = self._batch(token, count, False)
        for _ in range(1 + twice):
            state = self.model.settle(run, token, number, data, len(blob), outcome, delay)
            reply = self._about("runs/settle", run, token, number, blob, outcome, "why", b"", delay)
            assert reply == ([b"settled", state.encode()] if state else [b"not_held"])

    @precondition(lambda self: self.tokens)
    @rule(back=st.integers(0, 4), lease=leases)
    def renew(self, back: int, lease: int) -> None:
        run, token = self._hold(back)
        expected = self.model.renew(run, token, lease)
        assert self._call("runs/renew", [BASE + "held", f"{BASE}r:{run}"], token, lease)[2] == expected
        assert self._call("runs/flags", [f"{BASE}r:{run}"], BASE, token) == [b"found", expected]

    # -- stop and look -----------------------------------------------------------------------------------------

    @rule(run=runs, key=st.sampled_from(["", "", "", *KEYS[1:]]))
    def stop(self, run: str, key: str = "") -> None:
        """One, or rarely all of a key."""
        if key:
            self.stop_all(key)
            return
        r = self.model.runs.get(run)
        if r:
            self.model.halt(r, "enough")
        assert self._about("runs/stop", run, "enough")[0] == (b"found" if r else b"missing")
        if not r:  # the wish is kept for a start that is on its way; here there is none
            assert 0 < self.server.pttl(f"{BASE}r:{run}") <= 60_000
            assert self.server.delete(f"{BASE}r:{run}") == 1

    def stop_all(self, key: str) -> None:
        count = self.model.stop_all(key)
        assert self._call("runs/stop_all", [f"{BASE}a:{key}", f"{BASE}w:{key}"], BASE, "all") == [b"found", count]

    @rule(how=st.sampled_from(["look", "read", "listed", "sweep", "orphans"]), run=runs, at=st.integers(0, 3))
    def somebody_looks(self, how: str, run: str, at: int) -> None:
        getattr(self, how)(*{"look": (run,), "read": (run, at)}.get(how, ()))

    def look(self, run: str) -> None:
        r = self.model.runs.get(run)
        if r:
            self.model.judge(r)
        assert self._about("runs/look", run)[0] == (b"found" if r else b"missing")

    def read(self, run: str, at: int) -> None:
        """From the start or from the middle of what is there."""
        r = self.model.runs.get(run)
        if r is None:
            return
        self.model.judge(r)
        after = r.log[at % len(r.log)].at if r.log and at else (0, 0)
        reply = self._call(
            "runs/events", [f"{BASE}r:{run}", f"{BASE}e:{run}"], BASE, run, f"{after[0]}-{after[1]}", 100
        )
        ids = [f"{entry.at[0]}-{entry.at[1]}".encode() for entry in r.log if entry.at > after]
        assert [entry[0] for entry in reply[5]] == ids
        assert reply[1:5] == [r.state.encode(), b"%d-%d" % r.last, b"%d-%d" % r.gone, r.dropped]
        assert reply[6:7] == ([r.reason.encode()] if r.over else [])

    def listed(self) -> None:
        """Each run once, whatever had its id before."""
        names = [f"{BASE}is:{state}" for state in STATES]
        answer = self._call("runs/list", names, BASE, 100, 1, 2, 3, 4, 5, 6)
        assert sorted(run.decode() for run in answer[2::2]) == sorted(self.model.runs)

    def sweep(self) -> None:
        expected = self.model.sweep()
        assert self._call("runs/sweep", [BASE + "held"], BASE, 1 << 50) == [b"swept", expected]

    @rule(ms=st.sampled_from([1, 500, 1_001, 5_000, 10_001, 31_000, 61_000, -400, -20_000]))
    def time_passes(self, ms: int) -> None:
        self.model.move(ms)
        self.set_back |= ms < 0
        self._set_clock()
        for key in list(self.server.scan_iter(match="hf:*", count=1000)):
            assert self.server.pttl(key) > 0, f"{key} lives for ever"
            if int(self.server.hget(LIVES, key) or 1 << 60) < self.model.now:
                self.server.delete(key)

    def orphans(self) -> None:
        """Two hours later: far away for everything else, so only where one waits for its owner's return."""
        if any(r.state == "queued" and r.guard for r in self.model.runs.values()):
            self.time_passes(7_200_001)
            self.sweep()

    # -- what must always be so --------------------------------------------------------------------------------

    @invariant()
    def the_server_agrees_with_the_model(self) -> None:
        view = View(self.server, BASE)
        view.check(self.set_back)
        assert set(view.runs) == set(self.model.runs)
        for r in self.model.runs.values():
            self._same_run(r, view)
        due = [(name, int(score)) for name, score in view.zsets.get("due", {}).items()]
        assert due == [(r.id, r.place) for r in self.model.due()]
        self._same_counts(view)

    def _same_run(self, r: Run, view: View) -> None:
        found = view.runs[r.id]
        n = found.number
        assert (found.state, found.key, found.token) == (r.state, r.key, r.token)
        assert (found.has(WAITS), found.has(GUARD), n["stop_at"] > 0) == (r.waits, r.guard, r.stop is not None)
        names = ("attempt", "tries", "free", "fence", "deadline", "span", "kept", "bytes", "dropped", "batch", "ended")
        assert {name: n[name] for name in names} == {name: getattr(r, name) for name in names}
        assert ((n["last_ms"], n["last_seq"]), (n["gone_ms"], n["gone_seq"])) == (r.last, r.gone)
        assert (n["saved_ms"], n["saved_seq"]) == r.saved_at
        assert found.fields.get(b"c") == r.saved
        if r.over:
            assert found.fields[b"w"].decode() == r.reason
        if r.state in ("running", "stopping"):
            assert found.fields[b"o"].decode() == r.owner
        assert view.data(r.id) == r.events
        assert view.steps.get(r.id, {}) == {name.encode(): value for name, value in r.steps.items()}

    def _same_counts(self, view: View) -> None:
        """Per state, key and owner, as the counts are asked for."""
        known, names, right = list(self.model.runs.values()), [], []
        for state in STATES:
            names.append((f"{BASE}is:{state}", int(state in ENDED)))
            right.append(len([r for r in known if r.state == state]))
        for key in KEYS[1:]:
            names += [(f"{BASE}a:{key}", 0), (f"{BASE}w:{key}", 0), (f"{BASE}h:{key}", 1)]
            mine = [r for r in known if r.key == key]
            right += [len(self.model.active(key)), len(self.model.waits(key)), len([r for r in mine if r.over])]
        for owner in ("o0", "o1"):
            names.append((f"{BASE}o:{owner}", 0))
            right.append(len([r for r in known if r.owner == owner and r.state in ("running", "stopping")]))
        reply = self._call("runs/totals", [name for name, _ in names], RETENTION, *(over for _, over in names))
        for (name, over), found, count in zip(names, reply[1:], right, strict=True):
            # Counted by the time of their end, in lists that end by the last one's: not exact after a clock set back.
            assert found == count or (over and self.set_back), f"{found} in {name}, not {count}"

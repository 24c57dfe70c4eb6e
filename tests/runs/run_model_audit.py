"""What must be so on the server after every step, whoever did what: the indexes agree with the records, the records
with the events, the end of a run comes after all of them, no key is left over, every key has a life."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, NamedTuple

import redis

from holdfast.engine.scripts import Scripts
from holdfast.runs.record import _RECORD, Event, parse_entries
from holdfast.runs.spec import ENDED, STATES

_FIELDS = re.search(r"\n  (version, state,[^=]*) = unpack_\(META", Scripts().read("runs", "_record") or "")
assert _FIELDS
NUMBERS = tuple(name.strip() for name in _FIELDS[1].split(","))
"""What the numbers of a record are called, from the script that reads them."""
GUARD, WAITS, STEPS = 2, 8, 16
OWNED = ("running", "stopping")


class Record(NamedTuple):
    """A run as the server has it."""

    id: str
    number: dict[str, int]
    token: str
    fields: dict[bytes, bytes]

    @property
    def state(self) -> str:
        return STATES[self.number["state"] - 1]

    @property
    def key(self) -> str:
        return self.fields[b"k"].decode()

    @property
    def over(self) -> bool:
        return self.state in ENDED

    def has(self, flag: int) -> bool:
        return bool(self.number["flags"] & flag)


class View:
    """Everything that the server has of one collection, read at once. `check` holds it against itself."""

    def __init__(self, server: redis.Redis, base: str) -> None:
        self.base, self.set_back = base, False
        names = sorted(name.decode() for name in server.scan_iter(match=base.replace("{", "\\{") + "*", count=1000))
        pipe = server.pipeline(transaction=True)
        readers = {"r": pipe.hgetall, "s": pipe.hgetall, "e": pipe.xrange}
        for name in names:
            kind = name.removeprefix(base).partition(":")[0]
            readers[kind](name) if kind in readers else pipe.zrange(name, 0, -1, withscores=True)
            pipe.pttl(name)
        answers = pipe.execute()
        self.lives = dict(zip(names, answers[1::2], strict=True))
        self.runs: dict[str, Record] = {}
        self.steps: dict[str, dict[bytes, bytes]] = {}
        self.streams: dict[str, list[Any]] = {}
        self.zsets: dict[str, dict[str, float]] = defaultdict(dict)
        for name, value in zip(names, answers[0::2], strict=True):
            if value:
                self._put(name.removeprefix(base), value)

    def _put(self, name: str, value: Any) -> None:
        kind, _, rest = name.partition(":")
        if kind == "r":
            meta = value[b"m"]
            numbers = dict(zip(NUMBERS, _RECORD.unpack_from(meta), strict=True))
            self.runs[rest] = Record(rest, numbers, meta[_RECORD.size :].decode(), value)
        elif kind == "s":
            self.steps[rest] = value
        elif kind == "e":
            self.streams[rest] = value
        else:
            self.zsets[name] = {member.decode(): score for member, score in value}

    def events(self, run: str) -> list[Event]:
        raw = [
            [entry, [part for pair in fields.items() for part in pair]] for entry, fields in self.streams.get(run, [])
        ]
        return parse_entries(raw, (0, 0))

    def data(self, run: str) -> list[Any]:
        """What was emitted and is stored."""
        return [event.data for event in self.events(run) if event.kind == "data"]

    def owned(self, client: str = "") -> list[Record]:
        return [r for r in self.runs.values() if r.state in OWNED and r.token.startswith(client)]

    # -- what must be so ---------------------------------------------------------------------------------------

    def check(self, set_back: bool = False) -> None:
        """`set_back`: the clock was, so the list of a key's ended runs may have ended before the oldest of them."""
        self.set_back = set_back
        problems = [*self._states(), *self._queues(), *self._keys(), *self._owners(), *self._fences(), *self._lives()]
        for run in self.runs.values():
            problems += self._log(run)
        assert not problems, "; ".join(problems)

    def _same(self, name: str, right: set[str], may: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
        found = set(self.zsets.get(name, {})) - {"!"}
        if right <= found <= right | may:
            return []
        return [f"{name} has {sorted(found)}, and should have {sorted(right)}"]

    def _ids(self, wanted: Any) -> set[str]:
        return {run.id for run in self.runs.values() if wanted(run)}

    def _states(self) -> list[str]:
        problems = []
        for state in STATES:
            # One whose retention is over leaves its index when somebody lists it or ends the next one.
            gone = set(self.zsets.get(f"is:{state}", {})) if state in ENDED else set()
            problems += self._same(f"is:{state}", self._ids(lambda run, s=state: run.state == s), gone)
        return problems

    def _queues(self) -> list[str]:
        queued = self._ids(lambda run: run.state == "queued" and not run.has(WAITS) and not run.has(GUARD))
        orphans = self._ids(lambda run: run.state == "queued" and run.has(GUARD))
        owned = self._ids(lambda run: run.state in OWNED)
        problems = [*self._same("due", queued), *self._same("orphans", orphans), *self._same("held", owned)]
        held = self.zsets.get("held", {})
        for run in owned & set(held):
            if held[run] != self.runs[run].number["deadline"]:
                problems.append(f"held says {held[run]} of {run}, its record {self.runs[run].number['deadline']}")
        return problems

    def _keys(self) -> list[str]:
        problems = []
        named = {name.partition(":")[2] for name in self.zsets if name[:2] in ("a:", "w:", "h:")}
        for key in named | {run.key for run in self.runs.values() if run.key}:
            mine = [run for run in self.runs.values() if run.key == key]
            going = [run for run in mine if not run.over]
            problems += self._same(f"a:{key}", {run.id for run in going if not run.has(WAITS)})
            problems += self._same(f"w:{key}", {run.id for run in going if run.has(WAITS)})
            gone = set(self.zsets.get(f"h:{key}", {}))
            if not self.set_back:
                problems += self._same(f"h:{key}", {run.id for run in mine if run.over}, gone)
            active = len([run for run in going if not run.has(WAITS)])
            most = max((run.number["slots"] for run in mine), default=1)
            if active > most:
                problems.append(f"{active} runs of {key} have one of {most} slots")
            if active < min((run.number["slots"] for run in going), default=0) and active < len(going):
                problems.append(f"a run of {key} waits though a slot is free")
        return problems

    def _owners(self) -> list[str]:
        problems = []
        owners: dict[str, set[str]] = defaultdict(set)
        for run in self.runs.values():
            if run.state in OWNED:
                owners[run.fields[b"o"].decode()].add(run.id)
        for name in {name[2:] for name in self.zsets if name.startswith("o:")} | set(owners):
            problems += self._same(f"o:{name}", owners[name])
        return problems

    def _fences(self) -> list[str]:
        last = self.zsets.get("held", {}).get("!", 0)
        fences = [run.number["fence"] for run in self.runs.values() if run.number["fence"]]
        problems = [f"the fence {fence} is above the last one" for fence in fences if fence > last]
        return problems + (["a fence was given twice"] if len(fences) != len(set(fences)) else [])

    def _lives(self) -> list[str]:
        problems = [f"{name} lives for ever" for name, life in self.lives.items() if life == -1]
        known = set(self.runs)
        problems += [f"the steps of {run} are left over" for run in self.steps if run not in known]
        problems += [f"the events of {run} are left over" for run in self.streams if run not in known]
        kinds = {name.partition(":")[0] for name in self.zsets}
        unknown = kinds - {"due", "held", "orphans", "idle", "is", "a", "w", "h", "o", "arch"}
        return problems + ([f"unknown keys: {unknown}"] if unknown else [])

    def _log(self, run: Record) -> list[str]:
        """The record and the stream tell the same story."""
        n, events, problems = run.number, self.events(run.id), []
        ids = [tuple(map(int, event.id.split("-"))) for event in events]
        if ids != sorted(set(ids)):
            problems.append(f"the events of {run.id} are not in order: {ids}")
        if len(events) != n["kept"]:
            problems.append(f"{run.id} says that it keeps {n['kept']} events, and has {len(events)}")
        last, newest = (n["last_ms"], n["last_seq"]), ids[-1] if ids else (n["gone_ms"], n["gone_seq"])
        if run.over and not last > newest:
            problems.append(f"{run.id} is {run.state}, and the id of its end {last} is not above {newest}")
        if not run.over and last != newest:
            problems.append(f"{run.id} says its last event is {last}, and it is {newest}")
        if run.over != (n["ended"] > 0) or run.over != (b"w" in run.fields):
            problems.append(f"{run.id} is {run.state}, with {n['ended']} and {run.fields}")
        if (run.state in OWNED) != (n["deadline"] > 0):
            problems.append(f"{run.id} is {run.state} with the deadline {n['deadline']}")
        if n["stop_at"] and run.state not in ("stopping", "stopped"):
            problems.append(f"{run.id} should stop and is {run.state}")
        if run.over and run.id in self.steps:
            problems.append(f"{run.id} has ended and keeps its steps")
        return problems

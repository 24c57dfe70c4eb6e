"""Random turns, caps and budgets against the plainest Python that trims by the same rule, on a real server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Draft
from holdfast.sessions.entry import encode
from holdfast.sync import Holdfast
from support.depth import tries

CALLS = ("c0", "c1", "c2", "c3")
"""So few that ids are used again, as some providers do in every turn."""


@dataclass
class Held:
    draft: Draft
    size: int
    unit: Any = None


@dataclass
class Model:
    """What a session is: a list. A unit is a call with all its results; units go as a whole, the oldest first."""

    entries: int
    bytes: int
    tokens: int
    held: list[Held] = field(default_factory=list)

    def save(self, drafts: list[Draft]) -> list[bool]:
        new = []
        for draft in drafts:
            one = Held(draft, len(encode(draft, 10**9, count_tokens)) + 17)
            new.append(one)
            maker = next((h for h in reversed(self.held) if draft.tool_call_id in h.draft.tool_calls), None)
            if draft.tool_call_id is not None and maker is None:
                continue
            one.unit = one if maker is None else maker.unit
            self.held.append(one)
        self._trim()
        return [any(one is h for h in self.held) for one in new]

    def over(self, held: list[Held], *, soft: bool = True) -> bool:
        return (
            len(held) > self.entries
            or sum(h.size for h in held) > self.bytes
            or (soft and bool(self.tokens) and sum(count_tokens(h.draft.message()) for h in held) > self.tokens)
        )

    def _trim(self) -> None:
        if not self.held or not self.over(self.held):
            return
        newest = self.held[-1].unit
        if self.over([h for h in self.held if h.unit is newest], soft=False):
            self._drop(newest)
        for one in list(self.held):
            if self.over(self.held) and one.unit is not newest and any(one is h for h in self.held):
                self._drop(one.unit)

    def _drop(self, unit: Held) -> None:
        self.held = [h for h in self.held if h.unit is not unit]


def count_tokens(message: dict[str, Any]) -> int:
    return message["content"][0]


@st.composite
def drafts(draw: st.DrawFn, cap: int) -> Draft:
    content = [draw(st.integers(0, 12)), "x" * draw(st.sampled_from([0, 0, 10, 100]))]
    kind = draw(st.sampled_from(["say", "call", "call", "result", "result", "result", "chain"]))
    makes = st.lists(st.sampled_from(CALLS), min_size=1, max_size=max(1, min(3, cap - 1)), unique=True)
    if cap == 1 and kind in ("call", "chain"):
        kind = "say"
    calls = draw(makes) if kind in ("call", "chain") else []
    answers = draw(st.sampled_from(CALLS)) if kind in ("result", "chain") else None
    return Draft(content, {"say": "user", "call": "assistant"}.get(kind, "tool"), calls, answers)


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], list[list[Draft]]]:
    cap = draw(st.integers(1, 9))
    options = {
        "max_entries": cap,
        "max_tokens": draw(st.sampled_from([None, 5, 12, 40])),
        "max_bytes": draw(st.sampled_from([100_000, 700, 300])),
    }
    saves = draw(st.lists(st.lists(drafts(cap), min_size=1, max_size=4), min_size=1, max_size=25))
    return options, saves


def no_orphans(entries: Any) -> bool:
    made: set[str] = set()
    for entry in entries:
        if entry.tool_call_id is not None and entry.tool_call_id not in made:
            return False
        made.update(entry.tool_calls)
    return True


@pytest.fixture(scope="module")
def client(backends):
    with Holdfast(backends.get("valkey").url) as hf:
        yield hf


@settings(**tries(100, 2000), suppress_health_check=list(HealthCheck))
@given(story=stories())
def test_trimming_never_parts_what_belongs_together(client, story):
    options, saves = story
    chat = client.sessions("property", count_tokens=count_tokens, ttl=60, **options)
    model = Model(options["max_entries"], options["max_bytes"], options["max_tokens"] or 0)
    chat.clear("s")
    for number, drawn in enumerate(saves):
        batch = [replace(draft, content=[*draft.content, number, at]) for at, draft in enumerate(drawn)]
        before = chat.count("s")
        saved = chat.save_many("s", batch)
        kept = model.save(batch)
        found = chat.entries("s")
        # what is there is what the rule leaves, and the answer is true
        assert [e.content for e in found] == [h.draft.content for h in model.held]
        assert [one is not None for one in saved.ids] == kept
        assert saved.count == len(found) == chat.count("s")
        assert before + len(batch) - saved.trimmed.total == saved.count
        # within the bounds; only the newest turn may be over the token budget, and that is said
        assert len(found) <= options["max_entries"]
        assert saved.over_budget == model.over(model.held)
        # the newest is there, unless it was said that it is not
        if saved.id is not None:
            assert found[-1].id == saved.id
        # no orphan, in the session or in any window of it
        for limit in range(1, len(found) + 2):
            window = chat.context("s", limit)
            assert no_orphans(window)
            assert len(window) <= limit
    chat.clear("s")


def test_the_check_finds_an_orphan(client):
    # Given a session from which a call was taken by hand
    chat = client.sessions("property")
    saved = chat.save_many("s", [Draft([1, 1], "assistant", ["c0"]), Draft([2, 1], "tool", (), "c0")])
    whole = chat.entries("s")
    assert no_orphans(whole)
    assert not no_orphans(whole[1:])
    assert saved.count == 2
    chat.clear("s")


@settings(**tries(60, 2000), suppress_health_check=list(HealthCheck))
@given(saves=st.lists(drafts(9), min_size=1, max_size=15), pops=st.lists(st.integers(0, 14), max_size=5))
def test_counters_stay_true(client, saves, pops):
    """The numbers that a session keeps of itself are those of its entries, whatever was saved, trimmed and popped."""
    chat = client.sessions("property", max_entries=5, ttl=60, count_tokens=count_tokens, max_tokens=30)
    chat.clear("s")
    for at, draft in enumerate(saves):
        chat.save_many("s", [draft])
        for _ in range(pops.count(at)):
            chat.pop_last("s")
    place = chat._spec.session("s")
    raw = client._open.run(_raw(client, place))
    if raw:
        meta, *entries = raw
        _, count, tokens, size, *_ = meta.split(b" ")
        assert int(count) == len(entries)
        assert int(size) == sum(map(len, entries))
        assert int(tokens) == sum(int.from_bytes(entry[17:21], "big") for entry in entries)
    chat.clear("s")


def _raw(client: Any, place: Any) -> Any:
    from holdfast.engine.flow import Send
    from holdfast.engine.resp import pack

    return (yield Send(place.tag, pack("LRANGE", place.key, 0, -1)))

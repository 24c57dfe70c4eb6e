"""Gates: what counts of a state, which things there are, how long they are known. Every server, both twins."""

from __future__ import annotations

import hashlib
from typing import Any

from once_desk import Desks

from holdfast import Decision
from holdfast.events import Gated

WINDOW = 300.0
A, B = ({"free": letter} for letter in "ab")


# -- what counts of a state -----------------------------------------------------------------------------------------


async def test_equal_states_are_one_whatever_they_look_like(desks: Desks):
    gate = (await desks.desk()).gate(window=WINDOW)
    await gate.check("venue", {"a": 1, "b": [1.0, {"d": 2, "c": None}]})
    assert await gate.reasons("venue", {"b": [1e0, {"c": None, "d": 2.0}], "a": 1.0}) == ["unchanged"]
    assert await gate.reasons("venue", {"a": 1, "b": [True, {"d": 2, "c": None}]}) == ["changed"]
    assert await gate.reasons("venue", {"a": "1", "b": [1, {"d": 2, "c": None}]}) == ["changed"]


async def test_a_digest_of_ones_own_is_a_state(desks: Desks):
    desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    one, other = (hashlib.md5(text).hexdigest() for text in (b"a", b"b"))
    assert await gate.check("venue", one) == Decision(True, "first", None)
    assert await gate.check("venue", one) == Decision(False, "unchanged", one)
    assert await gate.check("venue", other) == Decision(True, "changed", one)
    assert await gate.check("venue", hashlib.md5(b"a").digest()) == Decision(True, "changed", other)


async def test_only_the_fields_that_count(desks: Desks):
    desks.drive()
    desk = await desks.desk()
    state = {"price": 5, "title": "x", "seen": 1}
    by_fields = desk.gate("fields", WINDOW, fields=["price", "title"])
    assert (await by_fields.check("k", state)).notify
    assert await by_fields.check("k", {**state, "seen": 2}) == Decision(False, "unchanged", {"price": 5, "title": "x"})
    assert (await by_fields.check("k", {**state, "price": 6})).previous == {"price": 5, "title": "x"}
    ignoring = desk.gate("ignore", WINDOW, ignore=["seen"])
    assert (await ignoring.check("k", state)).notify
    assert not (await ignoring.check("k", {**state, "seen": 2})).notify
    assert (await ignoring.check("k", {**state, "title": "y"})).notify
    # for one call
    gate = desk.gate("call", WINDOW)
    assert (await gate.check("k", state, fields=["price"])).notify
    assert not (await gate.check("k", {"price": 5, "title": "z"}, fields=["price"])).notify
    assert [d.notify for d in await gate.check_many([("k", {"price": 5}), ("l", {"price": 5})], fields=["price"])] == [
        False,
        True,
    ]


async def test_keys_of_every_kind_come_back_with_their_notice(quick: Desks):
    clock = quick.drive()
    gate = (await quick.desk()).gate("{odd} \x00 gate", WINDOW)
    keys = ["a:b", "{x}", "\x00", b"\xff", "\ud800", 7, 2**80, ("a", 1, None, ("b", b"\xff"))]
    for key in keys:
        await gate.reasons(key, A, B, A, B)
    clock.move(WINDOW)
    notices = await gate.due()
    keys[4] = b"\xed\xa0\x80"  # which is the same id
    assert sorted(map(repr, keys)) == sorted(repr(notice.key) for notice in notices)
    for notice in notices:
        assert await gate.told(notice)
        assert await gate.reasons(notice.key, B) == ["unchanged"]
        assert await gate.forget(notice.key)


# -- life and counts ------------------------------------------------------------------------------------------------


async def test_what_nobody_asks_about_is_forgotten(desks: Desks):
    desk = await desks.desk()
    gate = desk.gate("short", 1.0, keep=100.0)
    await gate.reasons("venue", A, B, A, B)
    assert [80_000 < life <= 100_000 for life in desks.lives().values()] == [True, True]  # the thing and the index
    by_default = desk.gate("long", 1.0)
    await by_default.check("venue", A)
    assert 6 * 86_400_000 < max(desks.lives().values()) <= 7 * 86_400_000
    # never before its window could matter
    wide = desk.gate("wide", 86_400.0 * 30, keep=1.0)
    await wide.check("venue", A)
    assert max(desks.lives().values()) > 59 * 86_400_000


async def test_asking_keeps_a_thing(quick: Desks):
    gate = (await quick.desk()).gate("short", 0.05, keep=50.0)
    await gate.check("venue", A)
    (key,) = quick.lives()
    quick.backend.owner.call("PEXPIRE", key, 1000)
    assert await gate.reasons("venue", A) == ["unchanged"]
    assert quick.lives()[key] > 40_000


async def test_states_are_counted(quick: Desks):
    events: list[Any] = []
    quick.drive()
    gate = (await quick.desk(observers=[events.append])).gate(window=WINDOW)
    await gate.reasons("venue", A, A, B, A, B)
    assert [event for event in events if isinstance(event, Gated)] == [
        Gated("venues", reason) for reason in ("first", "unchanged", "changed", "changed", "repeated")
    ]


async def test_it_shows_what_it_is(quick: Desks):
    gate = (await quick.desk(within=77.0)).gate()
    assert (repr(gate.gate), gate.gate.name) == ("<Gate venues window=77>", "venues")

"""What differs between two states, and how the place is written."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.monitor.diff import MISSING, Difference, diff, path_of, path_text, value_at
from support.depth import tries

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
PATHS = st.lists(st.text(max_size=6) | st.integers(-3, 50), max_size=5).map(tuple)


def shown(before: Any, after: Any, **options: Any) -> list[str]:
    return [str(one) for one in diff(before, after, **options)]


def test_dicts_are_compared_by_key_and_lists_by_position() -> None:
    before = {"price": {"usd": 1, "eur": 2}, "tags": ["a", "b", "c"], "gone": None, "same": [{"x": 1}]}
    after = {"new": [1], "same": [{"x": 1}], "tags": ["a", "B"], "price": {"eur": 2, "usd": 3}}

    assert diff(before, after) == (
        Difference(("price", "usd"), 1, 3),
        Difference(("tags", 1), "b", "B"),
        Difference(("tags", 2), "c", MISSING),
        Difference(("gone",), None, MISSING),
        Difference(("new",), MISSING, [1]),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 1.0), (0, -0.0), ([1, 2], (1, 2)), ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}), (None, None), (b"a", b"a"),
        ({}, {}), ("", ""), (True, True), (2**70, 2**70),
    ],
)  # fmt: skip
def test_these_are_the_same(before: Any, after: Any) -> None:
    assert diff(before, after) == diff(after, before) == ()
    assert diff([before], [after], depth=0) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, True), (0, False), (1, "1"), (None, 0), (None, False), ("", None), ([], {}), ([], None), (b"a", "a"),
        (1, 1.0000001), ("caf\u00e9", "cafe\u0301"), (2**70, 2**70 + 1), ({"a": 1}, ["a"]),
    ],
)  # fmt: skip
def test_these_are_not(before: Any, after: Any) -> None:
    for one, other in ((before, after), (after, before)):
        assert diff(one, other) == (Difference((), one, other),)
        assert diff({"x": [one]}, {"x": [other]}) == (Difference(("x", 0), one, other),)
        assert diff([one], [other], depth=0) == (Difference((), [one], [other]),)


def test_a_value_that_is_missing_is_not_one_that_is_null() -> None:
    assert shown({"a": None}, {}) == ["a: null removed"]
    assert shown({}, {"a": None}) == ["a: null added"]
    assert diff([1], [1, None]) == (Difference((1,), MISSING, None),)
    assert repr(MISSING) == "MISSING"
    assert copy.deepcopy(MISSING) is MISSING


def test_it_reads_well() -> None:
    assert shown({"a": {"b": [1]}}, {"a": {"b": [2]}}) == ["a.b[0]: 1 -> 2"]
    assert shown("x", ["x"]) == ['(the whole): "x" -> ["x"]']
    assert shown({"raw": b"abc"}, {"raw": "茶\n"}) == [r'raw: "[3 bytes]" -> "茶\n"']
    assert shown({}, {"a b": 1, "b.c": 2, "": 3, "7": 4}) == [
        '["a b"]: 1 added', '["b.c"]: 2 added', '[""]: 3 added', '["7"]: 4 added',
    ]  # fmt: skip
    (long,) = shown(0, "x" * 10_000)
    assert len(long) < 120
    assert long.endswith("…")
    assert str(Difference((), {(1, 2): 3}, 1)) == "(the whole): (dict) -> 1"


def test_depth_is_bounded() -> None:
    def nested(levels: int, inner: Any) -> Any:
        for _ in range(levels):
            inner = {"a": [inner]}
        return inner

    # As deep as data may be, it is walked through; deeper, or where one asks for less, it is compared as a whole
    (found,) = diff(nested(100, 1), nested(100, 2))
    assert (len(found.path), found.before, found.after) == (200, 1, 2)
    (found,) = diff(nested(20_000, 1), nested(20_000, 2))
    assert len(found.path) == 200
    assert diff(nested(20_000, 1), nested(20_000, 1.0)) == ()
    assert "dict" in str(found)
    assert diff({"a": {"b": 1}}, {"a": {"b": 2}}, depth=1) == (Difference(("a",), {"b": 1}, {"b": 2}),)
    for bad in (-1, 201, 1.0, None):
        with pytest.raises(ConfigurationError, match="pass depth"):
            diff(1, 2, depth=bad)


@settings(**tries(150, 4000))
@given(JSON, JSON)
def test_every_difference_is_where_it_says(before: Any, after: Any) -> None:
    found = diff(before, after)

    assert diff(before, copy.deepcopy(before)) == ()
    assert len({one.path for one in found}) == len(found)
    assert [(one.path, one.after, one.before) for one in sorted(found, key=repr)] == [
        (one.path, one.before, one.after)
        for one in sorted(diff(after, before), key=lambda one: repr(Difference(one.path, one.after, one.before)))
    ]
    for one in found:
        assert value_at(before, one.path) is one.before or value_at(before, one.path) == one.before
        assert value_at(after, one.path) is one.after or value_at(after, one.path) == one.after


@settings(**tries(200, 4000))
@given(PATHS)
def test_a_path_can_be_written_and_read(path: tuple[str | int, ...]) -> None:
    assert path_of(path_text(path)) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()), ("a", ("a",)), ("a.b[0]", ("a", "b", 0)), ("[0][1].x", (0, 1, "x")),
        ('a["b.c"].d', ("a", "b.c", "d")), ("a[-1]", ("a", -1)),
        ("items.0.price", ("items", "0", "price")), ("preis in €.netto", ("preis in €", "netto")),
    ],
)  # fmt: skip
def test_paths_as_one_would_type_them(text: str, path: tuple[str | int, ...]) -> None:
    assert path_of(text) == path


@pytest.mark.parametrize("text", [".", "a.", ".a.", "a..b", "a[", "a]", "a[x]", 'a["', "a[1", "[1]b"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write the path like"):
        path_of(text)


def test_what_is_at_a_place() -> None:
    state = {"a": [{"b": 1}, None], "0": "zero", "n": 5}

    assert value_at(state, ()) is state
    assert value_at(state, path_of("a[0].b")) == value_at(state, path_of("a.0.b")) == 1
    assert value_at(state, path_of("a[-1]")) is None
    assert value_at(state, path_of("0")) == "zero"
    for missing in ("a[2]", "a[-3]", "a.b", "n.x", "n[0]", "x", "a[0].b.c", "a.99999999999999999999"):
        assert value_at(state, path_of(missing)) is MISSING

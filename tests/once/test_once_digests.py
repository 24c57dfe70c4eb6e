"""Digests of ids and states: the same in every process and release, and never alike by accident (PITFALL 40)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.engine.digest import (
    MAX_DEPTH,
    MAX_ID,
    MAX_PARTS,
    canonical_json,
    id_digest,
    in_key,
    shard_of_digest,
    state_digest,
    watched,
)
from holdfast.errors import InvalidId, InvalidPayload
from support.depth import tries

VECTORS = json.loads(Path(__file__).parents[1].joinpath("vectors", "digests.json").read_text("utf-8"))

examined = settings(database=None, **tries(150, 3000))
parts = st.integers() | st.text(st.characters(), max_size=5) | st.binary(max_size=5) | st.none()
ids = st.recursive(parts, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)
states = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def read(data: Any) -> Any:
    """A value as it is written in the vectors: tuples and bytes have no JSON of their own."""
    match data:
        case {"tuple": items}:
            return tuple(map(read, items))
        case {"hex": text}:
            return bytes.fromhex(text)
        case {"points": points}:
            return "".join(map(chr, points))
        case {"number": text}:
            return int(text)
        case {"value": value}:
            return value
    raise AssertionError(data)


# -- the format is pinned -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["ids"], ids=lambda vector: vector["name"])
def test_an_id_has_the_digest_that_it_always_had(vector: dict[str, Any]) -> None:
    digest = id_digest(read(vector["id"]))
    assert (digest.hex(), in_key(digest), shard_of_digest(digest)) == (vector["digest"], vector["key"], vector["shard"])


@pytest.mark.parametrize("vector", VECTORS["states"], ids=lambda vector: vector["name"])
def test_a_state_has_the_digest_that_it_always_had(vector: dict[str, Any]) -> None:
    state = read(vector["state"])
    assert (canonical_json(state), state_digest(state).hex()) == (vector["text"], vector["digest"])


def test_the_vectors_differ_from_each_other() -> None:
    for kind in ("ids", "states"):
        digests = [vector["digest"] for vector in VECTORS[kind]]
        assert len(set(digests)) == len(digests)


def test_another_process_has_the_same_digests() -> None:
    """Python salts its own hashes in each process (PITFALL 16)."""
    code = (
        "from holdfast.engine.digest import id_digest, state_digest\n"
        "print(id_digest(('a', 1)).hex(), state_digest({'b': 1, 'a': b'x'}).hex())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said == [id_digest(("a", 1)).hex(), state_digest({"a": b"x", "b": 1}).hex()]


# -- ids ------------------------------------------------------------------------------------------------------------


def as_bytes(value: Any) -> Any:
    """What is promised to be one id: text and the bytes of its UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return tuple(map(as_bytes, value)) if isinstance(value, tuple) else value


@examined
@given(ids, ids)
@example(("19:00", "a"), ("19", "00:a"))
@example(("a", "b"), ("ab",))
@example(("i1;",), (1,))
@example(("s1:a",), "a")
@example((("a",), "b"), ("a", ("b",)))
@example("1", 1)
@example((None,), ("n",))
def test_ids_are_alike_only_where_they_are_equal(one: Any, other: Any) -> None:
    if one in ("", b"", (), None) or other in ("", b"", (), None):
        return
    assert (id_digest(one) == id_digest(other)) == (as_bytes(one) == as_bytes(other))


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    "wrong",
    ["", b"", (), None, True, False, 1.0, ["a"], {"a"}, {"a": 1}, bytearray(b"a"), object, ("a", 1.5), ("a", True),
     ("a", ["b"]), ("a",) * (MAX_PARTS + 1), nested(10), "x" * (MAX_ID + 1), ("x" * 40_000, "y" * 40_000),
     pytest.param(10**5000, id="a large number")],
    ids=lambda wrong: f"{type(wrong).__name__} {wrong!r:.20}",
)  # fmt: skip
def test_what_is_no_id_is_refused_and_the_error_says_what_to_do(wrong: Any) -> None:
    with pytest.raises(InvalidId, match=r"^pass "):
        id_digest(wrong)


# -- states ---------------------------------------------------------------------------------------------------------


def test_equal_states_have_one_digest_whatever_their_order_and_their_numbers_look_like() -> None:
    assert state_digest({"a": 1, "b": [1.0, {"d": 2, "c": 3}]}) == state_digest(
        {"b": [1, {"c": 3.0, "d": 2e0}], "a": 1e0}
    )
    assert len({state_digest(value) for value in (1, 1.0, 1e0, json.loads("1e0"), json.loads("1.0"))}) == 1
    assert state_digest(-0.0) == state_digest(0) == state_digest(0.0)
    assert state_digest(1e22) == state_digest(10**22)
    assert state_digest((1, 2)) == state_digest([1, 2])
    assert state_digest({"a": {"x": 1, "y": 2}}) == state_digest({"a": {"y": 2, "x": 1}})


def test_different_states_have_different_digests() -> None:
    values = [
        None, True, False, 0, 1, -1, 0.5, "", "0", "1", "true", "null", [], {}, [[]], [{}], {"": None}, {"a": None},
        {"a": 1}, {"a": "1"}, {"a": [1]}, [1, 2], [2, 1], ["12"], b"", b"\x00", {"$bytes": ""}, {"$bytes": "00"},
        {"$$bytes": "00"}, {"$": 1}, {"": {"$bytes": "00"}}, "e\u0301", "\u00e9", "\ud800", 2**63, 2.0**63 + 4096, 1e-7,
        "a", hashlib.md5(b"a").hexdigest(),
    ]  # fmt: skip
    for one, other in combinations(values, 2):
        assert state_digest(one) != state_digest(other), (one, other)


@examined
@given(states, states)
@example(b"\x00", {"$bytes": "00"})
@example(1, True)
@example({"$bytes": "00"}, {"$$bytes": "00"})
def test_states_are_alike_only_where_they_are_equal(one: Any, other: Any) -> None:
    assert (state_digest(one) == state_digest(other)) == (_with_types(one) == _with_types(other))


def _with_types(value: Any) -> Any:
    """Equality as JSON has it: True is not 1, and bytes are no text."""
    if isinstance(value, dict):
        return {name: _with_types(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_types(item) for item in value]
    return ("bool", value) if isinstance(value, bool) else value


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "wrong",
    [object, {1, 2}, {1: "a"}, {None: 1}, float("nan"), float("inf"), [float("-inf")], {"a": object()}, 1j,
     deep(MAX_DEPTH + 1), pytest.param(10**5000, id="a large number")],
    ids=lambda wrong: f"{type(wrong).__name__} {wrong!r:.20}",
)  # fmt: skip
def test_what_is_no_state_is_refused_and_the_error_says_what_to_do(wrong: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"^(pass|nest) "):
        state_digest(wrong)


# -- what counts of a state -----------------------------------------------------------------------------------------

STATE = {"price": 5, "title": "x", "seen": 17}


@pytest.mark.parametrize(
    ("fields", "ignore", "left"),
    [
        (None, (), STATE),
        (("price",), (), {"price": 5}),
        (("price", "seen", "nothing"), (), {"price": 5, "seen": 17}),
        (None, ("seen",), {"price": 5, "title": "x"}),
        (("price", "seen"), ("seen",), {"price": 5}),
        ((), (), {}),
        (None, ("nothing",), STATE),
    ],
)
def test_only_the_fields_that_count_are_left(fields: Any, ignore: Any, left: Any) -> None:
    assert watched(STATE, fields, ignore) == left


def test_fields_of_what_has_none_are_an_error() -> None:
    assert watched("text", None) == "text"
    for fields, ignore in ((("a",), ()), (None, ("a",))):
        with pytest.raises(InvalidPayload, match=r"^pass the state as a dict"):
            watched("text", fields, ignore)

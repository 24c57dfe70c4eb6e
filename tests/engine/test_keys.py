"""Ids become keys one-to-one, in a hash tag that is ours, and in the same shard in every process (PITFALLS 16, 50)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from holdfast import Holdfast
from holdfast.engine.core import Core
from holdfast.errors import ConfigurationError, InvalidId
from holdfast.keys import MAX_ID_BYTES, SHARDS, Keys, decode, encode, id_bytes, shard_of
from holdfast.locks import admin
from holdfast.locks.spec import Place, place

VECTORS = json.loads(Path(__file__).parents[1].joinpath("vectors", "keys.json").read_text("utf-8"))
KINDS = ("lock", "rw", "sem")

examined = settings(database=None, deadline=None, max_examples=300)
any_bytes = st.binary(min_size=1, max_size=MAX_ID_BYTES)
# `characters()` has lone surrogates, the default of `text()` has not.
any_text = st.text(st.characters(), min_size=1, max_size=MAX_ID_BYTES // 4)
any_id = any_bytes | any_text


def id_of(vector: dict[str, Any]) -> str | bytes:
    if "points" in vector:  # two surrogates in a row, which JSON would read as one character
        return "".join(map(chr, vector["points"]))
    return vector["text"] if "text" in vector else bytes.fromhex(vector["hex"])


def core(**overrides: Any) -> Core:
    """Builds keys and starts nothing."""
    return Core("embedded:", observers=(), overrides=overrides)


def hash_tag(key: str) -> str:
    """As the Cluster specification has it: between the first `{` and the first `}` behind it."""
    found = re.search(r"\{([^}]*)\}", key, re.S)
    return found.group(1) if found and found.group(1) else key


def keys_of(where: Place) -> set[str]:
    """The keys that belong to this lock alone."""
    return {where.lock, where.queue}


# -- the format is pinned ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["ids"], ids=lambda vector: vector["name"])
def test_key_format_is_pinned(vector: dict[str, Any]) -> None:
    raw = id_bytes(id_of(vector))

    assert encode(raw) == vector["encoded"]
    assert shard_of(raw) == vector["shard"]
    assert decode(vector["encoded"]) == id_of(vector)
    assert decode(vector["encoded"].encode()) == id_of(vector)


def test_number_of_shards_is_pinned() -> None:
    assert SHARDS == VECTORS["shards"] == len(VECTORS["slots_of_lock_shards"])


def test_slots_of_the_shards_are_pinned() -> None:
    keys = Keys("hf")

    slots = [key_slot(f"{keys.base(keys.tag('locks', shard))}lock:x".encode()) for shard in range(SHARDS)]

    assert slots == VECTORS["slots_of_lock_shards"]


def test_whole_keys_are_pinned() -> None:
    # Given an id that needs no escape and one that needs it
    plain, odd = place(core(), "lock", "report:42"), place(core(prefix="eu:app"), "rw", "{a}\n*")

    assert (plain.lock, plain.queue) == ("hf:{locks.19}:lock:report:42", "hf:{locks.19}:q.lock:report:42")
    assert (plain.shard, plain.audit, plain.channels) == (
        "hf:{locks.19}:shard",
        "hf:{locks.19}:audit",
        "hf:{locks.19}:sig:",
    )
    assert (odd.lock, odd.queue) == ("eu:app:{locks.58}:rw:%7ba%7d%0a%2a", "eu:app:{locks.58}:q.rw:%7ba%7d%0a%2a")


def test_vectors_are_all_different_ids_with_different_keys() -> None:
    encoded = [vector["encoded"] for vector in VECTORS["ids"]]

    assert len(set(encoded)) == len(encoded)


# -- one-to-one -------------------------------------------------------------------------------------------------------


@examined
@given(any_bytes)
@example(b"\xed\xa0\x80")
@example(b"%7b")
def test_bytes_come_back_from_their_key(raw: bytes) -> None:
    assert id_bytes(decode(encode(raw))) == raw


@examined
@given(any_text)
@example("\ud83d\udd12")
@example("\udcff")
@example("\x00\n")
def test_text_comes_back_from_its_key(text: str) -> None:
    assert decode(encode(id_bytes(text))) == text


def test_the_generated_text_really_has_lone_surrogates() -> None:
    from hypothesis import find

    assert re.search("[\ud800-\udfff]", find(any_text, lambda text: bool(re.search("[\ud800-\udfff]", text))))


@examined
@given(any_bytes, any_bytes)
@example(b"a", b"%61")
@example(b"A", b"a")
@example(b"{", b"%7b")
@example(b"%7b", b"%257b")
def test_two_ids_have_two_keys(one: bytes, other: bytes) -> None:
    assert (encode(one) == encode(other)) == (one == other)


@examined
@given(any_id, any_id, st.sampled_from(KINDS), st.sampled_from(KINDS))
@example("x", "q.lock:x", "lock", "lock")
@example("x", "lock:x", "lock", "rw")
@example("shard", "audit", "lock", "lock")
def test_two_locks_share_no_key(one: str | bytes, other: str | bytes, kind: str, other_kind: str) -> None:
    first, second = place(core(), kind, one), place(core(), other_kind, other)
    same = (id_bytes(one), kind) == (id_bytes(other), other_kind)

    assert bool(keys_of(first) & keys_of(second)) == same
    assert not keys_of(first) & {second.shard, second.audit}
    assert first.lock != first.queue


def test_composed_and_decomposed_spellings_are_two_ids() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"

    assert place(core(), "lock", composed).lock != place(core(), "lock", decomposed).lock


def test_text_and_its_utf8_are_one_id() -> None:
    assert place(core(), "lock", "café").lock == place(core(), "lock", "café".encode()).lock


def test_one_client_tells_text_from_the_bytes_of_another_id() -> None:
    # Given one client, which remembers the places of the locks it has seen
    shared = core()

    assert place(shared, "lock", "a").lock == place(shared, "lock", b"a").lock
    assert place(shared, "lock", "a").lock != place(shared, "rw", "a").lock
    assert place(shared, "lock", "b").lock != place(shared, "lock", "a").lock


# -- the hash tag is ours ---------------------------------------------------------------------------------------------


@examined
@given(any_id, st.sampled_from(KINDS))
@example("{other}", "lock")
@example("}{", "lock")
@example("{}", "rw")
@example(b"{\xff}", "sem")
def test_hash_tag_is_ours_whatever_the_id(name: str | bytes, kind: str) -> None:
    where = place(core(), kind, name)

    assert where.tag == f"locks.{shard_of(id_bytes(name))}"
    for key in (*where.keys, where.audit, where.channels + "0123456789abcdef"):
        assert hash_tag(key) == where.tag
        assert key_slot(key.encode()) == key_slot(where.tag.encode())


@examined
@given(any_id)
def test_keys_can_be_typed_by_an_operator(name: str | bytes) -> None:
    where = place(core(), "lock", name)

    for key in where.keys:
        assert re.fullmatch(r"[!-~]+", key), "visible ASCII only"
        assert not set(key.replace(f"{{{where.tag}}}", "")) & set("{}*?[]^\\'\" ")


@examined
@given(any_id, st.text(st.characters(codec="utf-8"), max_size=20))
@example("r", "}{x}")
@example("r", "{x}")
def test_a_users_guarded_key_is_in_the_slot_of_its_guard(resource: str | bytes, suffix: str) -> None:
    # Given the key under which `guarded` remembers the fence of a resource
    guard = guard_of(resource)

    mine = Holdfast("embedded:").guard_key(resource, suffix)

    assert key_slot(mine.encode()) == key_slot(guard.encode())


def guard_of(resource: str | bytes) -> str:
    """The key that `guarded` sends for a resource."""
    effect = next(admin.guarded(core(), resource, 1, [("PING",)], 60.0))
    found = re.search(rb"hf:\{guards\.\d+\}:[!-~]+:fence\r\n", effect.payload)
    assert found is not None
    return found.group().decode().rstrip()


def same_shard(make: Any) -> tuple[str, str]:
    """The first pair of ids that `make` gives which live in one shard."""
    return next(
        (one, other) for one, other in map(make, count()) if shard_of(id_bytes(one)) == shard_of(id_bytes(other))
    )


def test_guarded_keys_of_two_resources_are_two_keys() -> None:
    # Given resources "N:1" and "N" of one shard
    hf = Holdfast("embedded:")
    longer, shorter = same_shard(lambda n: (f"{n}:1", f"{n}"))

    assert hf.guard_key(longer, "x") != hf.guard_key(shorter, "1:x")
    assert hf.guard_key(longer, "x") != hf.guard_key(shorter, "1:data:x")


def test_a_users_guarded_key_is_never_a_guard() -> None:
    # Given resources "N" and "N:data:x" of one shard, and a suffix that ends as a guard does
    hf = Holdfast("embedded:")
    shorter, longer = same_shard(lambda n: (f"{n}", f"{n}:data:x"))

    assert hf.guard_key(shorter, "x:fence") != guard_of(longer)


# -- refused before anything is sent ----------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["", b""])
def test_empty_id_is_refused(empty: str | bytes) -> None:
    with pytest.raises(InvalidId, match="not empty"):
        id_bytes(empty)


@pytest.mark.parametrize("long", ["x" * 513, b"x" * 513, "é" * 257, "🔒" * 129, "\ud800" * 171], ids=repr)
def test_id_of_more_than_512_bytes_is_refused(long: str | bytes) -> None:
    with pytest.raises(InvalidId, match="at most 512 bytes"):
        id_bytes(long)


@pytest.mark.parametrize("longest", ["x" * 512, b"\xff" * 512, "é" * 256, "🔒" * 128], ids=repr)
def test_id_of_512_bytes_is_taken(longest: str | bytes) -> None:
    assert len(id_bytes(longest)) == 512


@pytest.mark.parametrize("other", [42, 1.5, None, True, ("a",), ["a"], {"a": 1}, bytearray(b"a"), memoryview(b"a")])
def test_other_types_are_refused(other: Any) -> None:
    with pytest.raises(InvalidId, match=f"str or bytes, not {type(other).__name__}"):
        id_bytes(other)


@pytest.mark.parametrize(
    "other",
    [
        42,
        None,
        ["a"],
        bytearray(b"a"),
    ],
)
def test_a_lock_of_another_type_is_refused(other: Any) -> None:
    with pytest.raises(InvalidId, match="str or bytes"):
        Holdfast("embedded:").lock(other)


@pytest.mark.parametrize("prefix", ["", "a b", "{a}", "a}", "é", "a\n", "a*", "x" * 65])
def test_prefix_that_could_move_the_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="pass a prefix"):
        Keys(prefix)


@pytest.mark.parametrize("prefix", ["hf", "eu-west.app_1:v2", "x" * 64])
def test_plain_prefix_is_taken(prefix: str) -> None:
    assert Keys(prefix).base("locks.1") == f"{prefix}:{{locks.1}}:"


# -- the same in every process ----------------------------------------------------------------------------------------

OTHER_PROCESS = """
import json, sys
from holdfast.keys import SHARDS, id_bytes, shard_of
ids = [f"user:{n}" for n in range(100)]
print(json.dumps([[shard_of(id_bytes(i)) for i in ids], [hash(i) % SHARDS for i in ids]]))
"""


def shards_in_a_process(salt: str) -> tuple[list[int], list[int]]:
    """Our shards and those of Python's `hash`, in a process that salts its hashes like this."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS],
        env={**os.environ, "PYTHONHASHSEED": salt},
        capture_output=True,
        check=True,
        timeout=30,
    )
    ours, pythons = json.loads(done.stdout)
    return ours, pythons


def test_shard_is_the_same_in_every_process_where_hash_is_not() -> None:
    # Given two processes that salt their hashes differently
    ours, pythons = shards_in_a_process("1")
    ours_again, pythons_again = shards_in_a_process("2")

    assert ours == ours_again == [shard_of(id_bytes(f"user:{n}")) for n in range(100)]
    assert pythons != pythons_again, "the two processes must differ, or this proves nothing"


def test_shards_are_all_used() -> None:
    assert {shard_of(id_bytes(f"user:{n}")) for n in range(2000)} == set(range(SHARDS))

"""The largest and the oldest users, from indexes: held against the truth after every kind of change, at random."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator

import pytest

import holdfast.sync
from holdfast import ConfigurationError, NotAcquired
from holdfast.keys import decode
from support.backends import Backend
from support.conditions import until_blocking
from support.mutants import Edited

USERS = [f"user-{number}" for number in range(12)] + ["a/b", "{x}", "日本", "n\nl"]
BUGS = {
    "not removed when the last message goes": ("buffers/_user", "call('ZREM', base .. index, member)", ""),
    "not moved when the oldest goes": (
        "buffers/_drop", "if first ~= known_oldest then rank('old', first) end",
        "if known_oldest == 0 or first == 0 then rank('old', first) end",
    ),
    "not moved between sizes": ("buffers/_drop", "if size_class(n) ~= size_class(known_n) then", "if n == 0 then"),
    "left by forget": ("buffers/clear", "rank('old', 0)", ""),
}  # fmt: skip


class Wrong(AssertionError):
    """The index does not say what is so."""


def client(valkey: Backend, *edits: tuple[str, str, str]) -> holdfast.sync.Holdfast:
    made = holdfast.sync.Holdfast(valkey.url)
    made._core.scripts = Edited(list(edits))
    return made.open()


@pytest.fixture
def hf(valkey: Backend) -> Iterator[holdfast.sync.Holdfast]:
    with client(valkey) as made:
        yield made


def index(valkey: Backend, buffer: holdfast.sync.Buffer, which: str) -> dict[object, float]:
    (server,) = valkey.primaries()
    found: dict[object, float] = {}
    for shard in buffer._spec.shards:
        for member, score in server.zrange(getattr(shard, which), 0, -1, withscores=True):
            found[decode(member)] = score
    return found


def size_class(number: int) -> int:
    return 0 if number < 16 else number.bit_length()


def compare(valkey: Backend, buffer: holdfast.sync.Buffer) -> None:
    stats = {user: buffer.stats(user) for user in USERS}
    heads = {user: buffer.peek(user, 1) for user in USERS}
    waiting = {user: one.waiting for user, one in stats.items() if one.waiting}
    old, big = index(valkey, buffer, "old"), index(valkey, buffer, "big")
    truth = {user: round(heads[user][0].at * 1000) for user in waiting}
    if {user: round(score) for user, score in old.items()} != truth:
        raise Wrong(f"oldest: {old} is not {truth}")
    if {user: size_class(int(score)) for user, score in big.items()} != {
        user: size_class(number) for user, number in waiting.items() if number >= 16
    }:
        raise Wrong(f"largest: {big} is not {waiting}")
    largest = buffer.largest(1000)
    assert {one.user: one.waiting for one in largest} == {user: n for user, n in waiting.items() if n >= 16}
    assert [one.waiting for one in largest] == sorted((one.waiting for one in largest), reverse=True)
    found = buffer.oldest(1000)
    assert all(one.waiting or one.in_flight for one in found)
    oldest = [one.user for one in found if one.waiting]  # the others lost their worker, and are due
    assert set(oldest) == set(waiting)
    ages = [truth[user] for user in oldest]
    assert all(one <= other + 100 for one, other in itertools.pairwise(ages)), "far out of order"


def live(rng: random.Random, buffer: holdfast.sync.Buffer, held: dict[str, object], steps: int) -> Iterator[None]:
    """Everything that changes how much waits, at random."""
    for _ in range(steps):
        user = rng.choice(USERS)
        match rng.randrange(9):
            case 0 | 1:
                buffer.append(user, 1)
            case 2 | 3:
                buffer.extend(user, range(rng.choice((1, 5, 15, 16, 40, 130))))
            case 4 | 5:
                with contextlib.suppress(NotAcquired):
                    held[user] = buffer.take(user, rng.choice((1, 7, 1000))) or held.pop(user, None)
            case 6:
                if batch := held.pop(user, None):
                    batch.ack() if rng.random() < 0.5 else batch.nack(count=False)
            case 7:
                buffer.clear(user)
            case 8:
                held.pop(user, None)
                buffer.forget(user)
        yield


def story(valkey: Backend, hf: holdfast.sync.Holdfast, seed: int, steps: int) -> None:
    rng, held = random.Random(seed), {}
    buffer = hf.buffer("ranked", capacity=120)
    for number, _ in enumerate(live(rng, buffer, held, steps)):
        if number % 10 == 9:
            compare(valkey, buffer)
    for user in USERS:
        buffer.forget(user)
    if index(valkey, buffer, "old") or index(valkey, buffer, "big"):
        raise Wrong("something is left in the indexes when everything is gone")


@pytest.mark.parametrize("seed", range(3))
def test_the_indexes_say_what_is_so_after_every_kind_of_change(valkey: Backend, hf: holdfast.sync.Holdfast, seed: int):
    story(valkey, hf, seed, 400)


@pytest.mark.parametrize("bug", BUGS)
def test_an_index_that_is_not_kept_up_is_noticed(valkey: Backend, bug: str):
    def stories(hf: holdfast.sync.Holdfast) -> None:
        for seed in range(4):
            story(valkey, hf, seed, 400)

    with client(valkey, BUGS[bug]) as hf, pytest.raises(Wrong):
        stories(hf)


def test_messages_that_grow_too_old_leave_the_indexes(valkey: Backend, hf: holdfast.sync.Holdfast):
    buffer = hf.buffer("short", ttl=1.5)
    for user in USERS[:4]:
        buffer.extend(user, range(20))
    assert len(buffer.largest()) == len(buffer.oldest()) == 4
    until_blocking(lambda: all((buffer.stats(user).age or 9.0) > 1.5 for user in USERS[:4]))
    assert [buffer.take(user) for user in USERS[:4]] == [None] * 4
    assert buffer.largest() == buffer.oldest() == []
    assert index(valkey, buffer, "old") == index(valkey, buffer, "big") == {}


def test_a_message_that_is_dropped_for_a_newer_one_moves_its_user(valkey: Backend, hf: holdfast.sync.Holdfast):
    buffer = hf.buffer("full", capacity=2)
    buffer.append("first", 1)
    until_blocking(lambda: buffer.stats("first").age > 0.02)
    buffer.append("second", 1)
    assert [one.user for one in buffer.oldest()] == ["first", "second"]
    until_blocking(lambda: buffer.stats("second").age > 0.02)
    buffer.extend("first", [2, 3])
    assert [one.user for one in buffer.oldest()] == ["second", "first"]


def test_pages_hold_every_user_once(hf: holdfast.sync.Holdfast):
    buffer = hf.buffer("pages")
    for number in range(25):
        buffer.extend(f"u{number}", range(16 + number))
    for ask in (buffer.oldest, buffer.largest):
        seen = [one.user for offset in range(0, 30, 7) for one in ask(7, offset=offset)]
        assert sorted(seen) == sorted(f"u{number}" for number in range(25))
    assert [one.user for one in buffer.largest(1)] in (["u24"], ["u23"], ["u16"]), "of the largest class"


async def test_both_twins_and_a_cluster_answer_the_same(backend: Backend):
    async with holdfast.Holdfast(backend.url) as hf:
        buffer = hf.buffer("b")
        for number in range(5):
            await buffer.extend(f"u{number}", range(20 * (number + 1)))
        assert [one.user for one in await buffer.largest(2)] == ["u4", "u3"] or backend.kind != "valkey"
        assert {one.user for one in await buffer.oldest()} == {f"u{number}" for number in range(5)}
        await buffer.forget("u4")
        assert "u4" not in {one.user for one in await buffer.largest()}


def test_batches_in_hand_are_found_whether_somebody_has_them_or_they_wait_for_another_attempt(
    hf: holdfast.sync.Holdfast,
):
    buffer = hf.buffer("hands")
    for number in range(6):
        buffer.extend(f"u{number}", range(3))
    assert buffer.in_hand() == []
    # Given one that is held, one that failed, and one of which more waits
    held, failed, more = (buffer.take(f"u{number}", lease=50) for number in range(3))
    assert None not in (held, failed, more)
    failed.nack(delay=20)
    buffer.append("u2", "next")
    # expect these and nobody else, soonest first
    first, *others = buffer.in_hand()
    assert (first.user, first.in_flight, first.attempt, first.held) == ("u1", 3, 1, False)
    assert 0 < first.free_in <= 20
    assert {(one.user, one.waiting, one.held) for one in others} == {("u0", 0, True), ("u2", 1, True)}
    assert len(buffer.in_hand(1)) == 1
    for batch in (held, more):
        batch.ack()
    assert [one.user for one in buffer.in_hand()] == ["u1"]
    with pytest.raises(ConfigurationError):
        buffer.in_hand(0)

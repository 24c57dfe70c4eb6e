"""Requests that come twice, late, or after somebody else: each takes effect once, and never on a newer holder.

A late request is a real one: the client's first request is held back before it is sent, the client gives up on it and
repeats, and then the test delivers the first one by hand.
"""

from __future__ import annotations

import pytest
from buffer_bench import MEANWHILE, USER, Bench, acked, buried, nothing, taken

from holdfast import HoldfastError, LeaseLost, NotAcquired
from holdfast.engine.payload import encode
from holdfast.sync import Holdfast
from support.backends import Backend
from support.conditions import until_blocking

QUICK = {"call_timeout": 1.0, "retry_for": 5.0}


@pytest.fixture
def bench(valkey: Backend):
    with Holdfast(valkey.url, **QUICK) as hf, Holdfast(valkey.url, **QUICK) as other:
        made = Bench(valkey, hf, other)
        yield made
        made.server.close()


# -- an append whose first request is executed after the repeated one -------------------------------------------


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("shape", ["one", "many", "pending"])
def test_an_append_that_arrives_after_its_repeat_is_stored_once(bench: Bench, shape: str, meanwhile: str):
    # Given an append whose first request hangs somewhere, so that the client repeated it
    bench.hold_back("buffers/append")
    if shape == "one":
        done = bench.buffer.append(USER, "text")
    elif shape == "many":
        done = bench.buffer.extend(USER, ["text", "more", "most"])
    else:
        done = bench.buffer.append(USER, "text", pending=["picture"])
        assert bench.buffer.resolve(USER, done.id, "picture", b"png")
    assert bench.held_back
    assert not done.replayed
    # when this happens to the message, and then the first request arrives
    MEANWHILE[meanwhile](bench)
    before = bench.stored()
    reply = bench.deliver()
    # expect that it changes nothing
    assert reply[0] == b"replayed", "the message was stored a second time"
    assert bench.stored() == before


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_repeat_of_an_append_that_was_executed_stores_nothing(bench: Bench, meanwhile: str):
    # Given a stored message
    script = bench.hf._core.scripts.get("buffers/append")
    keys, args = (bench.place.key,), ("opid0001", bench.place.user, bench.buffer._spec.limits_of_one)
    payload = b"\x00" + encode("text", 1000)
    assert bench.call(script.name, keys, *args, payload)[0] == b"stored"
    # when this happens, and the repeat comes, and comes again
    MEANWHILE[meanwhile](bench)
    before = bench.stored()
    for _ in range(2):
        assert bench.call("buffers/reappend", keys, *args, payload)[0] == b"replayed"
    assert bench.stored() == before


def test_a_repeat_is_known_also_when_the_record_vanished(bench: Bench):
    """The list that holds a user's record ends with its last message: the mark must not end with it."""
    bench.hold_back("buffers/append")
    bench.buffer.append(USER, "text")
    bench.take().ack()
    assert not bench.server.exists(bench.place.key)
    assert bench.deliver()[0] == b"replayed"
    assert not bench.server.exists(bench.place.key)
    # also when the index was looked at meanwhile, and other users came and went
    bench.elsewhere.append("somebody else", "x")
    assert bench.deliver()[0] == b"replayed"


def test_a_conversation_turn_is_added_once(bench: Bench):
    for meanwhile in (nothing, taken, acked):
        bench.elsewhere.forget(USER)
        bench.buffer.append(USER, "text")
        bench.hold_back("buffers/converse")
        bench.buffer.converse(USER, "how are you?", "well")
        meanwhile(bench)
        before = bench.buffer.stats(USER).pairs
        bench.deliver()
        assert bench.buffer.stats(USER).pairs == before, f"the turn was added a second time ({meanwhile.__name__})"


# -- acknowledgements ----------------------------------------------------------------------------------------


def test_an_acknowledgement_that_arrives_again_changes_nothing(bench: Bench):
    # Given a batch that was acknowledged by a repeated request
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER)
    bench.hold_back("buffers/ack")
    assert batch.ack() == 0
    assert batch.done
    # when new messages wait, and the first request arrives, twice
    bench.elsewhere.append(USER, "new")
    for _ in range(2):
        assert bench.deliver() == [b"acked", 0, 0]
    # expect
    assert [m.data for m in bench.elsewhere.peek(USER)] == ["new"]
    assert bench.counts()["absorbed"] == 1
    assert bench.counts()["batches"] == 1


def test_a_late_acknowledgement_leaves_a_newer_batch_alone(bench: Bench):
    """Pitfall 26: acknowledging an old batch must not delete the newer one."""
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER)
    bench.hold_back("buffers/ack")
    batch.ack()
    bench.elsewhere.append(USER, "new")
    newer = bench.take()
    assert bench.deliver() == [b"acked", 0, 0]
    assert bench.buffer.stats(USER).in_flight == 1
    assert bench.buffer.stats(USER).held
    assert newer.ack() == 0
    assert bench.counts()["absorbed"] == 2


def retaken(b: Bench):
    """A batch whose lease ended, taken again by somebody else."""
    b.buffer.extend(USER, ["one", "two"])
    old = b.buffer.take(USER, lease=0.2, max_hold=0.1)
    until_blocking(lambda: not b.elsewhere.stats(USER).held, what="the end of the lease")
    return old, b.take()


def test_whoever_lost_a_batch_cannot_acknowledge_it(bench: Bench):
    old, new = retaken(bench)
    assert (new.id, new.attempt) == (old.id, old.attempt + 1)
    assert new.fence > old.fence
    with pytest.raises(LeaseLost):
        old.ack()
    args = (bench.place.user, bench.place.base, old._taking.hold.token, old.fence)
    assert bench.call("buffers/ack", (bench.place.key,), *args) == [b"not_held"]
    stats = bench.buffer.stats(USER)
    assert (stats.in_flight, stats.held, stats.fence) == (2, True, new.fence)
    assert "absorbed" not in bench.counts()
    assert new.ack() == 0


def test_whoever_lost_a_batch_cannot_acknowledge_a_part_of_it(bench: Bench):
    old, new = retaken(bench)
    first = bytes.fromhex(old.messages[0].id)
    args = (bench.place.user, bench.place.base, old._taking.hold.token, old.fence, first)
    assert bench.call("buffers/ack", (bench.place.key,), *args) == [b"not_held"]
    assert bench.buffer.stats(USER).in_flight == 2
    assert new.ack([first.hex()]) == 1
    # once more, by its holder: that one is gone already, the other stays
    assert new.ack([first.hex()]) == 1
    assert new.ack() == 0
    assert bench.counts()["absorbed"] == 2


def test_a_partial_acknowledgement_that_arrives_after_its_batch_ended_changes_nothing(bench: Bench):
    bench.buffer.extend(USER, ["one", "two"])
    batch = bench.buffer.take(USER)
    bench.hold_back("buffers/ack")
    assert batch.ack([batch.messages[0].id]) == 1
    batch.nack()
    again = bench.take()
    assert [m.data for m in again.messages] == ["two"]
    assert again.id == batch.id
    assert bench.deliver() == [b"not_held"]
    assert bench.buffer.stats(USER).in_flight == 1
    assert again.ack() == 0
    bench.elsewhere.append(USER, "new")
    assert bench.deliver() == [b"not_held"]
    assert bench.buffer.count(USER) == 1


# -- giving back ---------------------------------------------------------------------------------------------


def test_a_late_nack_does_not_take_the_batch_from_its_next_holder(bench: Bench):
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER)
    bench.hold_back("buffers/nack")
    assert batch.nack() is False
    again = bench.take()
    assert again.attempt == 2
    assert again.id == batch.id
    assert bench.deliver() == [b"not_held"]
    assert bench.buffer.stats(USER).held
    assert again.ack() == 0


def test_a_nack_that_arrives_twice_counts_once(bench: Bench):
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER)
    bench.hold_back("buffers/nack")
    batch.nack(delay=30.0)
    free_in = bench.buffer.stats(USER).free_in
    assert bench.deliver() == [b"not_held"]
    assert 0 < bench.buffer.stats(USER).free_in <= free_in
    assert bench.buffer.stats(USER).attempt == 1


def test_a_late_nack_of_an_acknowledged_batch_changes_nothing(bench: Bench):
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER)
    args = (bench.place.user, bench.place.base, batch._taking.hold.token, batch._taking.id, 0, 5, "")
    batch.ack()
    bench.buffer.append(USER, "new")
    newer = bench.take()
    for which in (batch._taking.id, 0):  # 0: whichever this token holds
        assert bench.call("buffers/nack", (bench.place.key,), *args[:3], which, *args[4:]) == [b"not_held"]
    assert bench.buffer.stats(USER).held
    newer.ack()


# -- leases --------------------------------------------------------------------------------------------------


def renewed(b: Bench, token: str, ms: int = 30_000) -> int:
    return b.call("buffers/renew", (b.place.shard.due, b.place.key), token, ms)[2]


def test_a_late_renewal_neither_revives_a_batch_nor_touches_the_next(bench: Bench):
    old, new = retaken(bench)
    before = bench.buffer.stats(USER).free_in
    assert renewed(bench, old._taking.hold.token, 3_600_000) == 0
    after = bench.buffer.stats(USER)
    assert after.held
    assert after.free_in <= max(before, 30.0)
    assert after.fence == new.fence
    assert renewed(bench, new._taking.hold.token) == 1
    token = new._taking.hold.token
    new.ack()
    assert renewed(bench, token) == 0
    assert not bench.server.exists(bench.place.key), "a renewal made the record again"


def test_a_late_renewal_does_not_hold_what_was_given_back(bench: Bench):
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER)
    batch.nack()
    assert renewed(bench, batch._taking.hold.token) == 0
    assert bench.take().attempt == 2


def test_a_late_renewal_after_the_deadline_is_refused_although_nobody_took_it(bench: Bench):
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER, lease=0.2, max_hold=0.1)
    until_blocking(lambda: not bench.elsewhere.stats(USER).held, what="the end of the lease")
    assert renewed(bench, batch._taking.hold.token) == 0
    assert not bench.elsewhere.stats(USER).held


def test_a_take_that_is_repeated_with_its_token_answers_the_same_batch(bench: Bench):
    bench.buffer.extend(USER, ["one", "two"])
    args = (bench.place.user, bench.place.base, "t.1", 30_000, 1, 5)
    first = bench.call("buffers/take", (bench.place.key,), *args)
    again = bench.call("buffers/take", (bench.place.key,), *args)
    assert again[:5] == first[:5]
    assert again[8] == first[8]
    with pytest.raises(NotAcquired):
        bench.buffer.take(USER)
    assert bench.buffer.stats(USER).attempt == 1


def test_a_take_that_arrives_after_its_repeat_changes_nothing_for_its_holder(bench: Bench):
    bench.buffer.append(USER, "text")
    bench.hold_back("buffers/take")
    batch = bench.buffer.take(USER)
    reply = bench.deliver()
    assert reply[0] == b"taken"
    assert reply[2] == int(batch.id)
    assert reply[4] == 1
    assert batch.ack() == 0


def test_a_take_that_arrives_when_its_caller_is_gone_holds_for_one_lease_only(bench: Bench):
    """Nobody knows of that batch any more. It comes free with its lease, as the same batch."""
    bench.buffer.append(USER, "text")
    bench.hold_back("buffers/take")
    batch = bench.buffer.take(USER, lease=0.3)
    batch.ack()
    bench.buffer.append(USER, "new")
    reply = bench.deliver()
    assert reply[0] == b"taken"
    until_blocking(lambda: not bench.elsewhere.stats(USER).held, within=2, what="the end of the lease")
    again = bench.take()
    assert (again.id, again.attempt, [m.data for m in again.messages]) == (str(reply[2]), 2, ["new"])


# -- claims --------------------------------------------------------------------------------------------------


def claim_args(b: Bench, token: str, lease: int = 30_000):
    return (b.place.base, token, lease, 100, 5, "worker.1")


def test_a_claim_whose_reply_was_lost_is_found(bench: Bench):
    bench.buffer.append(USER, "text")
    bench.buffer.flush(USER)
    due = (bench.place.shard.due,)
    claimed = bench.call("buffers/claim", due, *claim_args(bench, "t.1"))
    assert claimed[0] == b"taken"
    found = bench.call("buffers/find", due, bench.place.base, "t.1", 30_000)
    assert found[:5] == claimed[:5]
    assert found[8] == claimed[8]
    assert bench.call("buffers/find", due, bench.place.base, "t.2", 30_000) == [b"nothing"]
    assert bench.buffer.stats(USER).attempt == 1


def test_a_claim_that_is_found_after_its_lease_is_not_given_to_two(bench: Bench):
    bench.buffer.append(USER, "text")
    bench.buffer.flush(USER)
    due = (bench.place.shard.due,)
    assert bench.call("buffers/claim", due, *claim_args(bench, "t.1", 50))[0] == b"taken"
    until_blocking(lambda: not bench.buffer.stats(USER).held, what="the end of the lease")
    assert bench.call("buffers/find", due, bench.place.base, "t.1", 50) == [b"nothing"]
    again = bench.take()
    assert again.attempt == 2
    assert bench.call("buffers/find", due, bench.place.base, "t.1", 3_600_000) == [b"nothing"]
    assert again.ack() == 0


def test_a_claim_that_arrives_after_nobody_found_it_comes_free_with_its_lease(bench: Bench):
    bench.buffer.append(USER, "text")
    bench.buffer.flush(USER)
    due = (bench.place.shard.due,)
    assert bench.call("buffers/find", due, bench.place.base, "t.1", 200) == [b"nothing"]
    assert bench.call("buffers/claim", due, *claim_args(bench, "t.1", 200))[0] == b"taken"
    until_blocking(lambda: not bench.buffer.stats(USER).held, within=2, what="the end of the lease")
    reply = bench.call("buffers/claim", due, *claim_args(bench, "t.2"))
    assert reply[0] == b"taken"
    assert reply[4] == 2


# -- answers after a lost reply ------------------------------------------------------------------------------
# The first request was executed and its reply was lost: the caller must learn what happened, or that it is unknown.


def answer(function):
    """What the caller is told; an error is an answer too."""
    try:
        return function()
    except HoldfastError as error:
        return type(error).__name__


def test_clear_says_how_many_it_removed_although_its_reply_was_lost(bench: Bench):
    bench.buffer.extend(USER, ["one", "two"])
    bench.lose_reply("buffers/clear")
    assert answer(lambda: bench.buffer.clear(USER)) in (2, "Indeterminate")
    assert bench.counts()["cleared"] == 2


def test_nack_says_that_it_buried_although_its_reply_was_lost(bench: Bench):
    bench.buffer.append(USER, "text")
    batch = bench.buffer.take(USER, max_attempts=1)
    bench.lose_reply("buffers/nack")
    assert answer(lambda: batch.nack(error="test")) in (True, "Indeterminate")
    assert len(bench.buffer.dead_letters()) == 1


@pytest.mark.parametrize("how", ["replay", "purge"])
def test_a_dead_letter_is_answered_for_although_the_reply_was_lost(bench: Bench, how: str):
    bench.buffer.append(USER, "text")
    buried(bench)
    letter = bench.buffer.dead_letters()[0].id
    bench.lose_reply("buffers/revive")
    assert answer(lambda: getattr(bench.buffer, how)(letter)) in (1, "Indeterminate")
    assert bench.counts()["replayed" if how == "replay" else "purged"] == 1
    assert bench.buffer.dead_letters() == []


def test_resolve_is_answered_for_although_the_reply_was_lost(bench: Bench):
    done = bench.buffer.append(USER, "text", pending=["picture"])
    bench.lose_reply("buffers/settle")
    assert bench.buffer.resolve(USER, done.id, "picture", b"png") is True
    assert bench.take().messages[0].attachments == {"picture": b"png"}

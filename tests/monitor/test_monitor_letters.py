"""What could not be told is kept, can be told once more or thrown away; and everything has its bounds."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from monitor_desk import BASE, Desk, Desks, log_ids, matched, queue, states

from holdfast import ConfigurationError, Holdfast, HoldfastError, QueueFull, ServerFull, Subscriber
from holdfast.engine.payload import encode
from holdfast.events import Dropped
from holdfast.monitor import flows
from holdfast.testing import LocalServer
from support.actors import AsyncActor
from support.mutants import Edited

EAR = Subscriber("ear", "call", "ear", first=True)
EAST = Subscriber("east", "webhook", "https://example.com", first=True)


async def ear(desk: Desk) -> Desk:
    await desk.enlist(EAR)
    return desk


async def see(desk: Desk, *values: Any, who: Subscriber = EAR) -> list[str]:
    """Observed and put into the queue, each in one message if nothing else is done. Answers the ids."""
    seen = await desk.observe_many([("web", "a", value) for value in values])
    await desk.read(who)
    return [one.change for one in seen]


# -- dead letters -----------------------------------------------------------------------------------------------------


async def test_a_dead_letter_has_what_was_not_told_and_why(desks: Desks):
    desk = await ear(await desks.desk())
    ids = await see(desk, {"n": 1}, {"n": 2})
    telling = await desk.taken(calls=("ear",))
    assert await desk.done(telling, "again")
    telling = await desk.taken(calls=("ear",))
    assert await desk.done(telling, "dead", error="it said no")
    (letter,) = await desk.dead_letters()
    assert (letter.subscriber, letter.error, letter.attempts) == ("ear", "it said no", 2)
    assert [change.id for change in letter.changes] == ids
    assert list(letter.changes) == telling.changes
    assert letter.at > 1_600_000_000
    status = await desk.status()
    assert (status.dead_letters, status.waiting, status.failing) == (1, {"ear": 0}, {"ear": 2})


async def test_a_replay_comes_after_what_waits_with_the_same_changes(desks: Desks):
    desk = await ear(await desks.desk())
    first = await see(desk, 1, 2)
    (dead,) = await desk.tell("dead", calls=("ear",))
    more = await see(desk, 3, 4)
    (letter,) = await desk.dead_letters()
    assert await desk.replay(letter.id) == 2
    assert await desk.dead_letters() == []
    (telling,) = await desk.tell(calls=("ear",))
    assert [change.id for change in telling.changes] == [*more, *first]
    assert telling.changes[2:] == dead.changes
    assert (await desk.status()).failing == {}
    assert await desk.replay(letter.id) == 0


async def test_a_replay_alone_has_the_id_it_had(desks: Desks):
    """A receiver that did accept it knows it again."""
    desk = await ear(await desks.desk())
    await see(desk, 1, 2)
    (dead,) = await desk.tell("dead", calls=("ear",))
    (letter,) = await desk.dead_letters()
    await desk.replay(letter.id)
    (telling,) = await desk.tell(calls=("ear",))
    assert (telling.first, telling.number, telling.changes) == (dead.first, dead.number, dead.changes)
    assert (telling.attempt, telling.failures) == (1, 0)


async def test_a_replay_that_fails_is_a_dead_letter_again(quick: Desks):
    desk = await ear(await quick.desk())
    ids = await see(desk, 1)
    for _ in range(3):
        await desk.tell("dead", calls=("ear",))
        (letter,) = await desk.dead_letters()
        assert [change.id for change in letter.changes] == ids
        await desk.replay(letter.id)
    assert len(await desk.tell(calls=("ear",))) == 1
    assert await desk.dead_letters() == []


async def test_a_letter_outlives_the_log(quick: Desks):
    desk = await ear(await quick.desk(backlog=10))
    ids = await see(desk, 1)
    await desk.tell("dead", calls=("ear",))
    for number in range(12):
        await see(desk, f"more {number}")
        await desk.tell(calls=("ear",))
    assert ids[0] not in log_ids(quick.server)
    (letter,) = await desk.dead_letters()
    await desk.replay(letter.id)
    (telling,) = await desk.tell(calls=("ear",))
    assert states([telling]) == [1]


async def test_purged_is_gone(desks: Desks):
    desk = await ear(await desks.desk())
    for number in range(3):
        await see(desk, number)
        await desk.tell("dead", calls=("ear",))
    letters = await desk.dead_letters()
    assert [states([one]) for one in letters] == [[0], [1], [2]]
    assert await desk.purge(letters[1].id)
    assert not await desk.purge(letters[1].id)
    assert await desk.dead_letters() == [letters[0], letters[2]]
    assert await desk.dead_letters(1) == [letters[0]]
    assert await desk.dead_letters(5, after=letters[0].id) == [letters[2]]
    assert await desk.tell(calls=("ear",)) == []


async def test_a_letter_of_one_who_is_gone_stays_until_it_is_purged(quick: Desks):
    desk = await ear(await quick.desk())
    await see(desk, 1)
    await desk.tell("dead", calls=("ear",))
    await desk.unsubscribe("ear")
    (letter,) = await desk.dead_letters()
    with pytest.raises(ConfigurationError, match="subscribe 'ear' again before you replay this, or purge it"):
        await desk.replay(letter.id)
    assert await desk.dead_letters() == [letter]
    await desk.enlist(EAR)
    assert await desk.replay(letter.id) == 1
    (telling,) = await desk.tell(calls=("ear",))
    assert states([telling]) == [1]


async def test_a_letter_that_cannot_be_read_hides_no_other(quick: Desks):
    desk = await ear(await quick.desk())
    for number in (1, 2):
        await see(desk, number)
        await desk.tell("dead", calls=("ear",))
    server = quick.server
    (one, fields), *_ = server.xrange(f"{BASE}dead")
    broken = {name: value.replace(encode(1, 100), b"\x02?") for name, value in fields.items()}
    server.xadd(f"{BASE}dead", broken, id=f"{int(one.split(b'-')[0]) + 9_000_000}-0")
    found = await desk.dead_letters()
    assert [states([letter]) for letter in found] == [[1], [2], []]
    assert await desk.purge(found[2].id)


async def test_dead_letters_are_bounded_and_counted(quick: Desks, monkeypatch: pytest.MonkeyPatch):
    assert flows.LETTERS == 10_000
    monkeypatch.setattr(flows, "LETTERS", 3)
    desk = await ear(await quick.desk())
    events: list[Any] = []
    desk.hf.observe(events.append)
    for number in range(5):
        await see(desk, number)
        await desk.tell("dead", calls=("ear",))
    assert [states([one]) for one in await desk.dead_letters()] == [[2], [3], [4]]
    dropped = [event for event in events if isinstance(event, Dropped)]
    assert [(event.what, event.reason, event.count) for event in dropped] == [("dead letter", "capacity", 1)] * 2


# -- queues -----------------------------------------------------------------------------------------------------------

SHORT = ("monitor/_log", "local QUEUE_MOST = 10000", "local QUEUE_MOST = 5")


async def test_a_queue_drops_the_oldest_but_not_what_is_being_told(quick: Desks):
    # Given a queue with room for five, of which two are being told
    desk = await ear(await quick.desk())
    desk.hf._core.scripts = Edited([SHORT])
    events: list[Any] = []
    desk.hf.observe(events.append)
    two = await see(desk, 1, 2)
    telling = await desk.taken(calls=("ear",))
    # when eight more come
    await see(desk, 3, 4, 5)
    rest = await see(desk, *range(6, 11))
    # expect that the oldest went which nobody tells, and that it was counted
    assert queue(quick.server, "ear") == [*two, *rest[-3:]]
    dropped = [event for event in events if isinstance(event, Dropped)]
    assert sum(event.count for event in dropped) == 5
    assert {(event.what, event.reason) for event in dropped} == {("change", "queue full")}
    # and that telling goes on with the rest
    assert await desk.done(telling)
    (telling,) = await desk.tell(calls=("ear",))
    assert states([telling]) == [8, 9, 10]


async def test_one_who_does_not_listen_costs_others_nothing(quick: Desks):
    desk = await ear(await quick.desk())
    desk.hf._core.scripts = Edited([SHORT])
    for number in range(20):
        await desk.observe("web", "a", number)
        await desk.read(EAR, EAST)
        (telling,) = await desk.tell()  # only this one listens
        assert (telling.subscriber, states([telling])) == ("east", [number])
    assert len(queue(quick.server, "ear")) == 5


async def test_a_message_has_a_megabyte_at_most(quick: Desks):
    desk = await ear(await quick.desk())
    await see(desk, *(f"{number}" * 200_000 for number in range(6)))
    told = []
    while found := await desk.tell(calls=("ear",)):
        sizes = [len(change.after) + len(change.before or "") for change in found[0].changes]
        assert len(sizes) == 1 or sum(sizes) < 1_048_576
        told += [change.after[0] for change in found[0].changes]
    assert told == list("012345")


async def test_what_was_read_for_one_who_has_unsubscribed_meanwhile_is_read_anew(quick: Desks):
    desk = await ear(await quick.desk())
    await desk.observe("web", "a", 1)
    page = await desk.peek()
    await desk.unsubscribe("ear")
    assert not await desk.pump(page, matched(page, EAR, EAST))
    assert queue(quick.server, "ear") == queue(quick.server, "east") == []
    assert [change.after for change in await desk.read(EAST)] == [1]
    assert len(queue(quick.server, "east")) == 1


# -- the log ----------------------------------------------------------------------------------------------------------


async def test_the_log_loses_only_what_all_readers_have_seen(desks: Desks):
    # Given a log with room for ten, and two kinds of readers
    desk = await desks.desk(backlog=10)
    await desk.peek(reader="history")
    await desk.peek()
    await desk.observe_many([("web", number, "old") for number in range(10)])
    await desk.read(EAST)
    # when one of them has read everything and the other nothing
    with pytest.raises(QueueFull):
        await desk.observe("web", 0, "new")
    # and then three
    page = await desk.peek(3, reader="history")
    assert await desk.flow(flows.pump, "history", desk.token, page, ())
    with pytest.raises(QueueFull) as full:
        await desk.observe_many([("web", number, "new") for number in range(5)])
    # expect that there is room for three
    assert [one.outcome for one in full.value.observed] == ["changed"] * 3 + ["full"] * 2
    assert (await desk.status()).changes == 10


async def test_a_smaller_backlog_throws_nothing_away_that_was_not_read(quick: Desks):
    large, small = await quick.desk(backlog=100), await quick.desk(backlog=10)
    await large.observe_many([("web", number, "old") for number in range(50)])
    assert len(await large.read(EAST, count=20)) == 20
    ids = log_ids(quick.server)
    # when one with a smaller backlog observes
    with pytest.raises(QueueFull):
        await small.observe_many([("web", number, "new") for number in range(30)])
    # expect that what was not read is all there
    assert set(ids[20:]) <= set(log_ids(quick.server))
    assert [change.after for change in await large.read(EAST)][:30] == ["old"] * 30
    # and that it gets as small as it should be
    for number in range(60):
        await small.observe("web", "more", number)
        await small.read(EAST)
    assert len(log_ids(quick.server)) <= 11


async def test_history_that_nobody_keeps_any_more_holds_up_nobody(quick: Desks):
    clock = quick.drive()
    desk = await quick.desk(backlog=10)
    await desk.peek(reader="history")
    for number in range(10):
        clock.move(1)
        await desk.observe("web", "a", number)
        await desk.read(EAST)
    clock.move(1)
    with pytest.raises(QueueFull):
        await desk.observe("web", "a", "more")
    clock.move(86_400)
    assert (await desk.observe("web", "a", "more")).outcome == "changed"


async def test_a_process_that_does_not_know_the_store_leaves_the_log_to_those_who_do(quick: Desks):
    clock = quick.drive()
    desk = await quick.desk()
    await desk.observe("web", "a", 1)
    await desk.peek(reader="history")
    args = ("deliver", desk.token, 10, 15.0)
    assert await desk.flow(flows.peek, *args, False) is None
    # but not for ever, when nobody with a store is there any more
    clock.move(30 * 86_400 + 1)
    page = await desk.flow(flows.peek, *args, False)
    assert states([page]) == [1]


# -- a full server ----------------------------------------------------------------------------------------------------


async def test_a_full_server_refuses_what_adds_and_lets_what_waits_be_told():
    with LocalServer() as server, closing(server.client()) as admin:
        async with Holdfast(server.url) as hf:
            desk = Desk(AsyncActor(hf))
            await desk.enlist(EAR)
            ids = await see(desk, 1, 2)
            admin.config_set("maxmemory", 1)
            # when the server has no memory left: nothing is found that could not be told
            with pytest.raises(ServerFull):
                await desk.observe("web", "a", 3)
            # expect that what waits can be told, and that dead letters can be looked at and thrown away
            telling = await desk.taken(calls=("ear",))
            assert [change.id for change in telling.changes] == ids
            assert await desk.done(telling, "dead")
            (letter,) = await desk.dead_letters()
            assert await desk.purge(letter.id)
            assert await desk.get("web", "a") == 2
            admin.config_set("maxmemory", 0)
            assert (await desk.observe("web", "a", 3)).before == 2
            await desk.actor.stop()


# -- every key ends ---------------------------------------------------------------------------------------------------


async def test_every_key_has_a_life_also_while_things_are_under_way(desks: Desks):
    desk = await ear(await desks.desk(window=60))
    await desk.observe_many([("web", number, "x") for number in range(3)])
    for value in ("a", "b", "a", "b"):
        await desk.observe("web", "w", value)
    await desk.read(EAR, EAST)
    assert len((await desk.take(calls=("ear",))).tellings) == 2
    await desk.peek()
    await desk.unsubscribe("nobody")
    keys = desks.backend.keys()
    kinds = {key.removeprefix(BASE).split(":")[0] for key in keys}
    assert {"s", "log", "seq", "cur", "code", "subs", "q", "d", "due", "call", "wait"} <= kinds
    assert not [key for key, life in keys.items() if life < 0]
    # also after a replay of one who was forgotten
    for telling in (await desk.take(calls=("ear",), lease=0.001)).tellings:
        await desk.done(telling, "dead")


async def test_a_replay_of_one_that_the_server_forgot_has_a_life_too(quick: Desks):
    desk = await ear(await quick.desk())
    await see(desk, 1)
    await desk.tell("dead", calls=("ear",))
    (letter,) = await desk.dead_letters()
    quick.server.delete(f"{BASE}d:ear")
    await desk.replay(letter.id)
    await desk.taken(calls=("ear",))
    assert not [key for key, life in quick.backend.keys().items() if life < 0]


@pytest.mark.parametrize("outcome", ["told", "again", "dead", "later", "back"])
async def test_whoever_lost_its_turn_changes_nothing(quick: Desks, outcome: str):
    """A worker that comes back after its time was over."""
    desk = await ear(await quick.desk())
    ids = await see(desk, 1, 2)
    late = await desk.taken(calls=("ear",))
    quick.server.zadd(f"{BASE}call:ear", {"ear": 0})  # its time is over
    now = await desk.taken(calls=("ear",))
    assert (now.attempt, now.first, now.number, now.changes) == (2, late.first, late.number, late.changes)
    before = {key: quick.server.dump(key) for key in quick.server.keys(f"{BASE}*")}
    assert not await desk.done(late, outcome)
    assert {key: quick.server.dump(key) for key in quick.server.keys(f"{BASE}*")} == before
    assert queue(quick.server, "ear") == ids
    assert await desk.done(now)
    with pytest.raises(HoldfastError, match="pass"):
        await desk.dead_letters(0)

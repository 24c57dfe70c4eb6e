"""PITFALLS 38, 41, 42 and 43 for monitors. Each check holds, and fails with the bug put back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from monitor_desk import BASE, NAME, Post, matched, states

from holdfast import Delivery, HoldfastError, QueueFull, Subscriber
from holdfast.events import NotDelivered
from holdfast.monitor import flows, worker
from holdfast.monitor.flows import Round, Telling
from holdfast.monitor.worker import MonitorWorker
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, patch

cases = Pitfalls()
ALL = Subscriber("all", "webhook", "https://example.com", first=True)


class Hand:
    """A client whose steps as a worker are done by the test."""

    def __init__(self, hf: Any, **options: Any) -> None:
        self.hf = hf
        self.monitor = hf.monitor(NAME, **options)

    async def flow(self, make: Any, *args: Any) -> Any:
        return await self.hf._open.run(make(self.hf._core, self.monitor._spec, *args))

    async def read(self) -> None:
        page = await self.flow(flows.peek, "deliver", self.hf._core.client_id, 100, 15.0, True)
        if page is not None and page.begin != page.end:
            await self.flow(flows.pump, "deliver", self.hf._core.client_id, page, matched(page, ALL))

    async def take(self, lease: float = 15.0) -> list[Telling]:
        found: Round = await self.flow(flows.take, (), True, 10, 5, lease)
        return found.tellings

    async def told(self) -> list[Any]:
        """All that is due now, and accepted."""
        await self.read()
        heard = []
        for telling in await self.take():
            heard += states([telling])
            await self.flow(flows.done, telling, "told", 0.0)
        return heard


async def hand(world: World, **options: Any) -> Hand:
    return Hand(await world.client(), **options)


async def post(world: World, **options: Any) -> Post:
    return Post(await world.client(drain=0.5), **options)


async def works(world: World, made: Post) -> None:
    made.working = world.start(made.hf.work())
    await made.listens()


# -- 38: marked before it is sent -------------------------------------------------------------------------------------


@cases.pitfall(
    38,
    marked_when_it_is_taken=lua(
        "monitor/take", "  call('ZADD', list, now + lease, who)\n",
        "  call('LTRIM', queue, count, -1)\n  call('HSET', state, 'count', 0)\n  call('ZREM', list, who)\n",
    ),
)  # fmt: skip
async def a_worker_that_dies_before_it_sends_loses_nothing(world: World):
    one, two = await hand(world), await hand(world)
    await one.monitor.observe("web", "a", 1)
    await one.read()
    (mine,) = await one.take()  # and then it dies
    assert states([mine]) == [1]
    world.redis().zadd(f"{BASE}due", {"all": 1}, xx=True)  # its time is over
    heard = [change.after for telling in await two.take() for change in telling.changes]
    assert heard == [1], f"PITFALL 38: marked as told before it was sent, and never sent ({heard})"


@cases.pitfall(
    38,
    read_on_before_they_are_in_the_queues=lua(
        "monitor/peek", "call('SET', lock, ARGV[3], 'PX', ARGV[5])",
        "call('HSET', base_key('cur'), ARGV[2], string.sub(changes[#changes][1], 1, -3))",
    ),
)  # fmt: skip
async def a_reader_that_dies_with_what_it_has_read_loses_nothing(world: World):
    one, two = await hand(world), await hand(world)
    await one.monitor.observe("web", "a", 1)
    page = await one.flow(flows.peek, "deliver", "one", 100, 15.0, True)
    assert states([page]) == [1]  # and then it dies
    world.redis().delete(f"{BASE}p:deliver")  # its time is over
    heard = await two.told()
    assert heard == [1], f"PITFALL 38: the reader died, and nobody has what it had read ({heard})"


# -- 41: the state is stored, the change is lost ----------------------------------------------------------------------

_FIRST = """  if not room(most) then return 'full', 0, '' end
  local thing = new_thing(digest, state, ARGV[2])
"""
_STORED_FIRST = """  local thing = new_thing(digest, state, ARGV[2])
  put(i, thing)
  if not room(most) then return 'full', 0, '' end
"""
STORED_BEFORE = lua("monitor/observe", _FIRST, _STORED_FIRST)


@cases.pitfall(41, stored_before_there_is_room=STORED_BEFORE)
async def what_found_no_room_is_found_again(world: World):
    one = await hand(world, backlog=10)
    await one.monitor.observe_many([("web", number, 1) for number in range(10)])
    with pytest.raises(QueueFull):
        await one.monitor.observe("web", "more", 1)
    assert len(await one.told()) == 10
    outcome = (await one.monitor.observe("web", "more", 1)).outcome
    assert outcome == "first", f"PITFALL 41: the queue was full, the state stored, the change lost ({outcome})"
    assert await one.told() == [1]


@cases.pitfall(41, stored_before_it_is_in_the_log=STORED_BEFORE)
async def a_change_that_cannot_be_logged_is_not_known_either(world: World):
    """The script breaks in its middle: there is room in the log, and no number can be had."""
    one, server = await hand(world), world.redis()
    server.rpush(f"{BASE}seq", "not a number")
    with pytest.raises(HoldfastError, match="WRONGTYPE"):
        await one.monitor.observe("web", "a", 1)
    server.delete(f"{BASE}seq")
    outcome = (await one.monitor.observe("web", "a", 1)).outcome
    assert outcome == "first", f"PITFALL 41: the state was stored before the change was durable ({outcome})"
    assert await one.told() == [1]


@cases.pitfall(
    41,
    only_the_state=lua("monitor/_log", "  call('XADD', base_key('log'),", "  type('XADD', base_key('log'),"),
    the_change_later=lua("monitor/observe", "observed, add('f', identity, '', state, observed)", "observed, 0"),
)  # fmt: skip
async def what_was_acknowledged_is_in_the_log_whoever_dies(world: World):
    one, two = await hand(world), await hand(world)
    seen = await one.monitor.observe("web", "a", 1)
    await one.hf.close()
    heard = await two.told()
    assert heard == [1], f"PITFALL 41: {seen.outcome}, the state is stored, and nobody will ever be told ({heard})"


@cases.pitfall(
    41, given_up_without_a_trace=lua("monitor/done", "if outcome == 'dead' then bury() end", ""),
)  # fmt: skip
async def what_was_tried_too_often_can_be_told_once_more(world: World):
    one = await hand(world)
    await one.monitor.observe("web", "a", 1)
    await one.read()
    (telling,) = await one.take()
    await one.flow(flows.done, telling, "dead", 0.0, "no")
    letters = await one.monitor.dead_letters()
    assert [states([letter]) for letter in letters] == [[1]], "PITFALL 41: exhausted retries have lost the change"
    await one.flow(flows.replay, letters[0].id, True)
    assert await one.told() == [1]


# -- 42: what is older comes later ------------------------------------------------------------------------------------


@cases.pitfall(
    42,
    order_of_arrival=lua("monitor/observe", "if observed < seen or (observed == seen and not same)", "if false"),
    only_what_differs_counts=lua("monitor/observe", "call('SETRANGE', KEYS[i], 9, struct.pack('>d', observed))", ""),
)  # fmt: skip
async def an_older_observation_that_comes_later_turns_nothing_back(world: World):
    one, two = await hand(world), await hand(world)
    await one.monitor.observe("web", "a", "old", observed_at=1000)
    await one.monitor.observe("web", "a", "new", observed_at=1010)
    await one.monitor.observe("web", "a", "new", observed_at=1030)
    late = await two.monitor.observe("web", "a", "old", observed_at=1020)
    heard = await one.told()
    assert heard == ["old", "new"], f"PITFALL 42: a reversed change was told: {heard}"
    assert late.outcome == "older"
    assert await one.monitor.get("web", "a") == "new"


@cases.pitfall(
    42, the_last_one_stands=lua("monitor/observe", "or (observed == seen and not same)", ""),
)  # fmt: skip
async def a_copy_with_the_same_time_turns_nothing_back(world: World):
    one = await hand(world)
    for state in ("a", "b", "a", "b", "a"):  # two observers of one moment, each sending again and again
        await one.monitor.observe("web", "x", state, observed_at=1000)
    heard = await one.told()
    assert heard == ["a"], f"PITFALL 42: copies of one moment were told as changes: {heard}"


@cases.pitfall(
    42,
    a_repeat_is_new=lua("monitor/observe", "if not same and told_by(parse_told(text), digest, ARGV[2])", "if false"),
)
async def a_repeat_that_comes_late_turns_nothing_back(world: World):
    """Its reply was lost; before it came again somebody else has seen something newer."""
    one, two = await hand(world), await hand(world)
    await one.monitor.observe("web", "a", 0)
    spec, core = one.monitor._spec, one.hf._core
    operation = core.new_op()
    core._ops.append(operation)
    await one.monitor.observe("web", "a", "mine")
    await two.monitor.observe("web", "a", "newer")
    core._ops.append(operation)  # as the same request that is sent again
    await one.flow(flows.observe, [spec.seen("web", "a", "mine", None)])
    heard = await one.told()
    assert heard == [0, "mine", "newer"], f"PITFALL 42: a repeat has turned it back: {heard}"


# -- 43: retries ------------------------------------------------------------------------------------------------------


def refuses(times: int) -> Any:
    left = [times]

    def answer(delivery: Delivery) -> None:
        if left[0]:
            left[0] -= 1
            raise ValueError("not now")

    return answer


_failed, _serve = MonitorWorker._failed, MonitorWorker._serve


async def all_again(self: Any, subscriber: Any, telling: Any, delivery: Any, *rest: Any) -> None:
    """The bug: one job for a change, and its retry tells everybody."""
    await _failed(self, subscriber, telling, delivery, *rest)
    for other in self._roster.known:
        if other.name != subscriber.name:
            await self._sink(other).send(delivery)


@cases.pitfall(43, the_retry_is_for_all=patch(MonitorWorker, "_failed", all_again))
async def who_accepted_it_is_not_told_again(world: World):
    made = await post(world)
    good, bad = made.hears("good"), made.hears("bad", refuses(2), retry_delay=0.01)
    await works(world, made)
    await made.see(1)
    await until(lambda: len(bad) == 3, within=2, what="PITFALL 43: the retries")
    await until(lambda: good)
    assert len(good) == 1, f"PITFALL 43: the retry for one was sent to {len(good) - 1} who had accepted it"


async def sleeps(self: Any, subscriber: Any, telling: Any, delivery: Any, error: Any, seconds: float) -> None:
    """The bug: the worker waits for the next try."""
    await asyncio.sleep(subscriber.retry_delay)
    await _failed(self, subscriber, telling, delivery, error, seconds)


@cases.pitfall(43, the_worker_sleeps=patch(MonitorWorker, "_failed", sleeps))
async def nobody_waits_for_the_retry_of_another(world: World):
    made = await post(world, workers=1)
    bad = made.hears("bad", refuses(99), retry_delay=5.0, keys=("bad",))
    good = made.hears("good", keys=("good",))
    await works(world, made)
    await made.see(1, key="bad")
    await until(lambda: bad)
    await made.see(1, key="good")
    await until(
        lambda: good, within=1.5, what="PITFALL 43: the retry sleeps inside the worker; the other one's message"
    )


async def from_a_full_pool(self: Any, *args: Any) -> None:
    """The bug: who failed is put back by its worker, which needs a place for it, and all of them are taken."""
    while len(self._telling) >= self._parts.workers:
        await asyncio.sleep(0.01)
    await _failed(self, *args)


@cases.pitfall(43, the_pool_is_full=patch(MonitorWorker, "_failed", from_a_full_pool))
async def many_that_fail_at_once_do_not_lock_up_the_workers(world: World):
    made = await post(world, workers=2)
    bad = [made.hears(f"bad-{number}", refuses(1), retry_delay=0.05) for number in range(4)]
    good = made.hears("good")
    await works(world, made)
    await made.see(1)
    what = "PITFALL 43: all workers want to put something back, and wait for each other; the retries"
    await until(lambda: all(len(one) == 2 for one in bad) and good, within=2, what=what)
    assert len(made.events_of(NotDelivered)) == 4


_take = flows.take


def anew(*args: Any) -> Any:
    """The bug: each attempt is a message of its own."""
    found = yield from _take(*args)
    return found._replace(tellings=[one._replace(number=one.number + one.attempt * 1000) for one in found.tellings])


@cases.pitfall(
    43,
    each_attempt_is_another_message=patch(worker.flows, "take", anew),
    what_came_meanwhile_joins_it=lua(
        "monitor/take", "  if count == 0 then\n    count, attempt =", "  if true then\n    count, attempt ="
    ),
)  # fmt: skip
async def a_retry_is_the_same_message(world: World):
    made = await post(world)
    heard = made.hears("ear", refuses(1), retry_delay=0.05)
    await works(world, made)
    await made.see(1)
    await until(lambda: made.events_of(NotDelivered))
    await made.see(2)
    await until(lambda: 2 in states(heard), within=2, what="PITFALL 43: the second message")
    assert heard[0].id == heard[1].id, "PITFALL 43: the receiver cannot know that it was told again: another id"
    assert heard[0].changes == heard[1].changes, "PITFALL 43: the same id, and other changes"
    assert states(heard) == [1, 1, 2]


@pytest.mark.parametrize("case", cases.holding())
async def test_it_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_with_the_bug_it_is_found(case: Case, backends: Backends):
    await fails(case, backends)

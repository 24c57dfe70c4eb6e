"""The server is stopped, paused or full during a call: raise, allow or deny; counted; it goes on when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from once_desk import Desk, Desks, Held, closing

from holdfast import Decision, Holdfast, Indeterminate, ServerFull, Unavailable
from holdfast.events import Outage, Renewed
from holdfast.testing import FaultProxy, LocalServer
from support.backends import Backend
from support.conditions import until
from support.faults import Plan, install

QUICK = {"call_timeout": 0.15, "connect_timeout": 0.15, "retry_for": 0.3}
POLICIES = ("raise", "allow", "deny")


class Own:
    """A server that can be mistreated, and clients of it."""

    def __init__(self, server: LocalServer, desks: Desks) -> None:
        self.server, self.desks = server, desks

    async def desk(self, **settings: Any) -> Desk:
        desk = await self.desks.desk(url=self.server.url, **QUICK, **settings)
        desk.events = []
        desk.hf.observe(desk.events.append)
        await desk.once("warm", "up")
        return desk

    def begin(self, trouble: str) -> None:
        if trouble == "stopped":
            self.server.kill()
        elif trouble == "paused":
            self.server.pause()
        else:
            self.server.call("CONFIG", "SET", "maxmemory", 100_000)  # what it has is more than it may have

    def end(self, trouble: str) -> None:
        if trouble == "stopped":
            self.server.restart()
        elif trouble == "paused":
            self.server.resume()
        else:
            self.server.call("CONFIG", "SET", "maxmemory", 0)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture
async def own(server: LocalServer, valkey: Backend, api: str) -> AsyncIterator[Own]:
    server.call("FLUSHALL")
    async for desks in closing(Desks(valkey, api)):
        yield Own(server, desks)


# -- what each call says --------------------------------------------------------------------------------------------


async def once(desk: Desk, space: str, policy: str) -> Any:
    return await desk.once(space, "a", on_outage=policy)


async def filter_new(desk: Desk, space: str, policy: str) -> Any:
    return await desk.filter_new(space, ["a", ("b", 1), "a"], on_outage=policy)


async def claim(desk: Desk, space: str, policy: str) -> Any:
    work = desk.body(lambda claim: (claim.state, bool(claim)), space, "a", lease=2.0, wait=5.0, on_outage=policy)
    return await work


async def call(desk: Desk, space: str, policy: str) -> Any:
    made = Held("called")
    made.go.set()

    def charge(key: str) -> Any:
        return made()

    return await desk.calls(charge, space=space, lease=2.0, on_outage=policy)("a"), made.begun


async def check(desk: Desk, space: str, policy: str) -> Any:
    return await desk.gate(space, on_outage=policy).check("a", "A")


async def check_many(desk: Desk, space: str, policy: str) -> Any:
    return await desk.gate(space, on_outage=policy).check_many([("a", "A"), ("b", "A"), ("a", "B")])


Call = Callable[[Desk, str, str], Any]

CALLS: dict[Call, tuple[Any, Any, Any]] = {
    # what it says when it allows, when it denies, and afterwards if nothing was done
    once: (True, False, True),
    filter_new: (["a", ("b", 1), "a"], [], ["a", ("b", 1)]),
    claim: (("allowed", True), ("denied", False), ("mine", True)),
    call: (("called", 1), Unavailable, ("called", 1)),
    check: (Decision(True, "outage"), Decision(False, "outage"), Decision(True, "first")),
    check_many: (
        [Decision(True, "outage")] * 3, [Decision(False, "outage")] * 3,
        [Decision(True, "first"), Decision(True, "first"), Decision(True, "changed", "A")],
    ),
}  # fmt: skip


async def said(work: Any) -> Any:
    try:
        return await work
    except (Unavailable, Indeterminate) as error:
        return error


@pytest.mark.parametrize("trouble", ["stopped", "paused", "full"])
async def test_every_call_says_what_it_was_told_to(own: Own, trouble: str):
    # Given a client for each call and each policy, all of them at once in the same trouble
    asked = {(ask, policy): await own.desk() for ask in CALLS for policy in POLICIES}
    own.begin(trouble)
    try:
        work = [said(ask(desk, f"{ask.__name__}-{policy}", policy)) for (ask, policy), desk in asked.items()]
        answers = dict(zip(asked, await asyncio.gather(*work), strict=True))
    finally:
        own.end(trouble)
    # expect each to say what it was told to, and that to be counted
    for (ask, policy), answer in answers.items():
        wanted = dict(zip(POLICIES, (ServerFull if trouble == "full" else Exception, *CALLS[ask][:2]), strict=True))[
            policy
        ]
        if isinstance(wanted, type):
            assert isinstance(answer, wanted), (ask, policy, answer)
            assert str(answer).split()[0] in ("check", "find", "give", "try"), answer
        else:
            assert answer == wanted, (ask, policy)
        outages = [event for event in asked[ask, policy].events if isinstance(event, Outage)]
        assert {(event.name, event.answer) for event in outages} == {(f"{ask.__name__}-{policy}", policy)}
        assert len(outages) == 1 or ask is check_many
    # The same clients go on, and nothing counts as seen, claimed or told that nobody was told of.
    work = [patient(desk, ask, f"{ask.__name__}-{policy}") for (ask, policy), desk in asked.items()]
    for (ask, policy), again in zip(asked, await asyncio.gather(*work), strict=True):
        assert policy == "allow" or again == CALLS[ask][2], (ask, policy, again)


async def patient(desk: Desk, ask: Call, space: str) -> Any:
    """When the server is back, and whatever was under way in the background is done."""
    answers: list[Any] = []

    async def answered() -> bool:
        await Desks.settled(desk)
        answers.append(await said(ask(desk, space, "raise")))
        return not isinstance(answers[-1], Exception)

    await until(answered, what="an answer")
    return answers[-1]


# -- what was begun before ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trouble", "policy"), [("stopped", "raise"), ("stopped", "allow"), ("paused", "raise")])
async def test_a_confirmation_without_an_answer_is_told(own: Own, trouble: str, policy: str):
    desk = await own.desk()
    claim = await desk.begin("s", "a", lease=0.3, on_outage=policy)
    own.begin(trouble)
    try:
        if policy == "raise":
            with pytest.raises(Indeterminate, match="expect it to be worked on again"):
                await desk.on(claim, "confirm")
        else:
            await desk.on(claim, "confirm")
            assert [event.operation for event in desk.events if isinstance(event, Outage)] == ["once/confirm"]
    finally:
        own.end(trouble)
    # It got through or not; it is not left in between.
    await until(lambda: ended(desk), what="an end")


async def ended(desk: Desk) -> bool:
    return await said(desk.state("s", "a")) in ("mine", "done")


async def test_a_claim_asked_for_in_trouble_is_whole(own: Own):
    """It is granted when the server is back, with all of its lease, however long that took."""
    with FaultProxy("127.0.0.1", own.server.port) as proxy:
        desk = await own.desks.desk(url=proxy.url, call_timeout=0.2, connect_timeout=0.2, retry_for=8)
        await desk.once("warm", "up")
        proxy.refuse()
        proxy.cut()
        held = Held()
        working = desk.body(lambda claim: held(), "s", "a", lease=0.3)
        await asyncio.sleep(0.6)
        proxy.heal()
        held.go.set()
        assert await working == "done"
        assert await desk.state("s", "a") == "done"
        await own.desks.drop(desk)


async def test_one_that_cannot_be_given_back_ends_by_itself(own: Own):
    desk, other = await own.desk(), await own.desk()
    claim = await desk.begin("s", "a", lease=0.4)
    own.begin("paused")
    try:
        await desk.on(claim, "release")  # the work failed already: this is not one more error
    finally:
        own.end("paused")
    assert (await other.begin("s", "a", wait=5)).state == "mine"


async def test_a_claim_survives_an_outage_that_is_shorter_than_its_lease(own: Own):
    desk = await own.desk()
    held = Held()
    working = desk.body(lambda _: held(), "s", "a", lease=1.5)
    await until(lambda: held.begun)
    own.begin("paused")
    await asyncio.sleep(0.4)
    own.end("paused")
    desk.events.clear()
    await until(lambda: any(isinstance(event, Renewed) for event in desk.events), what="a renewal")
    held.go.set()
    assert await working == "done"
    assert await desk.state("s", "a") == "done"


async def test_a_full_server_lets_what_is_there_go_on_and_end(own: Own):
    """PITFALL 47: what frees or keeps works without memory."""
    desk, other = await own.desk(), await own.desk()
    gate = desk.gate("g", 0.05)
    while await gate.reasons("k", "A", "B", "A", "B") != ["first", "changed", "changed", "repeated"]:
        await gate.forget("k")
    done, back = await desk.begin("s", "done", lease=0.4), await desk.begin("s", "back", lease=0.4)
    made: list[int] = []

    def charge(key: str) -> str:
        if not made:
            own.begin("full")
        made.append(1)
        return "charged"

    try:
        assert await desk.calls(charge, space="charge")("a") == "charged"  # it became full while it was at it
        desk.events.clear()
        await until(lambda: sum(isinstance(event, Renewed) for event in desk.events) >= 4, what="renewals")
        assert not done.lost
        await desk.on(done, "confirm")
        await desk.on(back, "release")
        (notice,) = await until(gate.due, what="a notice")
        assert await gate.told(notice)
        assert await gate.due() == []
        assert await desk.forget("warm", "up") == 1
        with pytest.raises(ServerFull):
            await desk.once("s", "new")
    finally:
        own.end("full")
    assert await other.state("s", "done") == "done"
    assert await other.state("s", "back") == "mine"
    assert await other.calls(charge, space="charge")("a") == "charged"
    assert made == [1]
    assert await gate.reasons("k", "B") == ["unchanged"]


# -- a part of a Cluster --------------------------------------------------------------------------------------------


async def test_a_server_that_forgot_its_scripts_is_told_them_again(own: Own):
    """PITFALL 46."""
    desk = await own.desk()
    gate = desk.gate("g", 0.001)
    for number in range(2):
        for ask, (_, _, expected) in CALLS.items():
            own.server.call("SCRIPT", "FLUSH")
            assert await ask(desk, f"{ask.__name__}-{number}", "raise") == expected, ask
        own.server.call("SCRIPT", "FLUSH")
        assert await desk.forget(f"once-{number}", "a") == 1
        own.server.call("SCRIPT", "FLUSH")
        assert await gate.due() == []


async def test_a_mark_that_arrives_late_is_taken_back(own: Own):
    """The server stands still for longer than its caller waits, and executes then what it was sent."""
    desk, other = await own.desk(), await own.desk()
    own.begin("paused")
    try:
        asked = await asyncio.gather(said(desk.once("s", "a", 60)), said(other.filter_new("s", ["b"], 60)))
        assert all(isinstance(answer, Exception) for answer in asked)
        await asyncio.sleep(2 * QUICK["retry_for"])  # all that time nobody can reach it
    finally:
        own.end("paused")
    found: set[Any] = set()

    async def both() -> bool:
        found.update(await desk.filter_new("s", ["a", "b"]))
        return found == {"a", "b"}

    await until(both, within=5, what="both to be new")


@pytest.mark.parametrize("what", ["ids", "states"])
async def test_what_is_being_taken_back_is_taken_back_before_the_client_closes(quick: Desks, what: str):
    desk, other = await quick.two()
    gate = other.gate("g", 600.0)
    await gate.reasons("k", "A", "B", "A")
    install(desk.hf, Plan({0: "cancel after"}, quick.cancel))
    with pytest.raises(quick.cancel):
        await (desk.filter_new("s", ["a", "b"]) if what == "ids" else desk.gate("g", 600.0).check("k", "C"))
    await quick.drop(desk)
    assert await other.filter_new("s", ["a", "b"]) == ["a", "b"]
    assert await gate.reasons("k", "C") == ["changed"]


async def test_only_the_part_that_is_away_counts_as_an_outage(backends: Any):
    """On a Cluster one shard may be unreachable while others answer."""
    backend = backends.get("cluster")
    backend.flush()
    async with Holdfast(backend.url, call_timeout=0.2, retry_for=0.3) as hf:
        gate = hf.gate("g", on_outage="deny")
        keys = [f"k{number}" for number in range(40)]
        assert {d.reason for d in await gate.check_many([(key, "A") for key in keys])} == {"first"}
        nodes = {backend.owner.node_for_slot(slot) for slot in (0, 8000, 16383)}
        away = nodes.pop()
        away.pause()
        try:
            decisions = await gate.check_many([(key, "B") for key in keys])
        finally:
            away.resume()
        assert {d.reason for d in decisions} == {"changed", "outage"}
        # What was answered was told, and what was not is told next.
        again: list[Any] = []

        async def answered() -> bool:
            while working := set(hf._open._background):
                await asyncio.wait(working)
            again[:] = await gate.check_many([(key, "B") for key in keys])
            return all(decision.reason != "outage" for decision in again)

        await until(answered)
        for before, after in zip(decisions, again, strict=True):
            assert before.notify != after.notify, (before, after)

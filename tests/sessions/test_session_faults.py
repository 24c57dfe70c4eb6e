"""At every step of every operation: reply dropped, connection cut, silence, caller cancelled.

Then: each save that returned is there exactly once and in order, life is set, and nothing is without an end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from holdfast import Draft, HoldfastError, Indeterminate, Unavailable
from holdfast.engine.flow import ReplyLost
from holdfast.sync import Holdfast
from support.conditions import until
from support.faults import FAULTS, Plan, every_pair, every_step, install

QUICK = {"call_timeout": 0.3, "retry_for": 2.0}
STOPPED = (asyncio.CancelledError, KeyboardInterrupt)


class Story:
    """A subject whose operations meet the fault, and what it was told about each of its saves."""

    def __init__(self, chat: Any, witness: Any) -> None:
        self.chat, self.witness = chat, witness
        self.returned: list[str] = []
        self.refused: list[str] = []
        self.unknown: list[str] = []

    async def save(self, *words: str, **options: Any) -> None:
        try:
            saved = await self.chat.save_many(
                "s", [Draft(word, **options.pop("draft", {})) for word in words], **options
            )
        except Unavailable:
            self.refused += words
        except (HoldfastError, *STOPPED):
            self.unknown += words
        else:
            self.returned += [word for word, one in zip(words, saved.ids, strict=True) if one is not None]

    async def quietly(self, work: Any) -> Any:
        with contextlib.suppress(HoldfastError, *STOPPED):
            return await work


async def one_save(story: Story) -> None:
    await story.save("a")


async def three_saves(story: Story) -> None:
    for word in "abc":
        await story.save(word)


async def a_batch(story: Story) -> None:
    await story.save("a", "b", "c")
    await story.save("d")


async def a_save_for_a_user(story: Story) -> None:
    await story.save("a", user="me")
    await story.save("b", user="me")


async def a_call_and_its_result(story: Story) -> None:
    await story.save("a", draft={"tool_calls": ["one"]})
    await story.save("b", draft={"tool_call_id": "one"})


async def reads(story: Story) -> None:
    await story.save("a", user="me")
    for work in (story.chat.context("s"), story.chat.count("s"), story.chat.sessions_of("me"), story.chat.touch("s")):
        await story.quietly(work)
    await story.save("b", user="me")


SAVES = {f.__name__: f for f in (one_save, three_saves, a_batch, a_save_for_a_user, a_call_and_its_result, reads)}

INDEXED = ("a_save_for_a_user", "reads")


async def check(story: Story, where: str) -> None:
    found = await story.witness.contents("s")
    for word in story.returned:
        assert found.count(word) == 1, f"{word} is there {found.count(word)} times: {where}"
    for word in story.refused:
        assert word not in found, f"{word} was said not to be stored: {where}"
    for word in story.unknown:
        assert found.count(word) <= 1, f"{word} is there twice: {where}"
    kept = [word for word in found if word in story.returned]
    assert kept == story.returned, f"the order is wrong: {where}"


async def run_with(crew: Any, witness: Any, plan: Plan, operation: str) -> int:
    chat = await crew.chat(settings=QUICK)
    install(chat.actor.hf, plan)
    story = Story(chat, witness)
    await SAVES[operation](story)
    plan.faults = {}
    where = f"{operation} with {plan.hits}"
    # Those who were told that all is well are right, also when everything has settled.
    if crew.api == "async":
        while working := set(chat.actor.hf._open._background):
            await asyncio.wait(working, timeout=5)
    await check(story, where)
    lives = crew.lives()
    assert all(life > 0 for life in lives.values()), f"{lives}: {where}"
    if operation in INDEXED and await witness.count("s"):
        assert await witness.sessions_of("me") == ["s"], f"a session that is not in the index of its user: {where}"
    # The next one goes through.
    await chat.save("s", "next")
    assert (await witness.contents("s"))[-1] == "next", where
    await witness.forget("me")
    await witness.clear("s")
    await chat.actor.stop()
    crew._actors.remove(chat.actor)
    await crew.close_client(chat.actor.hf)
    return len(plan.hits)


def cancel_of(api: str) -> type[BaseException]:
    return asyncio.CancelledError if api == "async" else KeyboardInterrupt


@pytest.mark.parametrize("operation", SAVES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_single_fault(quick, api, operation, fault):
    witness = await quick.chat()
    steps = 0
    for faults in every_step(fault):
        if not await run_with(quick, witness, Plan(faults, cancel_of(api)), operation):
            break
        steps += 1
    assert steps >= 1


PAIRS = [
    ("reply dropped", "reply dropped"),
    ("reply dropped", "cut before"),
    ("reply dropped", "cancel after"),
    ("silent", "reply dropped"),
    ("silent", "silent"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
async def test_every_pair_of_faults(quick, api, pair):
    witness = await quick.chat()

    async def run(faults: dict[int, str]) -> int:
        return await run_with(quick, witness, Plan(faults, cancel_of(api)), "three_saves")

    assert await every_pair(run, *pair, longest=5) >= 3


# -- one fault, looked at closely -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["reply dropped", "silent"])
async def test_a_lost_reply_is_resolved_and_not_reported(quick, fault):
    chat = await quick.chat(settings=QUICK)
    await chat.save("s", "before")
    install(chat.actor.hf, Plan({0: fault}, KeyboardInterrupt))
    saved = await chat.save("s", "a")
    assert saved.count == 2
    assert (await chat.get("s", saved.id)).content == "a"
    assert await chat.contents("s") == ["before", "a"]


@pytest.mark.parametrize("fault", ["reply dropped", "silent"])
async def test_a_lost_reply_at_the_cap_trims_once(quick, fault):
    chat = await quick.chat(max_entries=3, settings=QUICK)
    for word in "abc":
        await chat.save("s", word)
    install(chat.actor.hf, Plan({0: fault}, KeyboardInterrupt))
    await chat.save("s", "d")
    assert await chat.contents("s") == ["b", "c", "d"]


@pytest.mark.parametrize("fault", ["reply dropped", "silent"])
async def test_what_may_have_been_stored_and_trimmed_since_is_not_stored_again(quick, fault):
    """Whether the first request came through cannot be seen any more: that is said, and nothing is stored twice."""
    chat = await quick.chat(max_entries=2, settings=QUICK)
    await chat.save("s", "before")
    with Holdfast(quick.url) as blocking:
        others = blocking.sessions("chat", max_entries=2)

        def lossy(flow):
            first = next(flow)
            if fault == "reply dropped":
                yield first
            for word in "xyz":
                others.save("s", word)
            effect = flow.throw(ReplyLost("lost by the test"))
            while True:
                try:
                    effect = flow.send((yield effect))
                except StopIteration as stop:
                    return stop.value

        driver = chat.actor.hf._open
        real, driver.run = driver.run, lambda flow: real(lossy(flow))
        with pytest.raises(Indeterminate, match="removed since"):
            await chat.save("s", "a")
        driver.run = real
    assert await chat.contents("s") == ["y", "z"]


async def test_an_old_trim_leaves_no_doubt(quick):
    """Only what was trimmed while the save was under way makes it doubtful, not that the session is full."""
    settings = {"call_timeout": 0.1, "retry_for": 0.2}
    chat = await quick.chat(max_entries=2, settings=settings)
    for word in "abc":
        saved = await chat.save("s", word)
    trimmed_at = (await chat.get("s", saved.id)).at
    server = quick.backend.owner.client()
    await until(lambda: server.time()[0] > trimmed_at + 0.5)
    server.close()
    install(chat.actor.hf, Plan({0: "silent"}, KeyboardInterrupt))
    assert (await chat.save("s", "d")).count == 2
    assert await chat.contents("s") == ["c", "d"]


@pytest.mark.parametrize(("user", "kind"), [("me", Unavailable), (None, Indeterminate)])
async def test_a_save_that_gets_no_answer_at_all_says_what_it_knows(quick, user, kind):
    """With a user the index is written first: when that gets no answer, the entry was surely not sent."""
    chat = await quick.chat(settings={"call_timeout": 0.1, "retry_for": 0.3})
    plan = Plan(dict.fromkeys(range(1000), "silent"), KeyboardInterrupt)
    install(chat.actor.hf, plan)
    with pytest.raises(kind) as raised:
        await chat.save("s", "x", user=user)
    assert type(raised.value) is kind
    plan.faults = {}
    assert await chat.count("s") == 0


async def test_pop_last_is_not_repeated(quick):
    chat = await quick.chat(settings=QUICK)
    for word in "abcd":
        await chat.save("s", word)
    await chat.pop_last("s")  # from now on the server knows the script
    install(chat.actor.hf, Plan({0: "reply dropped"}, KeyboardInterrupt))
    with pytest.raises(Indeterminate):
        await chat.pop_last("s")
    assert await chat.contents("s") == ["a", "b"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_forget_can_be_repeated_at_every_step(quick, api, fault):
    witness = await quick.chat()
    for faults in every_step(fault):
        for number in range(3):
            await witness.save(f"s{number}", "x", user="me")
        chat = await quick.chat(settings=QUICK)
        plan = Plan(faults, cancel_of(api))
        install(chat.actor.hf, plan)
        done = False
        with contextlib.suppress(HoldfastError, *STOPPED):
            await chat.forget("me")
            done = True
        plan.faults = {}
        if not done:
            # whatever is left is still in the index
            left = [n for n in range(3) if await witness.count(f"s{n}")]
            assert sorted(await witness.sessions_of("me")) == [f"s{n}" for n in left]
            await chat.forget("me")
        assert [await witness.count(f"s{n}") for n in range(3)] == [0, 0, 0], plan.hits
        assert await witness.sessions_of("me") == []
        if not plan.hits:
            break


async def test_a_session_that_is_saved_while_its_user_is_forgotten_is_forgotten_too(quick):
    chat = await quick.chat()
    await chat.save("s0", "x", user="me")
    with Holdfast(quick.url) as blocking:
        others = blocking.sessions("chat")

        def meanwhile(flow):
            effect = next(flow)
            for step in range(100):
                if step == 2:  # the index was read and the sessions in it were deleted
                    others.save("s1", "x", user="me")
                try:
                    effect = flow.send((yield effect))
                except StopIteration as stop:
                    return stop.value

        driver = chat.actor.hf._open
        real, driver.run = driver.run, lambda flow: real(meanwhile(flow) if flow.__name__ == "forget" else flow)
        assert await chat.forget("me") == 2
        driver.run = real
    assert [await chat.count(s) for s in ("s0", "s1")] == [0, 0]


async def test_a_save_that_is_overtaken_by_forget_is_in_the_index(quick):
    """The session is indexed, then the user is forgotten, then it is stored: the next `forget` must find it."""
    chat = await quick.chat()
    await chat.save("other", "x", user="somebody")  # from now on the server knows the scripts
    with Holdfast(quick.url) as blocking:
        others = blocking.sessions("chat")

        def overtaken(flow):
            effect = flow.send((yield next(flow)))
            assert others.forget("me") == 0
            while True:
                try:
                    effect = flow.send((yield effect))
                except StopIteration as stop:
                    return stop.value

        driver = chat.actor.hf._open
        real, driver.run = driver.run, lambda flow: real(overtaken(flow))
        await chat.save("s", "x", user="me")
        driver.run = real
    assert await chat.count("s") == 1
    assert await chat.sessions_of("me") == ["s"]
    assert await chat.forget("me") == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_clear_and_touch_at_every_step(quick, api, fault):
    witness = await quick.chat(ttl=100)
    for faults in every_step(fault):
        await witness.save("s", "x")
        chat = await quick.chat(settings=QUICK)
        plan = Plan(faults, cancel_of(api))
        install(chat.actor.hf, plan)
        outcome = {}
        for name, work in (("touch", chat.touch("s", ttl=500)), ("clear", chat.clear("s"))):
            outcome[name] = "ended"
            with contextlib.suppress(HoldfastError, *STOPPED):
                outcome[name] = await work
        plan.faults = {}
        if outcome["clear"] is None:
            assert await witness.count("s") == 0
        elif outcome["touch"] is True and await witness.count("s"):
            assert max(quick.lives().values()) > 400_000
        await witness.clear("s")
        if not plan.hits:
            break

"""What short-term memory promises, on every kind of server, on asyncio and on threads."""

from __future__ import annotations

import asyncio

import pytest

import holdfast.sync
from holdfast import ConfigurationError, Draft, Holdfast, InvalidPayload, Sessions, TooLarge
from holdfast.events import Dropped

ODD_IDS = ["a\nb", "{x}", "*", "a:b", "\x00", "\ud800", "e\u0301", "\u00e9", b"\xff\xfe", "%2a", "{other}.7"]


def roles(context):
    return [entry.role for entry in context]


async def exchange(chat, session, number, **options):
    """One turn with a tool call: question, call, result, answer."""
    await chat.save(session, f"q{number}", **options)
    await chat.save(session, None, role="assistant", tool_calls=[{"id": f"call-{number}", "name": "look"}])
    await chat.save(session, f"r{number}", role="tool", tool_call_id=f"call-{number}")
    return await chat.save(session, f"a{number}", role="assistant")


# -- order and content ----------------------------------------------------------------------------------------------


async def test_context_is_the_newest_in_order(crew):
    chat = await crew.chat()
    for number in range(7):
        await chat.save("s", number)
    assert await chat.contents("s") == list(range(7))
    assert await chat.contents("s", 3) == [4, 5, 6]
    assert await chat.contents("s", 7) == await chat.contents("s", 8) == list(range(7))
    assert await chat.count("s") == 7
    assert await chat.contents("nobody") == []
    assert await chat.count("nobody") == 0


async def test_what_is_saved_comes_back_as_it_was(crew):
    chat = await crew.chat()
    values = [
        None,
        True,
        0,
        -(2**70),
        1.5,
        "text \u00e9 \U0001f600 \x00",
        b"\x00\xff",
        [1, ["a"]],
        {"k": {"n": [b"x"]}},
    ]
    for value in values:
        await chat.save("s", value, role="assistant", extra={"name": "x", "n": 1})
    found = await chat.entries("s")
    assert [entry.content for entry in found] == values
    assert {entry.role for entry in found} == {"assistant"}
    assert found[0].message() == {"role": "assistant", "content": None, "name": "x", "n": 1}
    assert found.unreadable == found.newer == 0


async def test_order_is_the_servers_for_everybody(crew):
    # Given three clients that save into one session, each after the other has been answered
    chats = [await crew.chat() for _ in range(3)]
    said = []
    for number in range(12):
        await chats[number % 3].save("s", number)
        said.append(number)
    # expect all of them to see the same order, and times that never go back
    for chat in chats:
        assert await chat.contents("s") == said
    times = [entry.at for entry in await chats[0].entries("s")]
    assert times == sorted(times)
    assert times[0] > 1_000_000_000


async def test_many_at_once_lose_nothing(crew):
    chats = [await crew.chat() for _ in range(3)]
    await asyncio.gather(*[chat.save("s", [at, n]) for n in range(8) for at, chat in enumerate(chats)])
    found = await chats[0].contents("s")
    for at in range(3):
        assert [n for who, n in found if who == at] == list(range(8))


async def test_save_many_is_one_step_and_in_order(crew):
    chat, other = await crew.chat(), await crew.chat()
    saves = [chat.save_many("s", [Draft([n, part]) for part in range(5)]) for n in range(4)]
    more = [other.save_many("s", [Draft([n, part]) for part in range(5)]) for n in range(4, 8)]
    saved = await asyncio.gather(*saves, *more)
    found = await chat.contents("s")
    # expect nobody's entries between those of one call
    assert [part for _, part in found] == list(range(5)) * 8
    assert all(len({n for n, _ in found[at : at + 5]}) == 1 for at in range(0, 40, 5))
    assert len({one for s in saved for one in s.ids}) == 40


async def test_get_answers_one_entry(crew):
    chat = await crew.chat()
    first = await chat.save("s", "a")
    many = await chat.save_many("s", [Draft("b"), Draft("c", role="tool")])
    assert (await chat.get("s", first.id)).content == "a"
    assert [(await chat.get("s", one)).content for one in many.ids] == ["b", "c"]
    assert (await chat.get("s", many.id)).role == "tool"
    assert await chat.get("other", first.id) is None
    await chat.clear("s")
    assert await chat.get("s", first.id) is None


async def test_pop_last_takes_the_newest(crew):
    chat = await crew.chat()
    await chat.save_many("s", [Draft("a"), Draft("b")])
    assert (await chat.pop_last("s")).content == "b"
    await chat.save("s", "c")
    assert await chat.contents("s") == ["a", "c"]
    assert [(await chat.pop_last("s")).content for _ in range(2)] == ["c", "a"]
    assert await chat.pop_last("s") is None
    assert await chat.pop_last("nobody") is None
    assert await chat.count("s") == 0


async def test_clear_removes_all_and_may_be_repeated(crew):
    chat = await crew.chat()
    await chat.save("s", 1)
    await chat.clear("s")
    await chat.clear("s")
    assert await chat.contents("s") == []
    assert (await chat.save("s", 2)).count == 1
    await chat.clear("s")
    assert crew.lives() == {}


# -- bounds ---------------------------------------------------------------------------------------------------------


async def test_the_oldest_go_at_the_cap(crew):
    events = []
    chat = await crew.chat(max_entries=3, settings={"observers": [events.append]})
    saved = [await chat.save("s", number) for number in range(5)]
    assert [s.count for s in saved] == [1, 2, 3, 3, 3]
    assert [s.trimmed.entries for s in saved] == [0, 0, 0, 1, 1]
    assert await chat.contents("s") == [2, 3, 4]
    assert await chat.get("s", saved[-1].id) is not None
    assert [e for e in events if isinstance(e, Dropped)] == [Dropped("chat:s", "session entry", "entries", 1)] * 2


async def test_a_batch_that_is_larger_than_the_cap_keeps_its_newest(crew):
    chat = await crew.chat(max_entries=3)
    saved = await chat.save_many("s", [Draft(number) for number in range(5)])
    assert await chat.contents("s") == [2, 3, 4]
    assert saved.ids[:2] == (None, None)
    assert saved.id == saved.ids[-1] is not None
    assert saved.trimmed.total == saved.trimmed.entries == 2


async def test_the_token_budget_trims_and_keeps_the_newest(crew):
    chat = await crew.chat(max_tokens=10, count_tokens=lambda message: message["content"])
    for tokens in (4, 4, 2):
        saved = await chat.save("s", tokens)
    assert (saved.count, saved.trimmed.total) == (3, 0)
    saved = await chat.save("s", 5)
    assert await chat.contents("s") == [2, 5]
    assert saved.trimmed.tokens == 2
    assert (await chat.context("s")).tokens == 7
    # when one alone is more than the budget, expect it to be kept alone, and to be told
    saved = await chat.save("s", 50)
    assert saved.over_budget
    assert saved.id is not None
    assert await chat.contents("s") == [50]
    saved = await chat.save("s", 1)
    assert not saved.over_budget
    assert await chat.contents("s") == [1]


async def test_tokens_are_taken_for_four_bytes_unless_counted(crew):
    chat = await crew.chat()
    await chat.save("s", "x" * 4000)
    (entry,) = await chat.entries("s")
    assert 1000 <= entry.tokens <= 1020


async def test_bytes_are_bounded(crew):
    chat = await crew.chat(max_bytes=3000)
    for _ in range(2):
        saved = await chat.save("s", "x" * 1000)
    assert saved.trimmed.total == 0
    saved = await chat.save("s", "y" * 1900)
    assert (saved.trimmed.bytes, saved.count) == (1, 2)
    saved = await chat.save("s", "z" * 2900)
    assert (saved.trimmed.bytes, saved.count) == (2, 1)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("x" * 3000, TooLarge),
        (float("nan"), InvalidPayload),
        (object(), InvalidPayload),
        ({"a": {1, 2}.__iter__}, InvalidPayload),
    ],
)
async def test_what_cannot_be_stored_is_refused_before_the_network(quick, content, kind):
    chat = await quick.chat(max_bytes=3000)
    with pytest.raises(kind):
        await chat.save("s", content, user="u")
    assert quick.lives() == {}


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


async def test_data_that_is_nested_too_deeply_is_refused_and_neighbours_flow_on(quick):
    chat = await quick.chat()
    with pytest.raises(InvalidPayload):
        await chat.save("s", deep(100_000))
    await chat.save("s", "fine")
    assert await chat.contents("s") == ["fine"]


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, None, 1.5, "5"])
async def test_a_limit_that_means_nothing_is_refused(quick, limit):
    chat = await quick.chat()
    with pytest.raises(ConfigurationError, match="pass limit"):
        await chat.context("s", limit)


@pytest.mark.parametrize(
    "options",
    [
        {"max_entries": 0},
        {"max_entries": 10_001},
        {"max_bytes": 1},
        {"max_tokens": 0},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": 1e12},
        {"ttl": float("nan")},
        {"count_tokens": 5},
        {"max_entries": True},
    ],
)
async def test_a_bound_that_means_nothing_is_refused(quick, options):
    actor = await quick.actor()
    with pytest.raises(ConfigurationError):
        actor.hf.sessions("chat", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0},
        {"ttl": float("inf")},
        {"role": 7},
        {"tool_calls": "c1"},
        {"tool_calls": [7]},
        {"tool_calls": [{}]},
        {"tool_call_id": ""},
        {"tool_call_id": 7},
        {"user": ""},
        {"user": 7},
        {"extra": {"x": object()}},
        {"tool_calls": ["c"] * 256},
        {"tool_calls": ["c"] * 100},
    ],
)
async def test_an_argument_that_means_nothing_is_refused(quick, options):
    chat = await quick.chat()
    with pytest.raises(ConfigurationError):
        await chat.save("s", "x", **options)
    assert quick.lives() == {}


@pytest.mark.parametrize("answer", [-1, 1.5, None, True, 2**32])
async def test_a_token_count_that_means_nothing_is_refused(quick, answer):
    chat = await quick.chat(count_tokens=lambda _: answer)
    with pytest.raises(ConfigurationError, match="make count_tokens answer"):
        await chat.save("s", "x")


@pytest.mark.parametrize("entries", [[], ["x"], [Draft(0)] * 1001])
async def test_a_batch_that_means_nothing_is_refused(quick, entries):
    chat = await quick.chat()
    with pytest.raises(ConfigurationError, match="pass "):
        await chat.save_many("s", entries)


# -- life -----------------------------------------------------------------------------------------------------------


async def only_life(crew):
    (life,) = crew.lives().values()
    return life / 1000


async def test_every_save_prolongs_the_life_also_one_that_trims(crew):
    chat, brief = await crew.chat(max_entries=2, ttl=1000), await crew.chat(max_entries=2, ttl=10)
    for number in range(3):
        await brief.save("s", number)
        assert 8 < await only_life(crew) <= 10
    saved = await chat.save("s", "trims")
    assert saved.trimmed.total == 1
    assert 990 < await only_life(crew) <= 1000


async def test_a_shorter_ttl_shortens_nothing(crew):
    chat = await crew.chat(ttl=1000)
    await chat.save("s", 1)
    await chat.save("s", 2, ttl=5)
    assert await chat.touch("s", ttl=5)
    assert 990 < await only_life(crew) <= 1000
    await chat.save("s", 3, ttl=5000)
    assert 4990 < await only_life(crew) <= 5000
    assert await chat.touch("s", ttl=9000)
    assert 8990 < await only_life(crew) <= 9000


async def test_touch_makes_nothing(crew):
    chat = await crew.chat()
    assert not await chat.touch("nobody")
    assert crew.lives() == {}


# -- tool calls -----------------------------------------------------------------------------------------------------


async def test_a_call_and_its_result_are_trimmed_together(crew):
    chat = await crew.chat(max_entries=6)
    for number in range(2):
        saved = await exchange(chat, "s", number)
    # q0 went, then, for one more, its call together with its result, which left room for the last
    assert await chat.contents("s") == ["a0", "q1", None, "r1", "a1"]
    assert saved.count == 5
    saved = await chat.save("s", "next")
    assert (saved.count, saved.trimmed.total) == (6, 0)
    saved = await chat.save("s", "and next")
    assert await chat.contents("s") == ["q1", None, "r1", "a1", "next", "and next"]


async def test_results_elsewhere_go_with_their_call(crew):
    chat = await crew.chat(max_entries=5)
    await chat.save("s", "call", role="assistant", tool_calls=["one", {"call_id": "two"}])
    await chat.save("s", "between")
    await chat.save("s", "first result", role="tool", tool_call_id="one")
    await chat.save("s", "more")
    await chat.save("s", "second result", role="tool", tool_call_id="two")
    saved = await chat.save("s", "new")
    assert saved.trimmed.entries == 3
    assert await chat.contents("s") == ["between", "more", "new"]


async def test_a_window_never_has_a_result_without_its_call(crew):
    chat = await crew.chat()
    for number in range(3):
        await exchange(chat, "s", number)
    assert await chat.contents("s", 2) == ["a2"]
    assert await chat.contents("s", 3) == [None, "r2", "a2"]
    assert await chat.contents("s", 6) == ["a1", "q2", None, "r2", "a2"]
    for limit in range(1, 14):
        calls = set()
        for entry in await chat.context("s", limit):
            assert entry.tool_call_id is None or entry.tool_call_id in calls
            calls.update(call["id"] for call in entry.tool_calls)


async def test_a_result_without_a_call_is_not_stored_and_has_no_id(crew):
    chat = await crew.chat()
    saved = await chat.save("s", "late", role="tool", tool_call_id="nobody's")
    assert (saved.id, saved.count, saved.trimmed.orphans) == (None, 0, 1)
    assert crew.lives() == {}
    await chat.save("s", "hello")
    saved = await chat.save_many("s", [Draft("x", tool_call_id="no"), Draft("y")])
    assert (saved.ids[0], saved.count) == (None, 2)
    assert await chat.contents("s") == ["hello", "y"]


async def test_call_ids_that_are_used_again_belong_to_the_nearest_call(crew):
    """Some providers number the calls of each turn from 0."""
    chat = await crew.chat(max_entries=4)
    for turn in range(2):
        await chat.save("s", f"call {turn}", tool_calls=["call_0"])
        await chat.save("s", f"result {turn}", tool_call_id="call_0")
    saved = await chat.save("s", "new")
    assert saved.trimmed.entries == 2
    assert await chat.contents("s") == ["call 1", "result 1", "new"]
    assert await chat.contents("s", 2) == ["new"]


async def test_a_turn_that_does_not_fit_is_gone_as_a_whole_and_its_last_has_no_id(crew):
    chat = await crew.chat(max_bytes=1000)
    await chat.save("s", "before")
    await chat.save("s", "c" * 500, tool_calls=["one"])
    saved = await chat.save("s", "r" * 600, tool_call_id="one")
    assert saved.id is None
    assert saved.trimmed.bytes == 2
    assert await chat.contents("s") == ["before"]


async def test_the_newest_turn_is_kept_though_it_is_over_the_token_budget(crew):
    chat = await crew.chat(max_tokens=10, count_tokens=lambda message: message["content"])
    await chat.save("s", 6)
    await chat.save("s", 2, tool_calls=["one"])
    saved = await chat.save("s", 9, tool_call_id="one")
    assert saved.over_budget
    assert await chat.contents("s") == [2, 9]


# -- users ----------------------------------------------------------------------------------------------------------


async def test_forget_removes_every_session_of_a_user_and_nobody_elses(crew):
    chat, other = await crew.chat(), await crew.chat()
    for number in range(5):
        await chat.save(f"s{number}", "mine", user="me")
    await other.save("theirs", "x", user="them")
    await chat.save("nobody's", "x")
    await other.save("s0", "in my session", user="them")
    assert sorted(await other.sessions_of("me")) == [f"s{n}" for n in range(5)]
    assert await other.forget("me") == 5
    assert await other.forget("me") == 0
    assert await chat.sessions_of("me") == []
    assert [await chat.count(s) for s in ("s0", "s4", "theirs", "nobody's")] == [0, 0, 1, 1]
    assert await chat.sessions_of("them") == ["theirs"]


async def test_a_session_that_is_made_again_after_forget_is_in_the_index_again(crew):
    """Although the process that makes it has indexed it a moment ago and believes that it still is."""
    chat, other = await crew.chat(), await crew.chat()
    await chat.save("s", 1, user="me")
    await chat.save("s", 2, user="me")
    assert await other.forget("me") == 1
    crew_index_gone(crew)
    await chat.save("s", 3, user="me")
    assert await other.sessions_of("me") == ["s"]
    assert await other.forget("me") == 1


def crew_index_gone(crew):
    """As a minute later, when `forget` removes the entries of the index too."""
    for client in crew.backend.primaries():
        for key in client.scan_iter():
            if b":user:" in key:
                client.delete(key)
        client.close()


async def test_the_index_outlives_the_sessions(crew):
    chat = await crew.chat(ttl=100)
    await chat.save("s", 1, user="me", ttl=5000)
    lives = crew.lives()
    (index,) = [life for key, life in lives.items() if ":user:" in key]
    (session,) = [life for key, life in lives.items() if ":s:" in key]
    assert index > session > 0
    assert await chat.touch("s", ttl=9000, user="me")
    (index,) = [life for key, life in crew.lives().items() if ":user:" in key]
    assert index > 9_000_000


# -- names ----------------------------------------------------------------------------------------------------------


async def test_odd_ids_are_one_to_one(crew):
    chat = await crew.chat()
    for at, one in enumerate(ODD_IDS):
        await chat.save(one, at, user=one)
    for at, one in enumerate(ODD_IDS):
        assert await chat.contents(one) == [at]
        assert await chat.sessions_of(one) == [one]
    assert sum([await chat.forget(one) for one in ODD_IDS]) == len(ODD_IDS)


async def test_names_do_not_mix(crew):
    actor = await crew.actor()
    chats = [crew.chat_on(actor, name) for name in ("a", "a.1", "{a}", b"\xff")]
    for at, chat in enumerate(chats):
        await chat.save("s", at, user="me")
    for at, chat in enumerate(chats):
        assert await chat.contents("s") == [at]
    assert await chats[0].forget("me") == 1
    assert [await chat.count("s") for chat in chats] == [0, 1, 1, 1]


@pytest.mark.parametrize("bad", ["", b"", None, 7, "x" * 513])
async def test_ids_that_are_none_are_refused(quick, bad):
    chat = await quick.chat()
    with pytest.raises(ConfigurationError):
        await chat.save(bad, 1)
    with pytest.raises(ConfigurationError):
        (await quick.actor()).hf.sessions(bad)


def test_the_blocking_twin_has_every_name_of_the_other():
    public = [{name for name in vars(kind) if name[0] != "_"} for kind in (Sessions, holdfast.sync.Sessions)]
    assert public[0] == public[1] != set()


@pytest.mark.parametrize("kind", [Holdfast, holdfast.sync.Holdfast])
async def test_sessions_may_be_made_before_the_client_is_opened(kind):
    chat = kind("embedded:").sessions("chat")
    assert "chat" in repr(chat)
    with pytest.raises(ConfigurationError, match="open it first"):
        await chat.count("s")

"""The SDK's own Runner with a model in this process, over our sessions: turns, a function tool, trims in between."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import holdfast.sync
from holdfast import ConfigurationError, Holdfast
from holdfast.adapters.openai_agents import HoldfastSession


@pytest.fixture(scope="module")
def desk() -> Any:
    import openai_agents_desk

    return openai_agents_desk


@pytest.fixture
async def hf(valkey):
    async with Holdfast(valkey.url) as client:
        yield client
    valkey.flush()


@pytest.fixture
def model(desk):
    return desk.FakeModel()


@pytest.fixture
def agent(desk, model):
    return desk.Agent(name="a", model=model, tools=[desk.weather])


def kinds(items: list[Any]) -> list[str]:
    return [item.get("type") or item["role"] for item in items]


async def test_it_is_a_session_of_the_sdk(hf, desk):
    session = HoldfastSession(hf.sessions("chat"), "s")
    assert isinstance(session, desk.Session)
    assert session.session_settings is None
    assert "s" in repr(session)


async def test_the_runner_remembers_over_several_turns(hf, agent, model, desk):
    # Given a conversation with a tool call
    session = HoldfastSession(hf.sessions("chat"), "s", user="me")
    model.line = [[desk.calls("c1")], [desk.says("it rains")], [desk.says("as I said")]]
    first = await desk.Runner.run(agent, "weather in Oslo?", session=session, run_config=desk.QUIET)
    assert first.final_output == "it rains"
    # when another process goes on with it
    again = HoldfastSession(hf.sessions("chat"), "s")
    second = await desk.Runner.run(agent, "sure?", session=again, run_config=desk.QUIET)
    # expect that the model saw all of it, in order
    assert second.final_output == "as I said"
    assert kinds(model.seen[-1]) == ["user", "function_call", "function_call_output", "message", "user"]
    assert model.seen[-1][2]["output"] == "rain in Oslo"
    assert len(await again.get_items()) == 6
    assert await hf.sessions("chat").sessions_of("me") == ["s"]


async def test_a_trim_in_between_parts_no_call_from_its_output(hf, agent, model, desk):
    session = HoldfastSession(hf.sessions("chat", max_entries=7), "s")
    for turn in range(8):
        model.line = (
            [[desk.calls(f"a{turn}"), desk.calls(f"b{turn}")], [desk.says("done")]]
            if turn % 2
            else [[desk.says("fine")]]
        )
        await desk.Runner.run(agent, f"turn {turn}", session=session, run_config=desk.QUIET)
        items = await session.get_items()
        desk.check_as_a_provider(items)
        assert 2 <= len(items) <= 7
        assert items[-1]["type"] == "message"
    assert any(kinds(items)[:1] != ["user"] for items in model.seen)


async def test_reasoning_goes_with_what_came_of_it(hf, agent, model, desk):
    session = HoldfastSession(hf.sessions("chat", max_entries=8), "s")
    for turn in range(6):
        name = f"thought{turn}"
        model.line = [[desk.thinks(name), desk.calls(name)], [desk.thinks(f"end{turn}"), desk.says("done")]]
        await desk.Runner.run(agent, f"turn {turn}", session=session, run_config=desk.QUIET)
        desk.check_as_a_provider(await session.get_items())
    for limit in range(1, 9):
        items = await session.get_items(limit)
        assert len(items) <= limit
        made = {item["call_id"] for item in items if item.get("type") == "function_call"}
        assert all(item["call_id"] in made for item in items if item.get("type") == "function_call_output")


async def test_limits(hf, desk):
    session = HoldfastSession(hf.sessions("chat"), "s", session_settings=desk.SessionSettings(limit=2))
    await session.add_items([{"role": "user", "content": str(n)} for n in range(5)])
    assert [item["content"] for item in await session.get_items()] == ["3", "4"]
    assert [item["content"] for item in await session.get_items(1)] == ["4"]
    assert await session.get_items(0) == []
    session.session_settings = None
    assert len(await session.get_items()) == 5


async def test_pop_and_clear(hf):
    session = HoldfastSession(hf.sessions("chat"), "s")
    await session.add_items([])
    assert await session.pop_item() is None
    await session.add_items([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert await session.pop_item() == {"role": "user", "content": "b"}
    assert await session.get_items() == [{"role": "user", "content": "a"}]
    await session.clear_session()
    assert await session.get_items() == []


async def test_more_than_fits_into_one_step(hf):
    session = HoldfastSession(hf.sessions("chat", max_entries=2000), "s")
    await session.add_items([{"role": "user", "content": str(n)} for n in range(1500)])
    assert [item["content"] for item in await session.get_items()] == [str(n) for n in range(1500)]


PAIRS = [
    ({"type": "function_call", "call_id": "x"}, {"type": "function_call_output", "call_id": "x"}),
    ({"type": "computer_call", "call_id": "x"}, {"type": "computer_call_output", "call_id": "x"}),
    ({"type": "custom_tool_call", "call_id": "x"}, {"type": "custom_tool_call_output", "call_id": "x"}),
    ({"type": "local_shell_call", "id": "i", "call_id": "x"}, {"type": "local_shell_call_output", "call_id": "x"}),
    ({"type": "mcp_approval_request", "id": "x"}, {"type": "mcp_approval_response", "approval_request_id": "x"}),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0]["type"])
async def test_every_kind_of_call_is_kept_with_its_output(hf, pair):
    session = HoldfastSession(hf.sessions("chat", max_entries=2), "s")
    await session.add_items(list(pair))
    assert await session.get_items() == list(pair)
    assert await session.get_items(1) == []
    await session.add_items([{"role": "user", "content": "new"}])
    assert await session.get_items() == [{"role": "user", "content": "new"}]


async def test_sessions_of_the_blocking_twin_are_refused(valkey):
    with holdfast.sync.Holdfast(valkey.url) as client, pytest.raises(ConfigurationError, match="asyncio"):
        HoldfastSession(client.sessions("chat"), "s")


async def test_without_the_sdk_it_says_what_to_install(hf, monkeypatch):
    monkeypatch.setitem(sys.modules, "agents", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[openai-agents\]'"):
        HoldfastSession(hf.sessions("chat"), "s")

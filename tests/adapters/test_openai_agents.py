"""The SDK's own Runner with a model in this process, over our sessions: turns, a function tool, trims in between."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.memory import Session, SessionSettings
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_reasoning_item import ResponseReasoningItem

import holdfast.sync
from holdfast import ConfigurationError, Holdfast
from holdfast.adapters.openai_agents import HoldfastSession

QUIET = RunConfig(tracing_disabled=True)


class FakeModel(Model):
    """Answers each input with what the test has put in line, and refuses what providers refuse."""

    def __init__(self) -> None:
        self.line: list[list[Any]] = []
        self.seen: list[list[Any]] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        check_as_a_provider(items)
        self.seen.append(items)
        return ModelResponse(output=self.line.pop(0), usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def check_as_a_provider(items: list[Any]) -> None:
    """An answer of 400, as an assertion: every output has its call before it and every call its output."""
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert sorted(calls) == sorted(outputs), "400: a tool call and its output were parted"
    for at, item in enumerate(items):
        if item.get("type") == "reasoning":
            assert items[at + 1 :], "400: reasoning without what follows it"
            assert items[at + 1].get("type") in ("function_call", "message", "reasoning"), "400: reasoning alone"
    thoughts = {item["id"] for item in items if item.get("type") == "reasoning"}
    for item in items:
        if item.get("type") == "function_call" and item["call_id"].startswith("thought"):
            assert f"rs_{item['call_id']}" in thoughts, "400: a call without its required reasoning"


def says(text: str) -> Any:
    part = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", content=[part], status="completed")


def calls(call_id: str, name: str = "weather", arguments: str = '{"city": "Oslo"}') -> Any:
    return ResponseFunctionToolCall(
        id=f"fc_{call_id}", call_id=call_id, type="function_call", name=name, arguments=arguments
    )


def thinks(name: str) -> Any:
    return ResponseReasoningItem(id=f"rs_{name}", summary=[], type="reasoning")


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


@pytest.fixture
async def hf(valkey):
    async with Holdfast(valkey.url) as client:
        yield client
    valkey.flush()


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def agent(model):
    return Agent(name="a", model=model, tools=[weather])


def kinds(items: list[Any]) -> list[str]:
    return [item.get("type") or item["role"] for item in items]


async def test_it_is_a_session_of_the_sdk(hf):
    session = HoldfastSession(hf.sessions("chat"), "s")
    assert isinstance(session, Session)
    assert session.session_settings is None
    assert "s" in repr(session)


async def test_the_runner_remembers_over_several_turns(hf, agent, model):
    # Given a conversation with a tool call
    session = HoldfastSession(hf.sessions("chat"), "s", user="me")
    model.line = [[calls("c1")], [says("it rains")], [says("as I said")]]
    first = await Runner.run(agent, "weather in Oslo?", session=session, run_config=QUIET)
    assert first.final_output == "it rains"
    # when another process goes on with it
    again = HoldfastSession(hf.sessions("chat"), "s")
    second = await Runner.run(agent, "sure?", session=again, run_config=QUIET)
    # expect that the model saw all of it, in order
    assert second.final_output == "as I said"
    assert kinds(model.seen[-1]) == ["user", "function_call", "function_call_output", "message", "user"]
    assert model.seen[-1][2]["output"] == "rain in Oslo"
    assert len(await again.get_items()) == 6
    assert await hf.sessions("chat").sessions_of("me") == ["s"]


async def test_a_trim_in_between_parts_no_call_from_its_output(hf, agent, model):
    session = HoldfastSession(hf.sessions("chat", max_entries=7), "s")
    for turn in range(8):
        model.line = [[calls(f"a{turn}"), calls(f"b{turn}")], [says("done")]] if turn % 2 else [[says("fine")]]
        await Runner.run(agent, f"turn {turn}", session=session, run_config=QUIET)
        items = await session.get_items()
        check_as_a_provider(items)
        assert 2 <= len(items) <= 7
        assert items[-1]["type"] == "message"
    assert any(kinds(items)[:1] != ["user"] for items in model.seen)


async def test_reasoning_goes_with_what_came_of_it(hf, agent, model):
    session = HoldfastSession(hf.sessions("chat", max_entries=8), "s")
    for turn in range(6):
        name = f"thought{turn}"
        model.line = [[thinks(name), calls(name)], [thinks(f"end{turn}"), says("done")]]
        await Runner.run(agent, f"turn {turn}", session=session, run_config=QUIET)
        check_as_a_provider(await session.get_items())
    for limit in range(1, 9):
        items = await session.get_items(limit)
        assert len(items) <= limit
        made = {item["call_id"] for item in items if item.get("type") == "function_call"}
        assert all(item["call_id"] in made for item in items if item.get("type") == "function_call_output")


async def test_limits(hf):
    session = HoldfastSession(hf.sessions("chat"), "s", session_settings=SessionSettings(limit=2))
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
    with pytest.raises(ConfigurationError, match=r"holdfast\[openai-agents\]"):
        HoldfastSession(hf.sessions("chat"), "s")

"""LangChain's own RunnableWithMessageHistory over our sessions, asynchronous and blocking, with tool messages."""

from __future__ import annotations

import importlib
import sys

import pytest
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

import holdfast.adapters.langchain
import holdfast.sync
from holdfast import ConfigurationError, Holdfast
from holdfast.adapters.langchain import HoldfastChatMessageHistory

pytestmark = pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
"""By LangChain, in favour of LangGraph's own persistence; it is there until 2.0, and histories are used without it."""

CONFIG = {"configurable": {"session_id": "s"}}
CALL = {"name": "weather", "args": {"city": "Oslo"}, "id": "c1"}
TURN = [
    HumanMessage("weather?"),
    AIMessage("", tool_calls=[CALL, {**CALL, "id": "c2"}], usage_metadata=None),
    ToolMessage("rain", tool_call_id="c1"),
    ToolMessage("snow", tool_call_id="c2", status="error"),
    AIMessage("rain and snow", response_metadata={"model": "none"}),
]


@pytest.fixture
async def hf(valkey):
    async with Holdfast(valkey.url) as client:
        yield client
    valkey.flush()


@pytest.fixture
def blocking(valkey):
    with holdfast.sync.Holdfast(valkey.url) as client:
        yield client
    valkey.flush()


def chain(chat, seen, **options):
    """A model in this process that says how many messages it saw."""

    def model(messages):
        seen.append(list(messages))
        return AIMessage(f"saw {len(messages)}")

    return RunnableWithMessageHistory(
        RunnableLambda(model), lambda session_id: HoldfastChatMessageHistory(chat, session_id, **options)
    )


def no_orphans(messages):
    made = set()
    for message in messages:
        if isinstance(message, ToolMessage) and message.tool_call_id not in made:
            return False
        made.update(call["id"] for call in getattr(message, "tool_calls", ()))
    return True


async def test_it_is_a_history_of_langchain(hf):
    history = HoldfastChatMessageHistory(hf.sessions("chat"), "s")
    assert isinstance(history, BaseChatMessageHistory)
    assert "s" in repr(history)


async def test_messages_come_back_as_they_were(hf):
    history = HoldfastChatMessageHistory(hf.sessions("chat"), "s", user="me")
    await history.aadd_messages([SystemMessage("be kind"), *TURN])
    assert await history.aget_messages() == [SystemMessage("be kind"), *TURN]
    assert await hf.sessions("chat").sessions_of("me") == ["s"]
    await history.aadd_messages([])
    await history.aclear()
    assert await history.aget_messages() == []


async def test_a_chain_remembers(hf):
    seen = []
    runnable = chain(hf.sessions("chat"), seen)
    for text in ("one", "two", "three"):
        answer = await runnable.ainvoke([HumanMessage(text)], config=CONFIG)
    assert answer.content == "saw 5"
    assert [m.content for m in seen[-1]] == ["one", "saw 1", "two", "saw 3", "three"]


async def test_a_trim_in_between_parts_no_call_from_its_result(hf):
    history = HoldfastChatMessageHistory(hf.sessions("chat", max_entries=7), "s")
    for _ in range(4):
        await history.aadd_messages(TURN)
        found = await history.aget_messages()
        assert no_orphans(found)
        assert found[-5:] == TURN
        await history.aadd_messages([HumanMessage("and then?")])
        assert no_orphans(await history.aget_messages())
    for limit in range(1, 8):
        window = await HoldfastChatMessageHistory(hf.sessions("chat"), "s", limit=limit).aget_messages()
        assert no_orphans(window)
        assert len(window) <= limit


def test_a_chain_remembers_on_threads(blocking):
    seen = []
    runnable = chain(blocking.sessions("chat"), seen)
    for text in ("one", "two"):
        answer = runnable.invoke([HumanMessage(text)], config=CONFIG)
    assert answer.content == "saw 3"
    history = HoldfastChatMessageHistory(blocking.sessions("chat"), "s")
    assert [m.content for m in history.messages] == ["one", "saw 1", "two", "saw 3"]
    history.add_messages(TURN)
    assert history.messages[-5:] == TURN
    assert HoldfastChatMessageHistory(blocking.sessions("chat"), "s", limit=2).messages == TURN[-1:]
    history.add_user_message("and?")
    assert history.messages[-1] == HumanMessage("and?")
    history.clear()
    assert history.messages == []


async def test_sessions_of_the_blocking_twin_serve_the_asynchronous_methods_too(blocking):
    history = HoldfastChatMessageHistory(blocking.sessions("chat"), "s")
    await history.aadd_messages(TURN)
    assert await history.aget_messages() == TURN
    await history.aclear()
    assert await history.aget_messages() == []


async def test_blocking_methods_of_asyncio_sessions_are_refused(hf):
    history = HoldfastChatMessageHistory(hf.sessions("chat"), "s")
    for work in (lambda: history.messages, lambda: history.add_messages(TURN), history.clear):
        with pytest.raises(ConfigurationError, match="use the asynchronous methods"):
            work()


async def test_what_is_no_sessions_is_refused():
    with pytest.raises(ConfigurationError, match="pass sessions"):
        HoldfastChatMessageHistory({}, "s")


def test_without_langchain_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain_core.chat_history", None)
    monkeypatch.delitem(sys.modules, "holdfast.adapters.langchain")
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[langchain\]'"):
        importlib.import_module("holdfast.adapters.langchain")

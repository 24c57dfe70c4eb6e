"""What needs the SDK itself. Only the tests that use it import this: it takes two seconds."""

from __future__ import annotations

from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.memory import Session, SessionSettings
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_reasoning_item import ResponseReasoningItem

__all__ = ["Agent", "Runner", "Session", "SessionSettings"]

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

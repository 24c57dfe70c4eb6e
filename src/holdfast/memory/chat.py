"""An agent that asks a model. Any endpoint that speaks OpenAI's /chat/completions will do."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.memory.batch import AbsorbableBatch
from holdfast.memory.budget import Budget, Purse
from holdfast.memory.endpoint import Answer, Endpoint, Trouble
from holdfast.memory.entry import NewEntry, check_kind, to_json
from holdfast.memory.failures import BudgetExceeded, ModelError

API_KEY_VARIABLE = "HOLDFAST_MODEL_API_KEY"
_SHIPPED = ("episodic", "semantic", "procedural")
_LONGEST_QUOTE = 4000
_LONGEST_REASON = 300
_LONGEST_BACKOFF = 20.0

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "entries": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "content": {"type": "string"},
                    "sources": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["content", "sources"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["entries"],
    "additionalProperties": False,
}
"""What the model must answer. `sources` are the ids of the messages that an entry was drawn from."""


class _Found(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    sources: list[str]


class _Findings(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[_Found]


class ChatModelAgent:
    """Asks a model what of a batch should be remembered.

        ChatModelAgent("semantic", base_url="https://host/v1", model="name-of-the-model")

    `api_key` is sent as a bearer token; without it HOLDFAST_MODEL_API_KEY is, if set. `prompt` is a Path to a file of
    instructions, or their text; episodic, semantic and procedural have shipped ones in `holdfast/memory/prompts`.
    `timeout` is for one request, `retries` says how often it is asked again after a 429, a 5xx, a lost connection or an
    answer that cannot be used, waiting about `backoff`, twice that, … seconds. `budget` bounds the whole.
    Messages are sent as data, apart from the instructions. Not more than `max_entries` of `max_length` characters each
    are accepted. Redirects are not followed, and proxies are used only if passed as `proxy`.
    """

    def __init__(
        self, kind: str, *, base_url: str, model: str, api_key: str | None = None, prompt: str | Path | None = None,
        timeout: float = 30.0, retries: int = 2, budget: Budget | None = None, name: str | None = None,
        max_entries: int = 20, max_length: int = 2000, backoff: float = 0.5, proxy: str | None = None,
    ) -> None:  # fmt: skip
        self.kind = check_kind(kind)
        self.name = f"chat-{kind}" if name is None else name
        if not isinstance(model, str) or not model:
            raise ConfigurationError("pass the name of the model")
        self.model = model
        self.budget = Budget() if budget is None else budget
        self._endpoint = Endpoint(base_url, api_key or os.environ.get(API_KEY_VARIABLE) or None, proxy)
        self._timeout = _number("timeout", timeout, 0.001, 3600)
        self._retries = int(_number("retries", retries, 0, 20))
        self._backoff = _number("backoff", backoff, 0, 60)
        self._max_entries = int(_number("max_entries", max_entries, 1, 1000))
        self._max_length = int(_number("max_length", max_length, 1, 100_000))
        self._instructions = _instructions(kind, prompt, self._max_entries, self._max_length)

    def __repr__(self) -> str:
        return f"ChatModelAgent({self.kind!r}, base_url={self._endpoint.base_url!r}, model={self.model!r})"

    async def run(self, batch: AbsorbableBatch) -> Sequence[NewEntry]:
        """What the model finds worth keeping.

        Raises ModelError when the endpoint refuses or does not come to its senses within the retries, BudgetExceeded
        when the budget runs out first. Cancelled, it closes the connection; the model may go on for a while."""
        if not batch.messages and not batch.pairs:
            return []
        asked = [{"role": "system", "content": self._instructions}, {"role": "user", "content": _shown(batch)}]
        purse, extra, trouble = Purse(self.budget), list[dict[str, str]](), None
        async with self._endpoint.client() as client:
            for attempt in range(self._retries + 1):
                try:
                    await self._pause(attempt, trouble, purse)
                    answer = await self._ask(client, [*asked, *extra], purse)
                    return self._entries(answer, batch)
                except Trouble as error:
                    trouble = error
                    if error.final:
                        break
                except _Unusable as error:
                    trouble = Trouble(f"its answer cannot be used: {error.reason}", status=200)
                    extra = error.correction()
                except BudgetExceeded as error:
                    if trouble is not None:
                        error.add_note(f"the last request failed: {trouble.reason}")
                    raise
        assert trouble is not None
        raise self._failure(trouble, attempt + 1) from None

    async def _pause(self, attempt: int, trouble: Trouble | None, purse: Purse) -> None:
        if attempt == 0:
            return
        pause = min(self._backoff * 2.0 ** (attempt - 1), _LONGEST_BACKOFF) * (0.5 + random.random() / 2)  # noqa: S311
        if trouble is not None and trouble.pause is not None:
            pause = max(pause, trouble.pause)
        purse.afford(pause)
        await asyncio.sleep(pause)

    async def _ask(self, client: Any, messages: list[dict[str, str]], purse: Purse) -> Answer:
        # Three bytes are about a token in Chinese and less in English: rather too many than too few.
        prompt = sum(len(message["content"].encode("utf-8", "replace")) for message in messages) // 3
        allowed = purse.request(prompt)
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": allowed,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "memory_entries", "strict": True, "schema": SCHEMA},
            },
        }
        try:
            answer = await self._endpoint.ask(client, body, min(self._timeout, purse.seconds()))
        except Trouble as trouble:
            if trouble.used:
                purse.spend(prompt + allowed)
            raise
        purse.spend(prompt + allowed if answer.tokens is None else answer.tokens)
        return answer

    def _entries(self, answer: Answer, batch: AbsorbableBatch) -> list[NewEntry]:
        """Raises _Unusable for anything but what the schema says."""
        try:
            found = msgspec.json.decode(answer.content, type=_Findings).entries
        except (msgspec.DecodeError, RecursionError) as error:
            reason = "it is longer than allowed and was cut off" if answer.cut else str(error)
            raise _Unusable(reason, answer.content) from None
        if len(found) > self._max_entries:
            raise _Unusable(f"it has {len(found)} entries, the limit is {self._max_entries}", answer.content)
        times = {message.id: message.at for message in batch.messages}
        entries = []
        for at, item in enumerate(found):
            if not item.content.strip() or len(item.content) > self._max_length:
                reason = f"the content of entry {at} must have 1 to {self._max_length} characters"
                raise _Unusable(reason, answer.content)
            if not times.keys() >= set(item.sources):
                raise _Unusable(f"the sources of entry {at} are not all ids of messages", answer.content)
            data = {"sources": item.sources, "model": self.model}
            when = max((times[source] for source in item.sources), default=None)
            entries.append(NewEntry(self.kind, item.content, data, when))
        return entries

    def _failure(self, trouble: Trouble, requests: int) -> ModelError:
        where = f"{self._endpoint.base_url} (model {self.model!r})"
        if trouble.final:
            advice = "check base_url, model and api_key"
        else:
            advice = "check that the model's endpoint is well, or raise retries and timeout"
        return ModelError(
            f"{advice}: {where} failed after {requests} request{'s' * (requests > 1)}: {trouble.reason}",
            status=trouble.status, operation="memory/chat",
        )  # fmt: skip


class _Unusable(Exception):
    """An answer that is not what was asked for. The model is told, and asked again."""

    def __init__(self, reason: str, content: str) -> None:
        self.reason, self.content = reason[:_LONGEST_REASON], content
        super().__init__(self.reason)

    def correction(self) -> list[dict[str, str]]:
        told = f"Your answer could not be used: {self.reason}. Answer again, only with JSON of the demanded shape."
        return [
            {"role": "assistant", "content": self.content[:_LONGEST_QUOTE]},
            {"role": "user", "content": told},
        ]


def _shown(batch: AbsorbableBatch) -> str:
    """The batch as JSON. It is one string in one message, so nothing in it can end its place."""
    messages = [
        {"id": message.id, "at": message.at, "data": message.data}
        | ({"attachments": dict(message.attachments)} if message.attachments else {})
        for message in batch.messages
    ]
    turns = [{"user": pair.user, "assistant": pair.assistant, "at": pair.at} for pair in batch.pairs]
    return to_json({"messages": messages, "conversation": turns}, short=True)


def _instructions(kind: str, prompt: str | Path | None, entries: int, length: int) -> str:
    if prompt is None:
        if kind not in _SHIPPED:
            raise ConfigurationError(f"pass a prompt: there are shipped ones only for {', '.join(_SHIPPED)}")
        text = shipped_prompt(kind)
    elif isinstance(prompt, os.PathLike):
        try:
            text = Path(prompt).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"check the prompt file {os.fspath(prompt)!r}: {error}") from None
    else:
        text = prompt
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError("pass a prompt that is not empty: a Path to a file, or its text")
    rules = shipped_prompt("answer").replace("<entries>", str(entries)).replace("<length>", str(length))
    return f"{text.strip()}\n\n{rules.strip()}\n"


def shipped_prompt(name: str) -> str:
    """The text of one of the files in `holdfast/memory/prompts`."""
    return resources.files("holdfast.memory").joinpath("prompts", f"{name}.md").read_text("utf-8")


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigurationError(f"set {name} between {low:g} and {high:g}, not {value!r:.60}")
    return value

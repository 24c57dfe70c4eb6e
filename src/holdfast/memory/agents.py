"""Agents: each turns a batch into entries, in its own way and under its own name."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from holdfast.errors import ConfigurationError
from holdfast.memory.batch import AbsorbableBatch
from holdfast.memory.entry import NewEntry, check_kind, check_new, text_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Agent(Protocol):
    """Has a name that never changes, and `run`, which may be a plain function too: that is run in a thread.

    The name is what tells a redelivery that this agent is done with a batch. `run` may be called again for a batch
    whose worker died; what it answers is stored once.
    """

    @property
    def name(self) -> str: ...

    def run(self, batch: AbsorbableBatch) -> Any:
        """Answers a sequence of NewEntry, or an awaitable of one. It is cancelled when the lease is lost."""


class Verbatim:
    """Keeps each message and each pair as it is. Needs no model."""

    def __init__(self, kind: str = "episodic", *, name: str = "verbatim") -> None:
        self.kind = check_kind(kind)
        self.name = name

    def __repr__(self) -> str:
        return f"Verbatim({self.kind!r}, name={self.name!r})"

    async def run(self, batch: AbsorbableBatch) -> Sequence[NewEntry]:
        """One entry for each message, then one for each pair. `data` keeps the original, bytes as base64."""
        entries = []
        for message in batch.messages:
            data: dict[str, Any] = {"id": message.id, "data": message.data}
            if message.attachments:
                data["attachments"] = dict(message.attachments)
            entries.append(NewEntry(self.kind, text_of(message.data), data, message.at, message.id))
        for pair in batch.pairs:
            content = f"user: {text_of(pair.user)}\nassistant: {text_of(pair.assistant)}"
            entries.append(NewEntry(self.kind, content, {"user": pair.user, "assistant": pair.assistant}, pair.at))
        return entries


def check_agents(agents: Iterable[Agent]) -> tuple[Agent, ...]:
    """Raises ConfigurationError for none at all, a name that cannot be kept, and two of one name."""
    chosen = tuple(agents)
    if not chosen:
        raise ConfigurationError("pass at least one agent: without one nothing would be remembered")
    seen = set()
    for agent in chosen:
        name = getattr(agent, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"name the agent with 1 to 64 letters, digits, _ . or -, not {name!r:.80} ({type(agent).__name__})"
            )
        if not callable(getattr(agent, "run", None)):
            raise ConfigurationError(f"give the agent {name!r} a method run(batch)")
        if name in seen:
            raise ConfigurationError(f"name the agents differently: two are called {name!r}")
        seen.add(name)
    return chosen


async def run_agent(agent: Agent, batch: AbsorbableBatch) -> list[NewEntry]:
    """What the agent wants remembered, checked. A plain `run` cannot be interrupted: cancelled, it ends unheard."""
    if inspect.iscoroutinefunction(agent.run):
        found = await agent.run(batch)
    else:
        found = await asyncio.to_thread(agent.run, batch)
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
        raise ConfigurationError(f"make the agent {agent.name!r} answer a sequence of NewEntry")
    return [check_new(entry) for entry in found]

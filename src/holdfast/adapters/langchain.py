"""Short-term memory as a chat message history of LangChain.

chain = RunnableWithMessageHistory(runnable, lambda session_id: HoldfastChatMessageHistory(chat, session_id))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import holdfast.sync
from holdfast import ConfigurationError, Context, Draft, Sessions

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
except ImportError:
    raise ConfigurationError("pip install '.[langchain]' in Holdfast's clone to use this adapter") from None

ROLES = {"human": "user", "ai": "assistant"}


class HoldfastChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session, bounded as the `Sessions` that it is made with.

    With sessions of the asyncio client use it through the asynchronous methods (`ainvoke`, `aget_messages`, …); with
    those of `holdfast.sync` through either. A tool message is trimmed together with the call that it answers, and none
    is answered without it. `limit` is how many messages to read at the most, all by default. `user` is who
    `Sessions.forget` will ask for. Errors and what cancelling does are those of `Sessions`.
    """

    def __init__(
        self,
        chat: Sessions | holdfast.sync.Sessions,
        session_id: str,
        *,
        user: str | None = None,
        limit: int | None = None,
    ) -> None:
        if not isinstance(chat, (Sessions, holdfast.sync.Sessions)):
            raise ConfigurationError(f"pass sessions, hf.sessions(...), not {type(chat).__name__}")
        self.session_id = session_id
        self._chat = chat
        self._user = user
        self._limit = limit

    def __repr__(self) -> str:
        return f"<HoldfastChatMessageHistory {self.session_id!r} of {self._chat!r}>"

    # -- asynchronous -------------------------------------------------------------------------------------------

    async def aget_messages(self) -> list[BaseMessage]:
        """The messages, oldest first."""
        if not isinstance(self._chat, Sessions):
            return await super().aget_messages()
        if self._limit is None:
            return _messages(await self._chat.entries(self.session_id))
        return _messages(await self._chat.context(self.session_id, self._limit))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store them in one step."""
        if not isinstance(self._chat, Sessions):
            await super().aadd_messages(messages)
        elif messages:
            await self._chat.save_many(self.session_id, drafts_of(messages), user=self._user)

    async def aclear(self) -> None:
        """Remove all messages."""
        if not isinstance(self._chat, Sessions):
            await super().aclear()
        else:
            await self._chat.clear(self.session_id)

    # -- blocking -----------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The messages, oldest first."""
        chat = self._blocking()
        if self._limit is None:
            return _messages(chat.entries(self.session_id))
        return _messages(chat.context(self.session_id, self._limit))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store them in one step."""
        chat = self._blocking()
        if messages:
            chat.save_many(self.session_id, drafts_of(messages), user=self._user)

    def clear(self) -> None:
        """Remove all messages."""
        self._blocking().clear(self.session_id)

    def _blocking(self) -> holdfast.sync.Sessions:
        if isinstance(self._chat, Sessions):
            raise ConfigurationError(
                "use the asynchronous methods (ainvoke, aget_messages, …), or make this with sessions of holdfast.sync"
            )
        return self._chat


def drafts_of(messages: Iterable[BaseMessage]) -> list[Draft]:
    """Messages as entries that know which calls they make and answer."""
    drafts = []
    for message in messages:
        made: list[Any] = [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
        calls = [call["id"] for call in made if call.get("id")]
        answers = getattr(message, "tool_call_id", None) or None
        drafts.append(Draft(message_to_dict(message), ROLES.get(message.type, message.type), calls, answers))
    return drafts


def _messages(context: Context) -> list[BaseMessage]:
    return messages_from_dict([entry.content for entry in context])

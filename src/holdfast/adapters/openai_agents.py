"""Short-term memory as a session of the OpenAI Agents SDK.

session = HoldfastSession(hf.sessions("chat"), "conversation-1")
await Runner.run(agent, "hello", session=session)
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast import ConfigurationError, Draft, Sessions

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from agents.memory import SessionSettings

AT_ONCE = 1000


class HoldfastSession:
    """The SDK's `Session`: items of one conversation, bounded as the `Sessions` that it is made with.

    What belongs together is trimmed together: a tool call with its output, and a reasoning item with what the model
    made of it, for the API refuses one without the other. Give `max_entries` room for the items of a whole turn.
    `user` is who `Sessions.forget` will ask for. Errors and what cancelling does are those of `Sessions`; `pop_item`
    is not repeated when its reply is lost, and then raises Indeterminate.
    """

    def __init__(
        self,
        chat: Sessions,
        session_id: str,
        *,
        user: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        try:
            import agents as _  # noqa: F401
        except ImportError:
            raise ConfigurationError("pip install '.[openai-agents]' in Holdfast's clone to use this adapter") from None
        if not isinstance(chat, Sessions):
            raise ConfigurationError(
                f"pass sessions of the asyncio client, hf.sessions(...), not {type(chat).__module__}"
            )
        self.session_id = session_id
        self.session_settings = session_settings
        self._chat = chat
        self._user = user

    def __repr__(self) -> str:
        return f"<HoldfastSession {self.session_id!r} of {self._chat!r}>"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The newest `limit` items (default: that of the session's settings, or all), oldest first.

        There may be fewer: no output comes without its call."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None:
            found = await self._chat.entries(self.session_id)
        elif limit <= 0:
            return []
        else:
            found = await self._chat.context(self.session_id, limit)
        return [entry.content for entry in found]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Store them in one step, up to a thousand of them."""
        drafts = drafts_of(items)
        for at in range(0, len(drafts), AT_ONCE):
            await self._chat.save_many(self.session_id, drafts[at : at + AT_ONCE], user=self._user)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and answer it; None if there is none."""
        entry = await self._chat.pop_last(self.session_id)
        return None if entry is None else entry.content

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._chat.clear(self.session_id)


def drafts_of(items: Sequence[Any]) -> list[Draft]:
    """Items of the Responses API as entries that know what they belong to."""
    drafts = []
    thought: str | None = None
    for item in items:
        kind = item.get("type") or "message"
        role = item.get("role") or kind
        makes, answers = _calls(kind, item)
        if role in ("user", "system", "developer"):
            thought = None
        elif answers is None:
            answers = thought  # what the model put out after a reasoning item goes where that goes
        if kind == "reasoning":
            thought = f"reasoning {secrets.token_hex(8)}"
            makes = [thought]
        drafts.append(Draft(item, role, makes, answers))
    return drafts


def _calls(kind: str, item: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """Which calls an item makes, and which it answers."""
    if kind == "mcp_approval_request":
        return _one(item.get("id")), None
    if kind == "mcp_approval_response":
        return [], item.get("approval_request_id") or None
    name = item.get("call_id") or (item.get("id") if kind.startswith("local_shell_call") else None)
    if kind.endswith("_output"):
        return [], name or None
    return (_one(name) if kind.endswith("_call") else []), None


def _one(name: str | None) -> list[str]:
    return [name] if name else []

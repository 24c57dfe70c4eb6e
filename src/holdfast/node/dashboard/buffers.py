"""Buffers: how full they are, whose messages wait, and what could not be absorbed."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast import Buffer
from holdfast.node.dashboard.asking import Action, Ask, Given, Reveal
from holdfast.node.dashboard.site import Page, count_of, goto, measured, named, piece, root_of
from holdfast.node.dashboard.text import Id, shown, token
from holdfast.node.state import Node, node_of

PAGE, MOST_PAGES = 50, 21
"""The first thousand: who is not among them is found by the id."""
LIVE_PAGES = 2
"""Later ones are read through all before them: not every few seconds."""
LETTERS = 50
PEEK = 50
MOST_BUFFERS = 100
ORDERS = {"oldest": "Oldest first", "largest": "Largest first", "in_hand": "Batches in hand"}


async def look(request: Request) -> dict[str, Any]:
    """Every buffer with its totals, as the node measured them last."""
    found, left_out = await measured(request, "buffers", MOST_BUFFERS)
    return {
        "page_title": "Buffers", "now": await node_of(request).now(), "left_out": left_out, "buffers": found,
        "dropped": dropped,
    }  # fmt: skip


def dropped(counts: dict[str, int]) -> int:
    """Messages that were removed to make room, or because they were too old."""
    return sum(count for name, count in counts.items() if name.startswith("dropped."))


def capacity_of(node: Node, buffer: Buffer) -> int:
    """How many messages of one user may wait."""
    return int(getattr(buffer, "capacity", node.hf.settings.capacity))


async def find(request: Request) -> Response:
    """From the search field to the user of exactly that id."""
    buffer, user = named(request, "buffer"), request.query_params.get("user", "")
    if not user:
        return goto(request, f"{root_of(request)}/buffers/{token(buffer)}", "Type the whole id of a user.")
    return goto(request, _user_path(request, buffer, user))


def _user_path(request: Request, buffer: str, user: Id) -> str:
    return f"{root_of(request)}/buffers/{token(buffer)}/users/{token(user)}"


async def look_at_one(request: Request) -> dict[str, Any]:
    """A buffer: what became of its messages, users from its indexes, dead letters."""
    node, name = node_of(request), named(request, "buffer")
    buffer = node.buffer(name)
    order = request.query_params.get("order", "")
    order = order if order in ORDERS else "oldest"
    number = count_of(request, "page", 1, 1, MOST_PAGES)
    if order == "in_hand":
        users, number = await buffer.in_hand(PAGE), 1
    else:
        listed = buffer.largest if order == "largest" else buffer.oldest
        users = await listed(PAGE + 1, offset=(number - 1) * PAGE)  # one more says whether there is a next page
    totals = await buffer.totals()
    return {
        "page_title": shown(name), "now": await node.now(), "name": name, "totals": totals, "order": order,
        "live": number <= LIVE_PAGES, "users": users[:PAGE], "number": number,
        "more": len(users) > PAGE and number < MOST_PAGES,
        "capacity": capacity_of(node, buffer), "orders": ORDERS,
        "letters": await buffer.dead_letters(LETTERS) if totals.dead_letters else [],
    }  # fmt: skip


async def look_at_user(request: Request) -> dict[str, Any]:
    """One user: numbers only. What the messages say needs a click and a right."""
    node, name, user = node_of(request), named(request, "buffer"), piece(request, "user")
    buffer = node.buffer(name)
    return {
        "page_title": shown(user), "now": await node.now(), "name": name, "user": user,
        "stats": await buffer.stats(user), "messages": await buffer.peek(user, PEEK), "payloads": False,
        "capacity": capacity_of(node, buffer),
    }  # fmt: skip


async def reveal_user(request: Request) -> dict[str, Any]:
    """The same, with what the messages say."""
    return {**await look_at_user(request), "payloads": True}


async def look_at_letter(request: Request) -> dict[str, Any]:
    """One dead letter: numbers only."""
    node, name = node_of(request), named(request, "buffer")
    return {
        "page_title": "Dead letter", "now": await node.now(), "name": name, "payloads": False,
        "letter": await node.buffer(name).dead_letter(request.path_params["letter"]),
    }  # fmt: skip


async def reveal_letter(request: Request) -> dict[str, Any]:
    """The same, with what its messages say."""
    return {**await look_at_letter(request), "payloads": True}


# -- what operators do ------------------------------------------------------------------------------------------------


async def flush(request: Request) -> Ask:
    """Let a worker take what waits."""
    node, name, user = node_of(request), named(request, "buffer"), piece(request, "user")

    async def work(given: Given) -> str:
        return "a worker will take it" if await node.buffer(name).flush(user) else "nothing waits"

    return Ask(
        "requeue", "Requeue now", user, f"buffer:{name} {shown(user)}",
        "What waits of this user is due now, whatever the triggers of the absorber say.",
        "Requeue", work, _user_path(request, name, user),
    )  # fmt: skip


async def forget(request: Request) -> Ask:
    """Remove a user."""
    node, name, user = node_of(request), named(request, "buffer"), piece(request, "user")

    async def work(given: Given) -> str:
        return f"nothing is left; fence {await node.buffer(name).forget(user)}"

    return Ask(
        "forget", "Forget user", user, f"buffer:{name} {shown(user)}",
        "Every trace of this user in this buffer goes: messages that wait, a batch that a worker has, turns of the "
        "conversation, dead letters. This cannot be undone.",
        "Forget", work, _user_path(request, name, user), typed=True,
    )  # fmt: skip


async def replay(request: Request) -> Ask:
    """Put a dead letter back."""
    node, name, letter = node_of(request), named(request, "buffer"), str(request.path_params["letter"])

    async def work(given: Given) -> str:
        count = await node.buffer(name).replay(letter)
        return f"{count} messages are back" if count else "there is no such letter"

    return Ask(
        "replay", "Replay", letter, f"buffer:{name} letter {letter}",
        "The batch goes back as it was, with its attempts counted anew. Handlers that key on its id see the same one.",
        "Replay", work, f"{root_of(request)}/buffers/{token(name)}",
    )  # fmt: skip


async def purge(request: Request) -> Ask:
    """Remove a dead letter."""
    node, name, letter = node_of(request), named(request, "buffer"), str(request.path_params["letter"])

    async def work(given: Given) -> str:
        count = await node.buffer(name).purge(letter)
        return f"{count} messages are gone" if count else "there is no such letter"

    return Ask(
        "purge", "Purge", letter, f"buffer:{name} letter {letter}",
        "The messages of this letter are removed for good. This cannot be undone.",
        "Purge", work, f"{root_of(request)}/buffers/{token(name)}",
    )  # fmt: skip


_USER, _LETTER = "/buffers/{buffer}/users/{user}", "/buffers/{buffer}/letters/{letter}"
PAGES = (
    Page("/buffers", "buffers.html", "buffers", look, sampled=True),
    Page("/buffers/{buffer}", "buffer.html", "buffers", look_at_one, every=3.0),
    Page(_USER, "user.html", "buffers", look_at_user, every=1.0),
    Page(_LETTER, "letter.html", "buffers", look_at_letter, every=0.0),
)
OTHERS = (("/find/user/{buffer}", find),)
ACTIONS = (
    Action(_USER + "/flush", "buffers", flush),
    Action(_USER + "/forget", "buffers", forget),
    Action(_LETTER + "/replay", "buffers", replay),
    Action(_LETTER + "/purge", "buffers", purge),
)
REVEALS = (
    Reveal(_USER + "/show", "user.html", "buffers", reveal_user),
    Reveal(_LETTER + "/show", "letter.html", "buffers", reveal_letter),
)

"""Each thing once, and gates, over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.node.api.operation import Call, Operation
from holdfast.node.api.shapes import Text, plain

Within = Annotated[float, Meta(ge=0.001, le=31_622_400)]
AnyId = Text | Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Ids = Annotated[list[AnyId], Meta(min_length=1, max_length=10_000)]


class Once(msgspec.Struct, forbid_unknown_fields=True):
    """`within`: seconds for which the id counts as seen."""

    id: AnyId
    within: Within | None = None


class New(msgspec.Struct):
    new: bool


class Filter(msgspec.Struct, forbid_unknown_fields=True):
    ids: Ids
    within: Within | None = None


class Fresh(msgspec.Struct):
    new: list[AnyId]


class Forget(msgspec.Struct, forbid_unknown_fields=True):
    ids: Ids


class Known(msgspec.Struct):
    known: int


class Check(msgspec.Struct, forbid_unknown_fields=True):
    """`window`: seconds within which the same state of a thing is not told again. `fields`: what of it counts."""

    key: AnyId
    state: Any
    window: Within | None = None
    fields: Annotated[list[Text], Meta(min_length=1, max_length=1000)] | None = None


class Decision(msgspec.Struct):
    notify: bool
    reason: Literal["first", "changed", "repeated", "unchanged", "outage"]
    previous: Any


async def once(call: Call) -> New:
    """True for the first caller with this id in the window, and False for every other."""
    return New(await call.node.hf.once(call.path["space"], call.body.id, call.body.within))


async def filter_new(call: Call) -> Fresh:
    """Those of many ids that are new, in order."""
    return Fresh(await call.node.hf.filter_new(call.path["space"], call.body.ids, call.body.within))


async def forget(call: Call) -> Known:
    """Let ids count as new again. Answers how many were known."""
    return Known(await call.node.hf.forget(call.path["space"], *call.body.ids))


async def check(call: Call) -> Decision:
    """Is this state of a thing worth telling? In one step it becomes the thing's state."""
    body: Check = call.body
    found = await call.node.hf.gate(call.path["gate"], body.window).check(body.key, body.state, fields=body.fields)
    return Decision(found.notify, found.reason, plain(found.previous))  # type: ignore[arg-type]


OPERATIONS = [
    Operation("POST", "/v1/once/{space}", "write", once, body=Once, answer=New, repeatable=True, errors=(422,)),
    Operation("POST", "/v1/once/{space}/filter", "write", filter_new, body=Filter, answer=Fresh, repeatable=True,
              errors=(422,)),
    Operation("POST", "/v1/once/{space}/forget", "write", forget, body=Forget, answer=Known, repeatable=True),
    Operation("POST", "/v1/gates/{gate}", "write", check, body=Check, answer=Decision, repeatable=True, errors=(422,)),
]  # fmt: skip

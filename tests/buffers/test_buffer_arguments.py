"""Ids, payloads and arguments of a buffer: what comes back as it was, and what is refused before anything is sent."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import AsyncIterator

import pytest
from buffer_boxes import Boxes, closing

import holdfast
from holdfast import ConfigurationError, InvalidId
from holdfast.errors import InvalidPayload, TooLarge
from support.backends import Backend

HOSTILE = [
    "a:b", "a%3ab", "a\nb", "{a}", "}a{", "*", "?", "[a]", "a b", "\x00", "!", "é", "e\u0301", "\ud800", "\udfff\ud800",
    b"\xff\xfe", "☃" * 170, "u:a", "due", "a}:u:b", "'; return 1 --", "%s", "%d", "%00",
]  # fmt: skip


@pytest.fixture
async def quick(valkey: Backend, api: str) -> AsyncIterator[Boxes]:
    async for made in closing(Boxes(valkey, api)):
        yield made


def nested(levels: int, inside: object = 1) -> object:
    for _ in range(levels):
        inside = [inside]
    return inside


async def refuses(boxes: Boxes, box, call, kind=ConfigurationError) -> None:
    """It raises, says first what to do, and no script was run."""
    before = boxes.scripts_run()
    with pytest.raises(kind) as caught:
        await box.actor.do(lambda _: call())
    first = str(caught.value).split()[0]
    assert first in ("pass", "nest", "name", "store"), f"the error does not begin with what to do: {caught.value}"
    assert boxes.scripts_run() == before, "something was sent"


# -- ids ------------------------------------------------------------------------------------------------------------


async def test_ids_of_every_kind_are_apart(boxes: Boxes):
    # Given a message of each user
    box = await boxes.box()
    for number, user in enumerate(HOSTILE):
        assert (await box.append(user, number)).length == 1
        await box.converse(user, number, "")
    assert (await box.totals()).users == len(HOSTILE)
    # when each is taken, expect its own message, and its id as it was
    for number, user in enumerate(HOSTILE):
        batch = await box.take(user, max_attempts=1)
        assert (batch.key, [m.data for m in batch.messages], [p.user for p in batch.pairs]) == (
            user,
            [number],
            [number],
        )
        assert await box.nack(batch, error="x") is True
    assert {letter.key for letter in await box.dead_letters()} == set(HOSTILE)
    for letter in await box.dead_letters():
        assert await box.replay(letter.id) == 1
    for number, user in enumerate(HOSTILE):
        assert await box.ack(await box.take(user)) == 0
        await box.append(user, number)
        await box.forget(user)
    assert (await box.totals()).users == 0
    # and the hash tag is ours
    assert all(key.count("{") == 1 and key.count("}") == 1 for key in boxes.lives())


async def test_names_of_every_kind_are_apart(boxes: Boxes):
    box = await boxes.box()
    names = ["a:b", "a%3ab", "a\nb", "{a}", "}", "*", "a b", "\x00", "é", "e\u0301", "\ud800", "a.5", "5"]
    for name in names:
        other = box.actor.hf.buffer(name)
        await box.actor.do(lambda _, other=other, name=name: other.append("u", name.encode("utf-8", "surrogatepass")))
    for name in names:
        other = box.actor.hf.buffer(name)
        batch = await box.actor.do(lambda _, other=other: other.take("u", lease=20))
        assert [m.data for m in batch.messages] == [name.encode("utf-8", "surrogatepass")]
        assert await box.ack(batch) == 0


async def test_attachments_have_names_of_every_kind(quick: Boxes):
    box = await quick.box()
    names = ["a:b", "a\nb", "{a}", "*", "\x00", "é", "e\u0301", "☃" * 66, "1 2", "taken"]
    message = await box.append("u", 1, pending=names)
    for number, name in enumerate(names):
        assert await box.resolve("u", message.id, name, number) is True
    (popped,) = await box.pop("u")
    assert dict(popped.attachments) == {name: number for number, name in enumerate(names)}


async def test_an_id_that_is_none_is_refused(quick: Boxes):
    box = await quick.box()
    for wrong in ("", b"", "x" * 513, "é" * 257, 7, None, ("a",), bytearray(b"a")):
        for call in (
            lambda wrong=wrong: box.buffer.append(wrong, 1),
            lambda wrong=wrong: box.buffer.take(wrong),
            lambda wrong=wrong: box.buffer.pop(wrong),
            lambda wrong=wrong: box.buffer.forget(wrong),
        ):
            await refuses(quick, box, call, InvalidId)


# -- payloads -------------------------------------------------------------------------------------------------------


async def test_payloads_come_back_as_they_were(boxes: Boxes):
    box = await boxes.box()
    values = [
        None, True, False, 0, -1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**64), 10**3000, 0.1, -0.0, 1e308, 5e-324,
        "", "☃", "\x00", "a" * 10_000, b"", b"\x00\xff" * 5000, [], {}, [[], [None]], {"a": {"b": [1, b"x", 10**30]}},
        {"é": 1, "e\u0301": 2, "": 3}, nested(60), "\u2028 \x7f \U0010ffff", b"\xcb\x7f\xf8", "\xcb\x7f",
    ]  # fmt: skip
    await box.extend("u", values)
    await box.converse("u", values, {"values": values})
    batch = await box.take("u")
    got = [message.data for message in batch.messages]
    assert got == values
    assert [type(value) for value in got] == [type(value) for value in values]
    assert math.copysign(1, got[values.index(0.1) + 1]) == -1
    assert (batch.pairs[0].user, batch.pairs[0].assistant) == (values, {"values": values})
    assert (await box.totals()).dead_letters == 0


class Thing:
    pass


async def test_what_is_no_payload_is_refused_before_anything_is_sent(quick: Boxes):
    box = await quick.box(max_message=1000)
    loop: list = []
    loop.append(loop)
    wrong = [
        math.nan, math.inf, -math.inf, {"a": [math.nan]}, {math.nan: 1}, nested(2000), nested(600, 10**30),
        nested(600, math.inf), loop, Thing(), Thing, print, {"a": Thing()}, "\ud800", {"\ud800": 1}, 10**5000, 1j,
        (n for n in ()),
    ]  # fmt: skip
    for value in wrong:
        await refuses(quick, box, lambda value=value: box.buffer.append("u", value), InvalidPayload)
        await refuses(quick, box, lambda value=value: box.buffer.extend("u", [1, value]), InvalidPayload)
        await refuses(quick, box, lambda value=value: box.buffer.converse("u", "x", value), InvalidPayload)
        await refuses(quick, box, lambda value=value: box.buffer.resolve("u", "00" * 10, "f", value), InvalidPayload)
    for large in (b"x" * 1000, "x" * 1000, ["x"] * 1000, b"x" * (64 << 20)):
        await refuses(quick, box, lambda large=large: box.buffer.append("u", large), TooLarge)
        await refuses(quick, box, lambda large=large: box.buffer.converse("u", large, ""), TooLarge)
        await refuses(quick, box, lambda large=large: box.buffer.resolve("u", "00" * 10, "f", large), TooLarge)
    assert await box.count("u") == 0
    await box.append("u", b"x" * 996)


async def test_what_one_stack_can_write_another_can_read(quick: Boxes):
    """PITFALL 51: nesting that is accepted is not quarantined later, because its reader is deeper in its own calls."""
    box = await quick.box()
    accepted = []
    for levels in (50, 100, 200, 400, 900):
        try:
            await box.append("u", nested(levels))
        except InvalidPayload:
            break
        accepted.append(levels)
    assert len(accepted) >= 2

    def deeper(levels, call):
        return call() if levels == 0 else deeper(levels - 1, call)

    from holdfast.engine.payload import decode, encode

    data = [encode(nested(levels), 100_000) for levels in accepted]
    deeper(500, lambda: [decode(one) for one in data])


# -- arguments ------------------------------------------------------------------------------------------------------


async def test_a_buffer_cannot_be_made_with_nonsense(quick: Boxes):
    box = await quick.box()
    hf = box.actor.hf
    for options in (
        {"capacity": 0}, {"capacity": -1}, {"capacity": 10**9}, {"capacity": 1.5}, {"capacity": True},
        {"capacity": "many"}, {"ttl": 0}, {"ttl": -1}, {"ttl": math.nan}, {"ttl": math.inf}, {"ttl": "day"},
        {"ttl": 10**12}, {"ttl": True}, {"max_bytes": 0}, {"max_bytes": 32}, {"max_bytes": -5}, {"max_bytes": 1 << 40},
        {"max_message": 0}, {"max_message": -1}, {"conversations": 0}, {"conversations": 10**6},
        {"conversation_ttl": 0}, {"conversation_ttl": math.nan},
    ):  # fmt: skip
        await refuses(quick, box, lambda options=options: hf.buffer("b", **options))
    for name in ("", "x" * 65, 7, None, b"bytes", "☃" * 30):
        await refuses(quick, box, lambda name=name: hf.buffer(name))


async def test_calls_with_nonsense_are_refused_before_anything_is_sent(quick: Boxes):
    box = await quick.box()
    await box.extend("u", [1, 2])
    b = box.buffer
    for limit in (0, -1, 1001, 10**9, 1.5, True, "1", None):
        await refuses(quick, box, lambda limit=limit: b.pop("u", limit))
        await refuses(quick, box, lambda limit=limit: b.peek("u", limit))
        await refuses(quick, box, lambda limit=limit: b.take("u", limit))
        await refuses(quick, box, lambda limit=limit: b.dead_letters(limit))
    for options in (
        {"lease": 0}, {"lease": -1}, {"lease": 86_401}, {"lease": math.nan}, {"lease": "long"}, {"max_attempts": 0},
        {"max_attempts": -1}, {"max_attempts": 10**9}, {"max_hold": 0}, {"max_hold": -1}, {"max_hold": math.inf},
    ):  # fmt: skip
        await refuses(quick, box, lambda options=options: b.take("u", **options))
    for items in ([], "abc", b"abc", {"a": 1}, 7, None, (n for n in (1, 2)), {1, 2}, [0] * 1001):
        await refuses(quick, box, lambda items=items: b.extend("u", items))
    for pending in (
        "abc", b"abc", [""], ["x" * 201], [7], [None], 5, ["\ud800"], {"f": 0}, {"f": -1}, {"f": math.nan},
        {"f": "soon"}, {"f": 10**12},
    ):  # fmt: skip
        await refuses(quick, box, lambda pending=pending: b.append("u", 1, pending=pending))
    for letter in ("", "1", "1.", ".1", "64.1", "-1.1", "1.1.1", "a.b", 7, None):
        for call in (b.dead_letter, b.replay, b.purge):
            await refuses(quick, box, lambda call=call, letter=letter: call(letter))
    assert await box.count("u") == 2


async def test_a_batch_refuses_nonsense_and_stays_held(quick: Boxes):
    box = await quick.box()
    await box.extend("u", [1, 2])
    batch = await box.take("u", lease=20)
    for delay in (-1, math.nan, math.inf, 86_401, "soon", None):
        await refuses(quick, box, lambda delay=delay: batch.nack(delay))
    for ids in (["x"], [""], [7], [None], "abc", [batch.messages[0].id + "0"]):
        await refuses(quick, box, lambda ids=ids: batch.ack(ids))
    assert not batch.done
    # Nothing is not everything, however it is passed.
    for nothing in ([], (), set(), iter(()), (one for one in ()), {}.keys()):
        with contextlib.suppress(ConfigurationError):
            assert await box.ack(batch, nothing) == 2
    stats = await box.stats("u")
    assert (stats.held, stats.in_flight) == (True, 2)
    assert await box.ack(batch) == 0


@pytest.mark.parametrize("twin", [holdfast.Holdfast, holdfast.sync.Holdfast])
async def test_a_buffer_may_be_made_before_its_client_is_open(valkey: Backend, twin):
    hf = twin(valkey.url)
    box = hf.buffer("inbox")
    assert "inbox" in repr(box)
    with pytest.raises(ConfigurationError, match="open it first"):
        await maybe(box.count, "u")


async def maybe(call, *args):
    result = call(*args)
    return await result if inspect.isawaitable(result) else result

"""PITFALLS 13, 23, 47 and 50 to 52 for buffers: each check holds, and fails with the bug put back."""

from __future__ import annotations

import contextlib
import pickle
import unicodedata
from typing import Any

import pytest

from holdfast import ConfigurationError, NewerPayload, NotAcquired, ServerFull, UnreadablePayload
from holdfast.buffers import flows, holding
from holdfast.buffers import message as message_module
from holdfast.buffers import spec as spec_module
from holdfast.buffers.batch import Batch
from holdfast.buffers.buffer import Buffer
from holdfast.engine import payload
from holdfast.engine.payload import decode, encode
from support.backends import Backends
from support.conditions import until
from support.mutants import Bug, Case, Pitfalls, World, fails, holds, lua, must, patch

cases = Pitfalls()


def data_of(messages: Any) -> list:
    return [message.data for message in messages]


async def taken(buffer: Buffer, user: Any, **options: Any) -> Batch | None:
    try:
        return await buffer.take(user, **options)
    except NotAcquired:
        return None


async def absorbing(world: World, **options: Any) -> tuple[Buffer, list]:
    """An absorber that runs as long as the check, and what it has seen."""
    client, seen = await world.client(sweep=0.2), []
    buffer = client.buffer("b")

    @client.absorber(buffer, **options)
    async def handler(batch: Batch) -> None:
        seen.extend(data_of(batch.messages))

    world.start(client.work())
    return buffer, seen


# -- 13: a clock that jumps -----------------------------------------------------------------------------------------


@cases.pitfall(
    13,
    deadline_believed=lua(
        "buffers/take", "if deadline > now and deadline - now <= span then", "if deadline > now then"
    ),
)
async def a_server_clock_set_back_does_not_make_a_dead_workers_batch_wait(world: World):
    # Given a worker that dies
    server, clock = world.server_with_clock()
    one, two = (await world.client(server.url)).buffer("b"), (await world.client(server.url)).buffer("b")
    await one.append("u", 1)
    dead = await one.take("u", lease=1)
    dead._taking.hold.abandoned = True
    # when the clock goes back by an hour, expect its batch to be free in about a lease, with a higher fence
    clock.move(-3600)
    again = await until(lambda: taken(two, "u"), within=1.2, what="PITFALL 13: a dead worker's batch after the jump")
    assert (again.id, again.fence > dead.fence) == (dead.id, True), "PITFALL 13: fences went back with the clock"
    assert await again.ack() == 0


# -- 23: who is due -------------------------------------------------------------------------------------------------


@cases.pitfall(
    13,
    healthy_holder_cut_off=lua(
        "buffers/renew", "deadline > now then", "deadline > now and deadline - now <= span then"
    ),
)
async def a_server_clock_set_back_does_not_cost_a_healthy_worker_its_batch(world: World):
    # Given a worker that is well
    server, clock = world.server_with_clock()
    inbox = (await world.client(server.url)).buffer("b")
    await inbox.append("u", 1)
    batch = await inbox.take("u", lease=1)
    # when the clock goes back by an hour and a renewal comes, expect it to keep what it has
    clock.move(-3600)
    before = batch.deadline
    await until(lambda: batch.lost or batch.deadline > before, within=10, what="a renewal")
    assert not batch.lost, "PITFALL 13: a healthy worker lost its batch to the clock"
    assert await batch.ack() == 0


@cases.pitfall(
    23,
    leaves_the_index=lua(
        "buffers/_schedule", "if b > 0 then return", "if b > 0 then return 0 end if b > 0 then return"
    ),
)
async def the_batch_of_a_dead_worker_is_found_without_an_append(world: World):
    buffer = (await world.client()).buffer("b")
    await buffer.extend("u", [1, 2])
    dead = await buffer.take("u", lease=0.2)
    dead._taking.hold.abandoned = True
    _, seen = await absorbing(world, threshold=10)
    await until(lambda: seen == [1, 2], within=0.8, what="PITFALL 23: a worker, for the batch that a dead one had")


@cases.pitfall(
    23,
    nothing_triggers=lua(
        "buffers/ack",
        "finish(false)",
        "if n > 0 then write() call('ZREM', base .. 'due', member) else finish(false) end",
    ),
)
async def what_came_while_a_batch_was_in_flight_is_absorbed_after_it(world: World):
    buffer = (await world.client()).buffer("b")
    _, seen = await absorbing(world, threshold=3)
    await buffer.append("u", 0)
    batch = await buffer.take("u")
    await buffer.extend("u", [1, 2, 3])
    assert seen == [], "PITFALL 23: two workers at once"
    await batch.ack()
    await until(lambda: seen == [1, 2, 3], within=0.6, what="PITFALL 23: a worker, after the lock was busy")


@cases.pitfall(
    23,
    given_back_to_nobody=lua(
        "buffers/nack",
        "finish(false)\nreturn {'returned'}",
        "write()\ncall('ZREM', base .. 'due', member)\nreturn {'returned'}",
    ),
)
async def what_was_given_back_is_absorbed_without_an_append(world: World):
    buffer = (await world.client()).buffer("b")
    await buffer.append("u", 1)
    batch = await buffer.take("u")
    _, seen = await absorbing(world, threshold=10)
    await batch.nack(0.1)
    await until(lambda: seen == [1], within=0.6, what="PITFALL 23: a worker, for what was given back")


# -- 47: a full server ----------------------------------------------------------------------------------------------


def _refused_when_full(name: str) -> Bug:
    return lua(f"buffers/{name}", "#!lua flags=allow-oom\n", "#!lua\n")


@cases.pitfall(
    47,
    **{name: _refused_when_full(name) for name in ("take", "ack", "nack", "renew", "pop", "clear", "revive")},
    append=lua("buffers/append", "#!lua\n", "#!lua flags=allow-oom\n"),
)
async def what_frees_works_on_a_full_server_and_what_adds_is_refused(world: World):
    server = world.server()
    client, other = await world.client(server.url), await world.client(server.url)
    buffer = client.buffer("b")
    for user in ("taken", "popped", "cleared", "forgotten"):
        await buffer.extend(user, [1, 2])
    await buffer.append("dead", 1)
    await (await buffer.take("dead", max_attempts=1)).nack()
    server.call("CONFIG", "SET", "maxmemory", 1)
    # what adds is refused, and loses nothing
    with contextlib.suppress(ServerFull):
        await buffer.append("taken", 3)
        raise AssertionError("PITFALL 47: a full server was made to take more")
    assert data_of(await buffer.peek("taken")) == [1, 2], "PITFALL 47: a refused append lost what was there"
    # what frees is not
    batch = await must(buffer.take("taken", lease=0.9), "PITFALL 47: nothing can be taken from a full server")
    before = batch.deadline
    renewed = lambda: batch.lost or batch.deadline > before  # noqa: E731
    await until(renewed, within=2, what="PITFALL 47: a renewal on a full server")
    assert not batch.lost, "PITFALL 47: a batch is lost because the server is full"
    await must(batch.nack(), "PITFALL 47: nothing can be given back to a full server")
    again = await taken(other.buffer("b"), "taken")
    assert again is not None, "PITFALL 47: what was given back to a full server is still held"
    assert await must(again.ack(), "PITFALL 47: a full server cannot be emptied by acknowledging") == 0
    assert len(await must(buffer.pop("popped", 2), "PITFALL 47: a full server cannot be emptied by popping")) == 2
    assert await must(buffer.clear("cleared"), "PITFALL 47: a full server cannot be emptied by clearing") == 2
    await must(buffer.forget("forgotten"), "PITFALL 47: nobody can be forgotten on a full server")
    (letter,) = await buffer.dead_letters()
    assert await must(buffer.purge(letter.id), "PITFALL 47: a full server cannot be emptied of dead letters") == 1
    server.call("CONFIG", "SET", "maxmemory", 0)
    assert (await buffer.append("taken", 4)).length == 1


# -- 50: ids --------------------------------------------------------------------------------------------------------

HOSTILE = [
    "a\nb",
    "{a}",
    "}a{",
    "*",
    "\x00",
    "a b",
    "\ud800",
    b"\xff",
    b"\xfe",
    "é",
    "e\u0301",
    "a:b",
    "a%3ab",
    "a%253ab",
    "!",
]


def _normalised(value: Any) -> bytes:
    return unicodedata.normalize("NFC", value).encode("utf-8", "surrogatepass") if isinstance(value, str) else value


@cases.pitfall(
    50,
    joined_as_it_is=patch(spec_module, "encode", lambda raw: raw.decode("utf-8", "replace").replace("\0", "")),
    normalised=patch(spec_module, "id_bytes", _normalised),
    braces_as_they_are=patch(spec_module, "encode", lambda raw: raw.hex().replace(b"{".hex(), "{")),
)
async def every_user_has_a_key_of_its_own_and_the_hash_tag_is_ours(world: World):
    buffer, server = (await world.client()).buffer("b"), world.redis()
    for number, user in enumerate(HOSTILE):
        try:
            done = await buffer.append(user, number)
        except UnicodeError as error:
            raise AssertionError(f"PITFALL 50: {user!r} cannot be used ({error!r})") from error
        assert done.length == 1, f"PITFALL 50: {user!r} has the messages of another user"
    for key in server.scan_iter(count=1000):
        assert (key.count(b"{"), key.count(b"}")) == (1, 1), f"PITFALL 50: {key!r} has a hash tag that is not ours"
        assert key.startswith(b"hf:{buffer.b."), f"PITFALL 50: {key!r}"
    for number, user in enumerate(HOSTILE):
        batch = await buffer.take(user)
        assert data_of(batch.messages) == [number], f"PITFALL 50: {user!r} has the messages of another user"
        assert batch.key == user, f"PITFALL 50: {user!r} came back as {batch.key!r}"


# -- 51: poison -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written_as(data: bytes) -> Any:
    """What is appended meanwhile is stored as these bytes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(flows, "encode", lambda value, limit: data)
        yield


POISON = [
    b"\x01\xc1",
    b"\x01",
    b"",
    b"\x00\x01",
    b"\x01\x93\x01",
    b"\x01" + b"\x91" * 5000 + b"\x01",
    b"\x01\xd4\x63\x00",
    b"{",
]


def _strict(entries: Any, files: Any) -> Any:
    return [message_module.Message(e[:10].hex(), decode(e[17:]), 0.0) for e in entries], []


def _quietly(*args: Any) -> Any:
    return
    yield


@cases.pitfall(51, blocks=patch(holding, "parse_messages", _strict), swallowed=patch(holding, "_quarantine", _quietly))
async def a_poisoned_message_is_put_aside_and_its_neighbours_flow_on(world: World):
    buffer = (await world.client()).buffer("b")
    for number, data in enumerate(POISON):
        await buffer.append("u", number)
        with written_as(data):
            await buffer.append("u", "poison")
    batch = await must(buffer.take("u"), "PITFALL 51: one poisoned message blocks its user")
    assert data_of(batch.messages) == list(range(len(POISON))), "PITFALL 51: neighbours of a poisoned message are gone"
    await batch.ack()
    letters = await buffer.dead_letters()
    assert sum(one.count for one in letters) == len(POISON), "PITFALL 51: what cannot be read was lost without a trace"
    with written_as(POISON[0]):
        await buffer.append("alone", "poison")
    assert await must(buffer.take("alone"), "PITFALL 51: a poisoned message alone") is None
    assert (await buffer.stats("alone")).in_flight == 0, "PITFALL 51: a poisoned message is handed out for ever"


@cases.pitfall(51, put_aside=patch(holding, "NewerPayload", type("Never", (UnreadablePayload,), {})))
async def what_a_newer_version_wrote_waits_for_a_newer_worker(world: World):
    buffer = (await world.client()).buffer("b")
    newer = b"\x1f" + encode("new", 100)[1:]
    world.patch.setattr(holding, "LATER", 0.2)
    with written_as(newer):
        await buffer.append("u", "new")
    await buffer.append("u", "old")
    with contextlib.suppress(NewerPayload):
        batch = await buffer.take("u")
        raise AssertionError(f"PITFALL 51: {data_of(batch.messages)} was taken without what a newer version wrote")
    assert await buffer.dead_letters() == [], "PITFALL 51: what a newer version wrote was put aside"
    stats = await buffer.stats("u")
    assert (stats.in_flight, stats.held) == (2, False), "PITFALL 51: what a newer version wrote is gone"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(message_module, "decode", lambda data: decode(b"\x01" + data[1:]))
        again = await until(lambda: taken(buffer, "u"), what="the newer worker")
    assert data_of(again.messages) == ["new", "old"]


def nested(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = [value]
    return value


@cases.pitfall(
    51,
    size=patch(flows, "encode", lambda value, limit: encode(value, 1 << 30)),
    nan=patch(flows, "encode", lambda value, limit: b"\x01" + payload._encoder.encode(value)),
)
async def what_cannot_be_stored_is_refused_before_the_network(world: World):
    buffer, server = (await world.client()).buffer("b"), world.redis()
    await buffer.append("u", "good")
    server.config_resetstat()
    for value in (float("nan"), float("inf"), [float("nan")], nested(500), b"x" * (64 << 20), "\ud800"):
        with contextlib.suppress(ConfigurationError):
            await buffer.append("u", value)
            raise AssertionError("PITFALL 51: what is no JSON value, too deep or too large was sent")
    calls = server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    assert calls == 0, "PITFALL 51: something was sent before it was refused"
    assert data_of(await buffer.peek("u")) == ["good"]


# -- 52: code, searches, secrets ------------------------------------------------------------------------------------

RAN: list[str] = []


def explode() -> None:
    RAN.append("ran")


class Bomb:
    def __reduce__(self) -> Any:
        return explode, ()


@cases.pitfall(52, pickled=patch(message_module, "decode", lambda data: pickle.loads(data)))
async def what_is_stored_cannot_run_code_here(world: World):
    RAN.clear()
    buffer = (await world.client()).buffer("b")
    with written_as(pickle.dumps(Bomb())):
        await buffer.append("u", "poison")
    with contextlib.suppress(NewerPayload):
        await buffer.peek("u")
        await buffer.take("u")
    assert RAN == [], "PITFALL 52: a stored message ran code in its worker"


@cases.pitfall(52, searched=lua("buffers/totals", "-- include time\n", "-- include time\ncall('KEYS', 'x*')\n"))
async def nothing_searches_the_key_space(world: World):
    server = world.redis()
    buffer, seen = await absorbing(world, threshold=1)
    server.config_resetstat()
    await buffer.append("u", 1)
    await until(lambda: seen == [1])
    await buffer.append("v", 1, pending=["f"])
    await buffer.clear("v")
    await buffer.forget("u")
    await buffer.totals()
    await buffer.dead_letters()
    used = {name.removeprefix("cmdstat_").partition("|")[0] for name in server.info("commandstats")}
    assert "evalsha" in used
    assert not used & {"keys", "scan", "flushall", "flushdb", "randomkey"}, "PITFALL 52: the key space is searched"


SECRET = "my-private-words"


@cases.pitfall(
    52,
    shown=patch(Batch, "__repr__", lambda batch: f"<Batch {batch.messages}>"),
    in_errors=patch(payload, "_depth", lambda value: (_ for _ in ()).throw(ValueError(value))),
)
async def payloads_are_not_shown(world: World):
    events: list[Any] = []
    buffer = (await world.client(observers=[events.append])).buffer("b", capacity=2, max_message=5000)
    shown = [repr(buffer)]
    await buffer.converse("u", SECRET, SECRET)
    done = await buffer.extend("u", [SECRET] * 3)
    with written_as(b"\x01\xc1" + SECRET.encode()):
        await buffer.append("u", SECRET)
    batch = await buffer.take("u", max_attempts=1)
    shown += [repr(done), repr(batch)]
    for wrong in ([SECRET] * 3000, [[SECRET, object()]], nested(300, SECRET), {SECRET: float("nan")}):
        with pytest.raises(ConfigurationError) as refused:
            await buffer.append("u", wrong)
        shown.append(str(refused.value))
    await batch.nack(error="broken")
    shown += [repr(one) for one in await buffer.dead_letters()] + [repr(one) for one in events]
    assert not [text for text in shown if SECRET in text], "PITFALL 52: a payload is shown"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)

"""What an operation on runs costs: one round trip, and a fixed number of commands whatever the collection holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from holdfast import Holdfast
from holdfast.runs import flows, owning
from support.backends import Backend
from support.conditions import until

BASE = "hf:{runs.agent}:"
SENT = ("evalsha", "eval", "ssubscribe", "sunsubscribe", "script|load")


@pytest.fixture
def server(valkey: Backend) -> Iterator[redis.Redis]:
    client = valkey.owner.client()
    yield client
    client.flushall()
    client.close()


@pytest.fixture
async def hf(valkey: Backend, server: redis.Redis) -> AsyncIterator[Holdfast]:
    async with Holdfast(valkey.url) as made:
        yield made


def calls(server: redis.Redis) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in server.info("commandstats").items()}


async def commands_of(server: redis.Redis, work: Callable[[], Awaitable[Any]]) -> dict[str, int]:
    """Commands that this caused, those inside scripts too."""
    before = calls(server)
    await work()
    after = calls(server)
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0) and name != "info"}


def sent(done: dict[str, int]) -> int:
    return sum(done.get(name, 0) for name in SENT)


async def took(hf: Holdfast, most: int, attempts: int = 5) -> list[Any]:
    core, spec = hf._core, hf.runs("agent")._spec
    flow = owning.take(core, spec, core.new_token(), most, attempts, 30.0, hf._open.home())
    return (await hf._open.run(flow)).given


async def filled(hf: Holdfast, prefix: str, count: int, key: Callable[[int], str | None]) -> None:
    agent = hf.runs("agent", max_waiting=10_000)
    starts = (agent.start(f"{prefix}{n}", key=key(n), conflict="queue") for n in range(count))
    await asyncio.gather(*starts)


# -- one round trip -------------------------------------------------------------------------------------------------


async def test_each_operation_is_one_round_trip(hf: Holdfast, server: redis.Redis):
    agent = hf.runs("agent", emit_delay=60)

    async def one(work: Callable[[], Awaitable[Any]]) -> int:
        return sent(await commands_of(server, work))

    for turn in range(2):  # the first time scripts are loaded
        a, b = f"a{turn}", f"b{turn}"
        costs = {"start": await one(lambda: agent.start(a, {"x": 1}, key=a))}  # noqa: B023
        costs["start that exists"] = await one(lambda: agent.start(a, {"x": 1}, key=a))  # noqa: B023
        costs["replace"] = await one(lambda: agent.start(b, key=a, conflict="replace"))  # noqa: B023
        costs["get"] = await one(lambda: agent.get(b))  # noqa: B023
        run = await agent.claim(b)
        for number in range(50):
            await run.emit(number)
        costs["checkpoint with 50 events"] = await one(lambda: run.checkpoint([1]))  # noqa: B023
        costs["step"] = await one(lambda: run.step("s", lambda: 1))  # noqa: B023
        costs["stop"] = await one(lambda: agent.stop(b))  # noqa: B023
        costs["stop_all"] = await one(lambda: agent.stop_all(a))  # noqa: B023
        await run.emit("last")
        costs["end with an event"] = await one(lambda: run._settle("completed", ""))  # noqa: B023
    assert costs == dict.fromkeys(costs, 1)


async def test_many_are_taken_in_one_round_trip(hf: Holdfast, server: redis.Redis):
    await filled(hf, "r", 41, lambda n: None)
    (first,) = await took(hf, 1)
    given: list[Any] = []

    async def take() -> None:
        given.extend(await took(hf, 40))

    assert sent(await commands_of(server, take)) == 1
    assert len(given) == 40
    for one in [first, *given]:
        hf._core.end(one.hold)


async def test_a_stream_of_tokens_costs_few_round_trips(hf: Holdfast, server: redis.Redis):
    agent = hf.runs("agent", emit_delay=0.02)
    run = await agent.claim("warm")
    await run.emit("x")
    await run._settle("completed", "")
    run = await agent.claim("run")

    async def at_once() -> None:
        for number in range(1000):
            await run.emit(number)
        await run.flush()

    async def over_a_while() -> float:
        begun = asyncio.get_running_loop().time()
        for number in range(1000):
            await run.emit(number)
            if number % 4 == 0:
                await asyncio.sleep(0.001)
        await run.flush()
        return asyncio.get_running_loop().time() - begun

    assert sent(await commands_of(server, at_once)) <= 4
    seconds = [0.0]

    async def timed() -> None:
        seconds[0] = await over_a_while()

    # one for each `emit_delay`, not one for each token
    assert sent(await commands_of(server, timed)) <= seconds[0] / 0.02 + 4
    await run._settle("completed", "")
    assert (await agent.get("run")).events == 2000


# -- whatever the collection holds ----------------------------------------------------------------------------------


async def work_of_each(hf: Holdfast, server: redis.Redis, turn: str) -> dict[str, dict[str, int]]:
    """What each operation makes the server do, on a run and a key of its own."""
    agent, costs = hf.runs("agent", emit_delay=60, max_waiting=10_000), {}

    async def measure(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        answer: list[Any] = []

        async def go() -> None:
            answer.append(await work())

        costs[name] = await commands_of(server, go)
        return answer[0]

    await measure("start", lambda: agent.start(turn, key=turn))
    await measure("start that waits", lambda: agent.start(f"{turn}w", key=turn, conflict="queue"))
    await measure("get", lambda: agent.get(turn))
    run = await measure("claim", lambda: agent.claim(turn))
    await run.emit("x")
    await measure("write", run.flush)
    await measure("end that gives the slot on", lambda: run._settle("completed", ""))
    await measure("stop of a queued one", lambda: agent.stop(f"{turn}w"))
    await measure("totals", agent.totals)
    await measure("list", lambda: agent.list(count=5))
    await measure("sweep", lambda: hf._open.run(flows.sweep(hf._core, agent._spec)))
    for one in await measure("take", lambda: took(hf, 1)):
        hf._core.end(one.hold)
    return costs


@pytest.mark.parametrize("kind", ["queued", "waiting", "ended", "owned"])
async def test_the_work_does_not_grow_with_the_collection(hf: Holdfast, server: redis.Redis, kind: str):
    """The same commands in each script with ten runs and with a thousand."""
    agent = hf.runs("agent", max_waiting=10_000, lease=60)
    counts = []
    for turn, more in (("warm", 10), ("few", 10), ("many", 1000)):
        key = (lambda n: "busy") if kind == "waiting" else (lambda n, t=turn: f"{t}{n}" if n % 2 else None)  # type: ignore[misc]
        await filled(hf, f"{turn}-{kind}-", more, key)
        if kind == "ended":
            await asyncio.gather(*(agent.stop(f"{turn}-{kind}-{n}") for n in range(more)))
        elif kind == "owned":
            while given := await took(hf, 64):
                for one in given:
                    hf._core.end(one.hold)
        counts.append(await work_of_each(hf, server, turn))
    _, few, many = counts
    for name, commands in few.items():
        grown = {what: (n, many[name].get(what, 0)) for what, n in commands.items() if many[name].get(what, 0) > n + 1}
        assert not grown, f"{name} with {kind} runs: {grown}"


# -- readers, workers, memory ---------------------------------------------------------------------------------------


async def test_fifty_readers_share_one_subscription_and_what_comes(hf: Holdfast, server: redis.Redis, valkey: Backend):
    async with Holdfast(valkey.url) as owner:
        run = await owner.runs("agent", emit_delay=0).claim("run")
        await run.emit("first")
        await run.flush()
        got = [0] * 50

        async def read(number: int) -> None:
            async for event in hf.runs("agent").events("run"):
                got[number] += event.kind == "data"

        async def join() -> None:
            tasks.extend(asyncio.create_task(read(number)) for number in range(50))
            await until(lambda: got == [1] * 50)

        tasks: list[asyncio.Task[None]] = []
        done = await commands_of(server, join)
        assert sent(done) <= 6, done
        channel = f"{BASE}ev:run"
        assert server.pubsub_shardnumsub(channel) == [(channel.encode(), 1)]
        before = server.info("stats")["total_net_output_bytes"]

        async def emit() -> None:
            for number in range(100):
                await run.emit("x" * 1000)
                await run.flush()
                await until(lambda n=number: min(got) == n + 2)

        done = await commands_of(server, emit)
        spread = server.info("stats")["total_net_output_bytes"] - before
        assert spread < 2 * 100 * 1000, f"{spread} bytes for 100 kB of events and 50 readers"
        assert done["evalsha"] <= 100 + 10, "readers that are up to date ask nobody"
        await run._settle("completed", "")
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        await until(lambda: server.pubsub_shardnumsub(channel) == [(channel.encode(), 0)])


async def test_an_idle_worker_costs_about_nothing(hf: Holdfast, server: redis.Redis):
    agent = hf.runs("agent")
    ended = asyncio.Event()

    @hf.runner(agent)
    async def think(run: Any) -> None:
        ended.set()

    work = asyncio.create_task(hf.work())
    await agent.start("warm")
    await ended.wait()
    await agent.wait("warm")
    await until(lambda: server.zcard(f"{BASE}idle") == 1)
    done = await commands_of(server, lambda: asyncio.sleep(2.0))
    assert sent(done) <= 2, done
    hf.stop_work()
    await work


async def test_an_ended_run_takes_little_memory_and_gives_it_back(hf: Holdfast, server: redis.Redis):
    agent = hf.runs("agent", retention=1.5)
    await agent.start("warm")
    await agent.stop("warm")
    before = server.info("memory")["used_memory"]

    async def one(number: int) -> None:
        await agent.start(f"run-{number}", {"question": "x" * 50}, key=f"k{number % 100}", conflict="queue")
        await agent.stop(f"run-{number}", "no")

    await asyncio.gather(*(one(number) for number in range(500)))
    each = (server.info("memory")["used_memory"] - before) / 500
    assert each < 1500, f"{each} bytes for each ended run"

    def left() -> int:
        with contextlib.suppress(redis.ResponseError):
            return sum(1 for _ in server.scan_iter(match=f"{BASE}r:*", count=1000))
        return -1

    await until(lambda: left() == 0, within=10, what="the end of their retention")
    for number in range(8):  # each end takes a hundred of the old ones out of the index
        await agent.start(f"last-{number}", key="k0")
        await agent.stop(f"last-{number}")
    assert server.zcard(f"{BASE}is:stopped") <= 8
    assert server.zcard(f"{BASE}h:k0") <= 8
    await until(lambda: list(server.scan_iter(match=f"{BASE}h:*")) == [f"{BASE}h:k0".encode()], within=10)

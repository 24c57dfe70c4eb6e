"""The decorators for task queues, called without a queue: names, keys, what the body gets, and what is refused."""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import celery
import pytest

import holdfast
import holdfast.adapters.celery
import holdfast.adapters.dramatiq
from holdfast import ConfigurationError, RunActive, RunEnded, RunStopped
from holdfast.sync import Holdfast, Runs

ADAPTERS = {"celery": holdfast.adapters.celery, "dramatiq": holdfast.adapters.dramatiq}


@pytest.fixture
def hf(valkey: Any) -> Iterator[Holdfast]:
    client = Holdfast(valkey.url)  # as in a queue's worker: nobody opens it
    yield client
    client.close()
    valkey.flush()


@pytest.fixture
def agent(hf: Holdfast) -> Runs:
    return hf.runs("agent")


@pytest.fixture(params=ADAPTERS)
def as_run(request: pytest.FixtureRequest) -> Any:
    return ADAPTERS[request.param].as_run


def test_names_are_templates_of_the_arguments(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf, agent, "order:{order}:{size}", key="user:{user}")
    def pack(order: int, user: str, run: Any, size: str = "small") -> Any:
        return [run.id, run.key, order, size]

    assert pack(7, "ann") == ["order:7:small", "user:ann", 7, "small"]
    assert pack(9, "ann", "big") == ["order:9:big", "user:ann", 9, "big"]  # `run` is not counted
    with pytest.raises(TypeError, match="user"):
        pack(10)
    assert pack(order=8, user="bob", size="big") == ["order:8:big", "user:bob", 8, "big"]
    assert agent.get("order:8:big").result == ["order:8:big", "user:bob", 8, "big"]


def test_names_are_functions_of_the_arguments(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf, agent, lambda order: f"order-{order['id']}", key=lambda order: order["user"])
    def pack(order: dict[str, Any]) -> str:
        return "packed"

    assert pack({"id": 7, "user": "ann"}) == "packed"
    assert (agent.get("order-7").key, agent.get("order-7").state) == ("ann", "completed")


def test_arguments_of_any_kind_reach_the_body(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf, agent, lambda *args, **kwargs: f"{args}{kwargs}")
    def body(first: int, /, run: Any, *more: int, last: int = 0, **named: int) -> Any:
        return [first, list(more), last, named, run.id]

    assert body(1) == [1, [], 0, {}, "(1,){}"]
    assert body(1, 2, 3, last=4, x=5) == [1, [2, 3], 4, {"x": 5}, "(1, 2, 3){'last': 4, 'x': 5}"]


def test_the_body_is_not_run_again_and_its_result_is_answered(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    ran = []

    @as_run(hf, agent, "{name}")
    def body(name: str) -> dict[str, str]:
        ran.append(name)
        return {"hello": name}

    assert [body("a"), body("a"), body("b")] == [{"hello": "a"}, {"hello": "a"}, {"hello": "b"}]
    assert ran == ["a", "b"]


def test_a_result_that_the_body_set_itself_is_kept(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf, agent, "r")
    def body(run: Any) -> None:
        run.result = "set"

    assert body() is None
    assert body() == "set"


def test_without_a_queue_errors_are_raised_as_they_are(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf, agent, "{name}")
    def body(name: str, fail: bool = True) -> None:
        if fail:
            raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        body("a")
    with pytest.raises(RunEnded) as ended:
        body("a", fail=False)
    assert "no luck" in ended.value.run.reason
    with agent.claim("b"), pytest.raises(RunActive):
        body("b", fail=False)
    agent.start("c")
    agent.stop("c", "enough")
    with pytest.raises((RunEnded, RunStopped)):
        body("c", fail=False)


def test_another_run_that_the_body_meets_is_the_bodys_own_failure(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf.open(), agent, "{name}")
    def meets(name: str, other: str) -> None:
        agent.claim(other)

    with agent.claim("live"), pytest.raises(RunActive):
        meets("a", "live")
    assert agent.get("a").state == "failed"
    with pytest.raises(RunEnded):
        meets("b", "live")
    assert agent.get("b").state == "failed"


def test_a_stop_while_the_body_returns_is_a_stop(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf, agent, "r")
    def body(run: Any) -> str:
        agent.stop("r", "enough")
        while not run.stopping:
            pass
        return "too late"

    with pytest.raises(RunStopped):
        body()
    assert agent.get("r").state == "stopped"


def test_what_gives_the_run_back(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    tries = []

    @as_run(hf, agent, "r", give_back=(OSError,))
    def body(run: Any) -> int:
        tries.append(run.attempt)
        if len(tries) == 1:
            raise ConnectionResetError("the model hung up")
        if len(tries) == 2:
            raise KeyboardInterrupt
        return len(tries)

    with pytest.raises(ConnectionResetError):
        body()
    assert agent.get("r").state == "queued"
    with pytest.raises(KeyboardInterrupt):
        body()
    assert agent.get("r").state == "queued"
    assert body() == 3
    assert tries == [1, 2, 3]


def test_threads_that_come_at_once_open_the_client_once(
    hf: Holdfast, agent: Runs, as_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, connect = [], hf._core.connect
    monkeypatch.setattr(hf._core, "connect", lambda: (connected.append(1), time.sleep(0.05), connect()))

    @as_run(hf, agent, "{name}")
    def body(name: int) -> int:
        return name

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(body, range(8))) == list(range(8))
    assert connected == [1]


def test_callers_do_not_see_the_run(hf: Holdfast, agent: Runs, as_run: Any) -> None:
    @as_run(hf, agent, "{name}")
    def body(name: str, run: Any, size: int = 1) -> None:
        """What it does."""

    assert list(inspect.signature(body).parameters) == ["name", "size"]
    assert (body.__name__, body.__doc__) == ("body", "What it does.")
    app = celery.Celery("t", broker="memory://")
    task = app.task(body)
    with pytest.raises(TypeError, match="name"):
        task.delay()  # Celery checks the arguments when it sends


def test_what_is_refused(hf: Holdfast, agent: Runs, as_run: Any, valkey: Any) -> None:
    async def slow() -> None: ...

    with pytest.raises(ConfigurationError, match="plain function"):
        as_run(hf, agent)(slow)
    other: Any = holdfast.Holdfast(valkey.url)
    with pytest.raises(ConfigurationError, match=r"holdfast\.sync"):
        as_run(other, other.runs("agent"))(lambda: None)
    nameless = as_run(hf, agent)(lambda: None)
    with pytest.raises(ConfigurationError, match="run_id="):
        nameless()


def test_an_eager_celery_task_raises_instead_of_standing_by(hf: Holdfast, agent: Runs) -> None:
    app = celery.Celery("t", broker="memory://", task_always_eager=True, task_eager_propagates=True)

    @app.task
    @holdfast.adapters.celery.as_run(hf, agent)
    def body(run: Any) -> str:
        return str(run.id)

    assert body.apply_async(task_id="t-1").get() == "t-1"
    with hf, agent.claim("t-2"), pytest.raises(RunActive):
        body.apply_async(task_id="t-2")


@pytest.mark.parametrize(("name", "module"), [("celery", "celery"), ("dramatiq", "dramatiq.errors")])
def test_without_the_queue_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"holdfast.adapters.{name}")
    with pytest.raises(ConfigurationError, match=rf"pip install '\.\[{name}\]'"):
        importlib.import_module(f"holdfast.adapters.{name}")

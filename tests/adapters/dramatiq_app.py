"""The Dramatiq actors whose workers the tests start."""

from __future__ import annotations

from typing import Any

import dramatiq
import queue_bodies as bodies
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from holdfast.adapters.dramatiq import as_run

# A process that is silent for 1.5 seconds is taken for dead, and its messages are delivered again.
broker = RedisBroker(url=f"{bodies.URL}/1", heartbeat_timeout=1500, maintenance_chance=1_000_000)
results = RedisBackend(url=f"{bodies.URL}/2")
broker.add_middleware(CurrentMessage())
broker.add_middleware(Results(backend=results, store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(min_backoff=10)
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def think(name: str, run: Any) -> Any:
    return bodies.think(name, run)


@dramatiq.actor(min_backoff=10)
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE, stand_by=False)
def once(name: str, run: Any) -> Any:
    return bodies.think(name, run)


@dramatiq.actor(min_backoff=10)
@as_run(bodies.hf, bodies.agent)
def anonymous(run: Any) -> str:
    return str(run.id)


@dramatiq.actor(max_retries=5, min_backoff=10)
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def stubborn(name: str, run: Any, fail: bool = False) -> Any:
    return bodies.think(name, run, fail=fail)


@dramatiq.actor(max_retries=0)
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def patient(name: str, run: Any) -> Any:
    return {**bodies.think(name, run), "retries": CurrentMessage.get_current_message().options.get("retries", 0)}


@dramatiq.actor
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def hesitant(name: str, run: Any) -> Any:
    done = bodies.think(name, run)
    if run.attempt == 1:
        raise dramatiq.errors.Retry("not yet", delay=10)
    return done

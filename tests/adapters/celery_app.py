"""The Celery application whose worker the tests start."""

from __future__ import annotations

import os
from typing import Any

import queue_bodies as bodies
from celery import Celery

from holdfast.adapters.celery import as_run

app = Celery("celery_app", broker=f"{bodies.URL}/1", backend=os.environ.get("QUEUE_TEST_RESULTS", "cache+memory://"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def think(name: str, run: Any) -> Any:
    return bodies.think(name, run)


@app.task
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE, stand_by=False)
def once(name: str, run: Any) -> Any:
    return bodies.think(name, run)


@app.task(bind=True)
@as_run(bodies.hf, bodies.agent)
def anonymous(self: Any, run: Any) -> str:
    assert run.id == self.request.id
    return str(run.id)


@app.task(autoretry_for=(Exception,), retry_kwargs={"max_retries": 1, "countdown": 0.2})
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def stubborn(name: str, run: Any, fail: bool = False) -> Any:
    return bodies.think(name, run, fail=fail)


@app.task(bind=True, max_retries=0)
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def patient(self: Any, name: str, run: Any) -> Any:
    return {**bodies.think(name, run), "retries": self.request.retries}


@app.task(bind=True)
@as_run(bodies.hf, bodies.agent, "{name}", lease=bodies.LEASE)
def hesitant(self: Any, name: str, run: Any) -> Any:
    done = bodies.think(name, run)
    if run.attempt == 1:
        raise self.retry(countdown=0)
    return done

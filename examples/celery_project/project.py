"""The Celery application: one task, which is a run.

celery -A project worker -c 2
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from holdfast.adapters.celery import as_run
from holdfast.sync import ActiveRun, Holdfast

PACE = float(os.environ.get("REPORT_PACE", "0.1"))
"""Seconds that a row takes."""

app = Celery("project", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/1"))
app.conf.update(
    task_acks_late=True,  # a message is kept until its task has ended …
    task_reject_on_worker_lost=True,  # … and comes again when the process dies
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,  # the run has it
)
hf = Holdfast(os.environ.get("HOLDFAST_URL", "redis://localhost:6379/0"), name="reports")
reports = hf.runs("reports", kind="report")


@app.task
@as_run(hf, reports, "{report}", key="customer:{customer}")
def make_report(report: str, customer: str, rows: int, run: ActiveRun) -> dict[str, Any]:
    """One report of a customer at a time. After a crash it goes on with the row after the last checkpoint."""
    total, begin = run.saved or (0, 0)
    for row in range(begin, rows):
        run.check()  # raises when somebody has stopped it, or when it is no longer ours
        time.sleep(PACE)
        total += row
        run.emit({"row": row, "pid": os.getpid()})
        run.checkpoint((total, row + 1))
    return {"rows": rows, "total": total}

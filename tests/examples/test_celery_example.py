"""examples/celery_project as a reader would run it: a real broker, a real worker, a process of its pool killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from example_processes import Processes

from holdfast.sync import Holdfast, Runs
from holdfast.testing import LocalServer

QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


def test_a_report_is_made_once_survives_a_crash_and_can_be_stopped(tmp_path: Path) -> None:
    # One test, because a worker of Celery takes longer to start than everything here to check.
    with LocalServer() as server, Holdfast(server.url) as hf:
        url = server.url.rstrip("/")
        env = {"BROKER_URL": f"{url}/1", "REPORT_PACE": 0.02}
        with Processes("celery_project", tmp_path, f"{url}/0", **env) as processes:
            processes.start("-m", "celery", "-A", "project", "worker", "-c", "2", *QUIET)
            when_the_process_is_killed_another_goes_on(processes, hf.runs("reports"))
            a_report_that_is_stopped_ends(processes, hf.runs("reports"))


def when_the_process_is_killed_another_goes_on(processes: Processes, reports: Runs) -> None:
    # Given a report that was ordered twice, and is being made
    assert processes.run("reports.py", "order", "march", "march", "--rows", "150") == "ordered march\n" * 2
    rows = reports.events("march", timeout=20)
    begun: Any = next(event for event in rows if event.kind == "data" and event.data["row"] == 5)
    # when its process is killed
    os.kill(begun.data["pid"], signal.SIGKILL)
    run = reports.wait("march", timeout=20)
    # expect another one to have gone on from a checkpoint: each row counted once
    assert (run.state, run.attempt, run.result) == ("completed", 2, {"rows": 150, "total": sum(range(150))})
    events = list(reports.events("march", timeout=20))
    assert [event.kind for event in events if event.kind != "data"] == ["resumed", "end"]
    # and who has seen some of it to be told the rest
    printed = processes.run("reports.py", "follow", "march", "--after", events[10].id)
    assert [line.split()[0] for line in printed.splitlines()] == [event.id for event in events[11:]]


def a_report_that_is_stopped_ends(processes: Processes, reports: Runs) -> None:
    processes.run("reports.py", "order", "april", "--rows", "100000")
    processes.until(lambda: reports.get("april").state == "running", "the report")
    assert processes.run("reports.py", "stop", "april", "--reason", "wrong month") == "april is stopping\n"
    run = reports.wait("april", timeout=20)
    assert (run.state, run.reason) == ("stopped", "wrong month")

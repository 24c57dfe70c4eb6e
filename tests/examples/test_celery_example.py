"""examples/celery_project as a reader would run it: a real broker, a real worker, a process of its pool killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from example_processes import Processes

from holdfast.sync import Holdfast, Runs
from holdfast.testing import LocalServer

QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


class Project(NamedTuple):
    processes: Processes
    reports: Runs


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with LocalServer() as server, Holdfast(server.url) as hf:
        url = server.url.rstrip("/")
        env = {"BROKER_URL": f"{url}/1", "REPORT_PACE": 0.02}
        with Processes("celery_project", tmp_path_factory.mktemp("celery"), f"{url}/0", **env) as processes:
            processes.start("-m", "celery", "-A", "project", "worker", "-c", "2", *QUIET)
            yield Project(processes, hf.runs("reports"))


def lines(printed: str) -> list[list[str]]:
    return [line.split(" ", 2) for line in printed.splitlines()]


def test_when_the_process_is_killed_another_goes_on(project: Project) -> None:
    processes, reports = project
    # Given a report that was ordered twice, and is being made
    for _ in range(2):
        assert processes.run("reports.py", "order", "march", "--rows", "150") == "ordered march\n"
    rows = reports.events("march", timeout=20)
    begun: Any = next(event for event in rows if event.kind == "data" and event.data["row"] == 5)
    # when its process is killed
    os.kill(begun.data["pid"], signal.SIGKILL)
    run = reports.wait("march", timeout=20)
    # expect another one to have gone on from a checkpoint: each row counted once
    assert (run.state, run.attempt, run.result) == ("completed", 2, {"rows": 150, "total": sum(range(150))})
    printed = lines(processes.run("reports.py", "follow", "march"))
    assert [kind for _, kind, _ in printed if kind != "data"] == ["resumed", "end"]
    # and who has seen some of it to be told the rest
    seen = printed[10][0]
    assert lines(processes.run("reports.py", "follow", "march", "--after", seen)) == printed[11:]


def test_a_report_that_is_stopped_ends(project: Project) -> None:
    processes, reports = project
    processes.run("reports.py", "order", "april", "--rows", "100000")
    processes.until(lambda: reports.get("april").state == "running", "the report")
    assert processes.run("reports.py", "stop", "april", "--reason", "wrong month") == "april is stopping\n"
    run = reports.wait("april", timeout=20)
    assert (run.state, run.reason) == ("stopped", "wrong month")

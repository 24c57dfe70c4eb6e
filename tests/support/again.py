"""A test that ran out of patience on a busy machine is run once more, alone. A wrong answer never is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import TimeoutError as PlaywrightTimeout

from support.conditions import TooSlow

OUT_OF_TIME = (TooSlow, TimeoutError, subprocess.TimeoutExpired, httpx.TimeoutException, PlaywrightTimeout)
"""What was waited for did not come. Whatever came and was not right is something else."""
MOST = 3
"""More than this is no accident of the machine."""
MARK = ("ran out of patience", True)


class OnceMoreAlone:
    """Says so in the report: the failure stays in the list of failures, and the second try is printed after it."""

    def __init__(self, config: pytest.Config) -> None:
        self._controls = not hasattr(config, "workerinput") and bool(getattr(config.option, "numprocesses", 0))
        self._slow: list[str] = []
        self._wrong = 0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        result: Any = yield
        if call.excinfo is not None and call.excinfo.errisinstance(OUT_OF_TIME):
            result.get_result().user_properties.append(MARK)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when == "call" and MARK in map(tuple, report.user_properties):
            self._slow.append(report.nodeid)
        elif report.failed:
            self._wrong += 1

    @pytest.hookimpl(hookwrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        yield
        if self._controls and self._slow and not self._wrong and len(self._slow) <= MOST:
            write = session.config.get_terminal_writer()
            write.line()
            write.line(f"ran out of patience, so once more, alone: {', '.join(self._slow)}", yellow=True)
            if subprocess.run([sys.executable, "-m", "pytest", *self._slow], check=False).returncode == 0:
                session.exitstatus = pytest.ExitCode.OK

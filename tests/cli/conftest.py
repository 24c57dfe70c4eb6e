from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.cli_support import Told, command_line
from holdfast.sync import Holdfast
from support.backends import Backend


@pytest.fixture
def hf(valkey: Backend) -> Iterator[Holdfast]:
    """A process of the fleet. What it uses is told when it ends: `tell_names` is one that does so at once."""
    with Holdfast(valkey.url, report=3600.0, name="tester") as client:
        yield client


@pytest.fixture
def holdfast(valkey: Backend, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The command line, in this process and without a terminal."""
    return command_line(valkey.url, monkeypatch)

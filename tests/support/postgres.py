"""A private PostgreSQL from Debian's package, in a directory of its own, reached by socket only."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg
import pytest

from support.conditions import until_blocking


def binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        if os.environ.get("CI"):
            pytest.fail("CI must have Debian's postgresql: tools/system-packages installs it")
        pytest.skip("PostgreSQL is not installed")
    return found[-1].parent


class Postgres:
    def __enter__(self) -> Self:
        where = binaries()
        self.directory = Path(tempfile.mkdtemp(prefix="hf-pg-", dir="/tmp"))  # a socket path must be short
        # PostgreSQL refuses to run as root.
        user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres", "postgres")
        data = self.directory / "data"
        common = {"user": user if os.geteuid() == 0 else None, "cwd": self.directory, "stdout": subprocess.DEVNULL,
                  "stderr": subprocess.DEVNULL}  # fmt: skip
        subprocess.run(
            [where / "initdb", "-D", data, "-A", "trust", "-U", "holdfast", "--no-sync"], check=True, **common
        )
        self._process = subprocess.Popen(
            [where / "postgres", "-D", data, "-k", self.directory, "-c", "listen_addresses=", "-c", "fsync=off"],
            **common,
        )
        self._numbers = itertools.count(1)
        self.dsn = f"host={self.directory} user=holdfast dbname=postgres"
        until_blocking(self._answers, within=30, what="PostgreSQL")
        return self

    def empty(self) -> str:
        """The URL of a part of it in which nothing is."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"create schema {name}")
        return f"postgresql://holdfast@/postgres?host={self.directory}&options=-csearch_path%3D{name}"

    def _answers(self) -> bool:
        assert self._process.poll() is None, "PostgreSQL did not start"
        try:
            psycopg.connect(self.dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self.directory, ignore_errors=True)

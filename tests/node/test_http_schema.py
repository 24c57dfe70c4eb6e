"""The description of the API is true: schemathesis reads it and tries everything that it allows and forbids."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from node_running import OPERATOR, NodeHere, good, sqlite

from support.depth import DEEP

LEFT_OUT = "positive_data_acceptance"
"""A description cannot say all that makes a request fail: lengths are in bytes, a key may have been used before."""


@pytest.mark.timeout(900 if DEEP else 240)
def test_schemathesis_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its server is its own, nobody works on it, and so nobody is told anything."""
    monkeypatch.setattr("holdfast.node.access.GUESSES", 1e6)  # it sends a wrong token to each address
    options = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "60"] if DEEP else [
        "--phases", "coverage", "--generation-deterministic"]  # fmt: skip
    with NodeHere(
        f"embedded://{tmp_path}/server", sqlite(tmp_path), token=OPERATOR, rate=1e6, max_wait=0.05, sample=600.0
    ) as node:
        # One worker: in several threads Python 3.11 itself fails now and then, while it reads sources (ast.parse).
        found = subprocess.run(
            [Path(sys.executable).with_name("schemathesis"), "run", f"{node.address}/openapi.json",
             "-H", f"Authorization: Bearer {OPERATOR}", "--checks", "all", "--exclude-checks", LEFT_OUT,
             "--workers", "1", "--request-timeout", "10", "--no-color", *options],
            capture_output=True, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
        passed = re.search(r"generated, ([\d,]+) passed", found.stdout)
        assert passed, found.stdout[-3000:]
        assert int(passed[1].replace(",", "")) > 1000, "it did not get far"
        assert "59 selected" in found.stdout or re.search(r"(\d+) selected / \1 total", found.stdout)
        with node.http(OPERATOR) as http:
            good(http.get("/v1/fleet"))  # it lives on


def test_what_needs_a_token_says_so(node: NodeHere, tmp_path: Path):
    with node.http() as http:
        assert {} in good(http.get("/openapi.json"))["security"]
    with NodeHere(node.url, token=OPERATOR) as guarded, guarded.http(OPERATOR) as http:
        assert good(http.get("/openapi.json"))["security"] == [{"token": []}]

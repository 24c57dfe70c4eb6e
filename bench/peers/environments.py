"""Environments for contestants in Python whose requirements clash with ours, or would swell them.

Each gets a virtual environment of its own under peers/python/.venvs, made at first use with the versions pinned in
peers/python/<name>.txt, and made anew when that file changes. Where it cannot be made, the reason is kept and shown.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path(__file__).resolve().parent / "python"
VENVS = PYTHON / ".venvs"
LIMIT = 300


@dataclass(frozen=True)
class Environment:
    """`python` is its interpreter; `reason` says why there is none."""

    python: str = ""
    pins: str = ""
    reason: str = ""

    def version(self, *packages: str) -> str:
        """The pinned versions of these, as `name version, …`."""
        found = dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", self.pins, re.M))
        return ", ".join(f"{name} {found[name]}" for name in packages if name in found)


@functools.cache
def environment(name: str) -> Environment:
    pins_file, folder = PYTHON / f"{name}.txt", VENVS / name
    pins = pins_file.read_text(encoding="utf-8")
    mark = hashlib.sha256(f"{sys.version}\n{pins}".encode()).hexdigest()
    stamp, python = folder / "made-from", folder / "bin" / "python"
    if not (python.exists() and stamp.exists() and stamp.read_text(encoding="ascii") == mark):
        VENVS.mkdir(exist_ok=True)
        (VENVS / ".gitignore").write_text("*\n", encoding="ascii")
        shutil.rmtree(folder, ignore_errors=True)
        uv = [sys.executable, "-m", "uv", "--quiet", "--no-config"]
        install = [*uv, "pip", "install", "--python", str(python), "-r", str(pins_file)]
        for command in ([*uv, "venv", "--python", sys.executable, str(folder)], install):
            if reason := _run(command):
                return Environment(pins=pins, reason=reason)
        stamp.write_text(mark, encoding="ascii")
    return Environment(str(python), pins)


def _run(command: Sequence[str]) -> str:
    """Empty when it went well, else why not."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env=os.environ | {"NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"making its environment took more than {LIMIT} s"
    except OSError as error:
        return f"making its environment failed: {error}"
    if done.returncode == 0:
        return ""
    said = " ".join(re.findall(r"[\x20-\x7e]+", done.stderr + done.stdout))  # without the tool's box drawings
    return "making its environment failed: " + re.sub(r"https?://\S+", "(address)", " ".join(said.split()))[:200]

"""Writes `holdfast.sync`, the blocking twin, from the asyncio shells. `--check` fails if it is stale.

The logic is in flows, which both twins run as they are; what is generated are the thin classes around them. The change
is by word, and only words listed here change, so a shell must not use anything of asyncio that is not on the list.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"

# asyncio shell -> blocking twin
FILES = {
    "locks/lease.py": "sync/lease.py",
    "locks/lock.py": "sync/lock.py",
    "buffers/batch.py": "sync/batch.py",
    "buffers/buffer.py": "sync/buffer.py",
    "sessions/sessions.py": "sync/sessions.py",
    "runs/active.py": "sync/active.py",
    "runs/runs.py": "sync/runs.py",
    "once/claim.py": "sync/claim.py",
    "once/gate.py": "sync/gate.py",
    "once/entry.py": "sync/once.py",
    "monitor/monitor.py": "sync/monitor.py",
    "monitor/entry.py": "sync/monitoring.py",
    "fleet/fleet.py": "sync/fleet.py",
    "client.py": "sync/client.py",
}

WORDS = [
    (r"holdfast\.locks\.lease\b", "holdfast.sync.lease"),
    (r"holdfast\.locks\.lock\b", "holdfast.sync.lock"),
    (r"holdfast\.sessions\.sessions\b", "holdfast.sync.sessions"),
    (r"holdfast\.buffers\.batch\b", "holdfast.sync.batch"),
    (r"holdfast\.buffers\.buffer\b", "holdfast.sync.buffer"),
    (r"holdfast\.runs\.active\b", "holdfast.sync.active"),
    (r"holdfast\.runs\.runs\b", "holdfast.sync.runs"),
    (r"holdfast\.once\.claim\b", "holdfast.sync.claim"),
    (r"holdfast\.once\.gate\b", "holdfast.sync.gate"),
    (r"holdfast\.once\.entry\b", "holdfast.sync.once"),
    (r"holdfast\.monitor\.monitor\b", "holdfast.sync.monitor"),
    (r"holdfast\.fleet\.fleet\b", "holdfast.sync.fleet"),
    (r"holdfast\.monitor\.entry\b", "holdfast.sync.monitoring"),
    (r"\bAsyncGenerator\[Event, None\]", "Generator[Event, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"from holdfast\.engine\.aio import AsyncDriver", "from holdfast.engine.threads import ThreadDriver"),
    (r"\bAsyncDriver\b", "ThreadDriver"),
    (r"\bAsyncScope\b", "ThreadScope"),
    (r"\basync_driver\b", "thread_driver"),
    (r"await asyncio\.to_thread\(([^()]*)\)", r"\1()"),
    (r"^import asyncio\n", ""),
    (r"\bAwaitable, ", ""),
    (r"Callable\[P, Awaitable\[R\]\]", "Callable[P, R]"),
    (r"\basync def\b", "def"),
    (r"\basync with\b", "with"),
    (r"\basync for\b", "for"),
    (r"\bawait ", ""),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\btask\b", "thread"),
    (r"\btasks\b", "threads"),
]

LEFT_OVER = re.compile(r"\b(async|await|asyncio|Awaitable)\b")
HEADER = "# Written by tools/make_sync.py from {source}. Change that file, then run `make sync`.\n"


def convert(source: str) -> str:
    text = (PACKAGE / source).read_text("utf-8")
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text, flags=re.M)
    left = LEFT_OVER.search(text)
    if left:
        line = text[: left.start()].count("\n") + 1
        sys.exit(
            f"{source}: {left.group()!r} is left over in line {line} of the twin; add a rule or move it to the driver"
        )
    return tidy(HEADER.format(source=f"src/holdfast/{source}") + text)


def tidy(text: str) -> str:
    fix = ["check", "--select", "I,F401,UP028", "--fix-only", "--unsafe-fixes", "--quiet"]
    for command in (fix, ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(PACKAGE / "sync" / "x.py"), "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        text = done.stdout
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the twin is stale")
    check = parser.parse_args().check
    stale = []
    for source, target in FILES.items():
        path = PACKAGE / target
        text = convert(source)
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(target)
            if not check:
                path.write_text(text, "utf-8")
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}. Run `make sync` and commit the result.")
    print("the blocking twin is fresh" if not stale else f"written: {', '.join(stale)}")


if __name__ == "__main__":
    main()

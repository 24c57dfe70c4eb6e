"""A worker process with a memory, told what to do line by line. Real enough to be paused.

python memory_worker.py URL [without-fence]     reads JSON from stdin, answers JSON on stdout

    {"commit": [[id, fence], …]}    commits these batches one after the other; answers what came of each
    {"absorb": [id, fence]}         its agent says "running" and goes on when it reads a line
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from memory_help import WithoutFence, said

from holdfast.errors import HoldfastError
from holdfast.memory import NewEntry, Store


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201


class Slow:
    name = "verbatim"

    def run(self, batch: Any) -> list[NewEntry]:
        answer("running")
        sys.stdin.readline()
        return [NewEntry("episodic", message.data) for message in batch.messages]


def batch(which: list[Any]) -> Any:
    return said(f"first of {which[0]}", f"second of {which[0]}", id=which[0], fence=which[1])


def commit(store: Store, which: list[Any]) -> str:
    entries = [NewEntry("episodic", message.data) for message in batch(which).messages]
    try:
        return "written" if store.commit(batch(which), "verbatim", entries) else "done already"
    except HoldfastError as error:
        return type(error).__name__


def main() -> None:
    kind = WithoutFence if "without-fence" in sys.argv else Store
    with kind(sys.argv[1], agents=[Slow()]) as store:
        answer("ready")
        while line := sys.stdin.readline():
            order = json.loads(line)
            if "commit" in order:
                answer([commit(store, which) for which in order["commit"]])
                continue
            try:
                store.absorb(batch(order["absorb"]))
                answer("absorbed")
            except HoldfastError as error:
                answer(type(error).__name__)


if __name__ == "__main__":
    main()

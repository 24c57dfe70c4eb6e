"""Who may know whom: the arrows between the rooms, read from the imports; and what no file may use."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from support.each import each

PACKAGE = Path(holdfast.__file__).parent
ROOT = Path(__file__).parents[1]

ROOMS = {"locks", "buffers", "sessions", "runs", "once", "monitor", "memory", "fleet"}
FOUNDATION = {"engine", "keys", "errors", "events", "settings"}
HOLD_LEASES = {"buffers", "runs", "monitor"}
"""The rooms that may use locks."""
STANDS_ON = {"monitor": {"once"}, "fleet": {"observe"}}
"""A raw result is processed once. The fleet is told what the counters count."""

PUBLIC = {"", "sync", "errors", "settings", "events", "testing", "observe"}
"""What somebody who only installed the package may import; "" is `holdfast` itself."""


def allowed(part: str) -> set[str] | None:
    """The parts of the package that one part may import. None: any."""
    if part in ROOMS:
        return FOUNDATION | {part} | ({"locks"} if part in HOLD_LEASES else set()) | STANDS_ON.get(part, set())
    return {
        "engine": FOUNDATION,
        "errors": set(),
        "keys": {"errors"},
        "events": set(),
        "settings": {"errors"},
        "observe": {"observe", "events", "errors"},
        "adapters": PUBLIC | {"adapters"},
        "node": PUBLIC | {"node", "adapters", "memory"},
        "cli": PUBLIC | {"cli", "node", "memory"},
        "testing": PUBLIC,
    }.get(part)


EXCEPTIONS = {
    ("node", "holdfast.engine.embedded"),
    ("cli", "holdfast.engine.embedded"),
    ("memory", "holdfast.locks.fencing"),
    ("memory", "holdfast.monitor.record"),
}
"""For now: a node starts the embedded server itself. The memory checks fences in SQL, and holds no lease. It answers
with the records of a monitor, which are data; of the monitor itself it knows nothing."""

WIRING = {"client", "sync", "work", ""}
"""What puts the rooms together, and so knows them all."""


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> list[str]:
    return ["holdfast", *file.relative_to(PACKAGE).with_suffix("").parts]


def part_of(file: Path) -> str:
    """The room, or the single file, that this is: `locks`, `keys`; "" for the package's own `__init__`."""
    first = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(tree: ast.AST, module: list[str], *, package: bool) -> Iterator[str]:
    """Full names of all that a file imports, inside functions and relative ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module if package else module[:-1]
            above = above[: len(above) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            # `from holdfast import keys` imports a module, `from holdfast.keys import Id` a name of one.
            if source == "holdfast":
                yield from (f"holdfast.{alias.name}" if is_module(alias.name) else "holdfast" for alias in node.names)
            else:
                yield source


def is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def parts_imported(source: str, module: list[str], *, package: bool = False) -> set[tuple[str, str]]:
    """Part and full name of what is imported from our own package."""
    found = set()
    for name in imports(ast.parse(source), module, package=package):
        words = name.split(".")
        if words[0] == "holdfast":
            found.add((words[1] if len(words) > 1 else "", name))
    return found


def imported_by(file: Path) -> set[tuple[str, str]]:
    module = module_of(file)
    package = module[-1] == "__init__"
    return parts_imported(file.read_text("utf-8"), module[:-1] if package else module, package=package)


def wrong(part: str, imported: set[tuple[str, str]]) -> list[str]:
    may = allowed(part)
    if may is None:
        return []
    return sorted(name for other, name in imported if other not in may and (part, name) not in EXCEPTIONS)


# -- the arrows -------------------------------------------------------------------------------------------------------


@each("file", files(), lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_may_know(file: Path) -> None:
    assert wrong(part_of(file), imported_by(file)) == []


def test_every_part_has_its_place() -> None:
    parts = {part_of(file) for file in files()}

    assert {part for part in parts if allowed(part) is None} <= WIRING


@pytest.mark.parametrize("part", sorted(FOUNDATION | {"locks"}))
def test_the_parts_that_are_checked_exist(part: str) -> None:
    assert part in {part_of(file) for file in files()}


@pytest.mark.parametrize(
    ("part", "source", "complaint"),
    [
        ("locks", "from holdfast.buffers.lua import x", ["holdfast.buffers.lua"]),
        ("locks", "from holdfast.client import Holdfast", ["holdfast.client"]),
        ("locks", "from holdfast import Holdfast", ["holdfast"]),
        ("locks", "from holdfast import client", ["holdfast.client"]),
        ("locks", "def f():\n    import holdfast.sync.lock", ["holdfast.sync.lock"]),
        ("locks", "from ..sync import lock", ["holdfast.sync"]),
        ("locks", "from . import spec\nfrom ..keys import Id\nfrom holdfast.engine.core import Core", []),
        ("sessions", "from holdfast.locks.lease import Lease", ["holdfast.locks.lease"]),
        ("runs", "from holdfast.locks.lease import Lease", []),
        ("once", "from holdfast.locks.lease import Lease", ["holdfast.locks.lease"]),
        ("once", "from holdfast.monitor.record import Change", ["holdfast.monitor.record"]),
        ("once", "from holdfast.engine.keeper import Hold\nfrom holdfast.once.spec import Space", []),
        ("memory", "from holdfast.locks.lease import Lease", ["holdfast.locks.lease"]),
        ("memory", "from holdfast.locks.fencing import SqlGuard", []),
        ("engine", "from holdfast.locks.flows import acquire", ["holdfast.locks.flows"]),
        ("engine", "if TYPE_CHECKING:\n    from holdfast.client import Holdfast", ["holdfast.client"]),
        ("events", "from holdfast.errors import HoldfastError", ["holdfast.errors"]),
        ("node", "from holdfast.engine.core import Core", ["holdfast.engine.core"]),
        ("node", "from holdfast import Holdfast\nfrom holdfast.engine.embedded import EmbeddedServer", []),
        ("cli", "from holdfast.locks import admin", ["holdfast.locks"]),
        ("cli", "import holdfast\nfrom holdfast.sync import Holdfast", []),
    ],
)
def test_a_wrong_arrow_is_noticed(part: str, source: str, complaint: list[str]) -> None:
    assert wrong(part, parts_imported(source, ["holdfast", part, "x"])) == complaint


@pytest.mark.parametrize("part", ["node", "cli", "adapters"])
def test_nobody_reaches_round_the_public_names(part: str) -> None:
    # Given files that may only call the public API: not the private attributes of a client either
    for file in (PACKAGE / part).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                assert own, f"{file.relative_to(PACKAGE)}:{node.lineno} uses {node.attr}"


# -- what no file may use ---------------------------------------------------------------------------------------------

WALL_CLOCKS = {"time.time", "time.time_ns", "time.localtime", "time.ctime", "time.strftime"}
WALL_CLOCK_CALLS = {"now", "utcnow", "today"}
UNSAFE = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}


def forbidden(source: str) -> list[str]:
    """Wall clocks and unsafe serialisers in a file, wherever they hide."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if f"{name}.{attr}" in WALL_CLOCKS:
                found.append(f"{name}.{attr}")
            case ast.Attribute(
                value=ast.Name(id="datetime" | "date") | ast.Attribute(attr="datetime" | "date"), attr=a
            ):
                if a in WALL_CLOCK_CALLS:
                    found.append(f"datetime.{a}")
            case ast.ImportFrom(module="time", names=names):
                found += [f"time.{alias.name}" for alias in names if f"time.{alias.name}" in WALL_CLOCKS]
            case ast.Import(names=names):
                found += [alias.name for alias in names if alias.name.partition(".")[0] in UNSAFE]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in UNSAFE:
                found.append(module)
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(name)
    return found


@each("file", files(), lambda file: str(file.relative_to(PACKAGE)))
def test_no_wall_clock_and_no_pickle(file: Path) -> None:
    # One file holds this machine's clock against the server's, for whoever asks how far they are apart.
    known = ["time.time"] if file.relative_to(PACKAGE).as_posix() == "cli/clock.py" else []
    assert forbidden(file.read_text("utf-8")) == known


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import time\ntime.time()", ["time.time"]),
        ("clock = time.time", ["time.time"]),
        ("from time import time", ["time.time"]),
        ("datetime.now()", ["datetime.now"]),
        ("datetime.datetime.utcnow()", ["datetime.utcnow"]),
        ("def f():\n    import pickle", ["pickle"]),
        ("from pickle import loads", ["pickle"]),
        ("eval('1')", ["eval"]),
        ('"""time.time() and pickle in a docstring"""\ntime.monotonic()', []),
    ],
)
def test_what_is_forbidden_is_noticed(source: str, complaint: list[str]) -> None:
    assert forbidden(source) == complaint


# -- the blocking twin ------------------------------------------------------------------------------------------------


def test_the_blocking_twin_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_sync.py"), "--check"], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_blocking_twin_has_every_name_of_the_other() -> None:
    import holdfast.sync

    def names(of: type) -> set[str]:
        twins = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
        kept = {*twins, *twins.values()}
        return {twins.get(name, name) for name in vars(of) if not name.startswith("_") or name in kept}

    from holdfast.locks import lease, lock
    from holdfast.once import claim, gate
    from holdfast.sync import claim as sync_claim
    from holdfast.sync import gate as sync_gate
    from holdfast.sync import lease as sync_lease
    from holdfast.sync import lock as sync_lock

    assert names(holdfast.Holdfast) == names(holdfast.sync.Holdfast)
    assert names(lease.Lease) == names(sync_lease.Lease)
    for name in ("Lock", "ReadWriteLock", "Semaphore", "AllLocks"):
        assert names(getattr(lock, name)) == names(getattr(sync_lock, name))
    assert names(claim.Claim) == names(sync_claim.Claim)
    assert names(gate.Gate) == names(sync_gate.Gate)
    assert {"once", "filter_new", "forget", "claim", "idempotent", "gate", "settled"} <= {
        name for kind in holdfast.sync.Holdfast.__mro__ for name in vars(kind)
    }


def test_the_blocking_twin_waits_for_nothing_of_asyncio() -> None:
    for file in (PACKAGE / "sync").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            assert not isinstance(node, (ast.Await, ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor)), file.name

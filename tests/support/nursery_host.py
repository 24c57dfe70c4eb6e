"""Imports what takes long to import, then forks a process for each order: see `nursery.py`.

python nursery_host.py FD MODULE …      FD: the socket that orders come from
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys
import types
import warnings
from typing import Any

MOST = 1 << 20


def next_child(orders: socket.socket) -> dict[str, Any]:
    """Fork for each order. Returns in the new process, with its order; this one ends with the socket."""
    keepers = 0
    while True:
        text, fds, _, _ = socket.recv_fds(orders, MOST, 4)
        if not text:
            orders.close()
            sys.exit()
        while keepers and os.waitpid(-1, os.WNOHANG)[0]:
            keepers -= 1
        if os.fork() == 0:
            break
        keepers += 1
        for fd in fds:
            os.close(fd)
    orders.close()
    keep(fds[3])
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    order: dict[str, Any] = json.loads(text)
    return order


def keep(status: int) -> None:
    """Fork once more: one runs, the other waits for it and says how it ended, since a test is not its parent."""
    if (child := os.fork()) == 0:
        return
    os.closerange(0, status)
    os.closerange(status + 1, status + 16)
    os.write(status, child.to_bytes(8, "little"))
    _, how = os.waitpid(child, 0)
    os.write(status, how.to_bytes(8, "little"))
    os._exit(0)


def dress(order: dict[str, Any]) -> None:
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    eager = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=eager)
    sys.stderr.reconfigure(line_buffering=True, write_through=eager)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def run(words: list[str]) -> None:
    """As the interpreter would with these arguments."""
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        sys.warnoptions.append(words[1])
        words = words[2:]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if words[0] == "-c":
        sys.argv, text, name = ["-c", *words[2:]], words[1], "<string>"
        sys.path.insert(0, "")
    else:
        sys.argv, name = words, words[0]
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        main.__dict__["__file__"] = name
        with open(name, encoding="utf-8") as file:
            text = file.read()
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    sys.path.pop(0)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    mine = next_child(socket.socket(fileno=int(sys.argv[1])))
    dress(mine)
    run(mine["words"])

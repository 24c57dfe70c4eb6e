"""`holdfast up`: a node in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

import holdfast
from holdfast import ConfigurationError
from holdfast.cli.running import run
from holdfast.cli.work import Supervisor
from holdfast.settings import ENV_PREFIX, NodeSettings, Settings, found


def _option(name: str, *more: Any, **extra: Any) -> Any:
    """An option of the command line, described where the setting is."""
    setting = next(item for item in fields(NodeSettings) if item.name == name)
    doc, shown = setting.metadata["doc"], "" if setting.metadata["secret"] else f" Default: {setting.default}."
    return typer.Option(f"--{name.replace('_', '-')}", *more, help=doc + (shown if setting.default else ""), **extra)


def up(
    host: Annotated[str | None, _option("host")] = None,
    port: Annotated[int | None, _option("port", min=0, max=65535)] = None,
    url: Annotated[str | None, _option("url")] = None,
    data: Annotated[Path | None, _option("data")] = None,
    server_port: Annotated[int | None, _option("server_port", min=0, max=65535)] = None,
    app: Annotated[str | None, _option("app")] = None,
    processes: Annotated[int | None, _option("processes", min=1, max=1000)] = None,
    playground: Annotated[bool, _option("playground")] = False,
    store: Annotated[str | None, _option("store")] = None,
    token_file: Annotated[Path | None, typer.Option(help="Read the token from this file.")] = None,
    new_token: Annotated[bool, typer.Option("--new-token", help="Make a token, and print it.")] = False,
    log_format: Annotated[str | None, _option("log_format")] = None,
    log_level: Annotated[str | None, _option("log_level")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with tables: holdfast, node, collections.")] = None,
) -> None:
    """Run a node: embedded server, workers, HTTP API, dashboard, metrics. SIGTERM and Ctrl-C drain it.

    Without --url and --data, HOLDFAST_URL names the server."""
    if url is None and data is not None:
        url = ""  # whoever names a directory means the server in it, whatever is in the environment
    elif url is None and f"{ENV_PREFIX}NODE_URL" not in os.environ:
        url = os.environ.get(f"{ENV_PREFIX}URL")
    given = {
        "host": host, "port": port, "url": url, "data": None if data is None else str(data),
        "server_port": server_port, "app": app, "processes": processes, "playground": playground or None,
        "store": store, "log_format": log_format, "log_level": log_level,
    }  # fmt: skip
    with _configured(config):
        run(_up({name: value for name, value in given.items() if value is not None}, token_file, new_token))


@contextlib.contextmanager
def _configured(file: Path | None) -> Iterator[None]:
    """The client and the workers read the same file."""
    name = f"{ENV_PREFIX}CONFIG"
    before = os.environ.get(name)
    if file is not None:
        os.environ[name] = str(file.resolve())
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


async def _up(given: dict[str, Any], token_file: Path | None, make_token: bool) -> None:
    made = ""
    if make_token:
        from holdfast.node.access import new_token

        made = given["token"] = new_token()
    elif token_file is not None:
        given["token"] = _read(token_file)
    settings = NodeSettings(**{name: value for name, (value, _) in found(NodeSettings, given).items()})
    from holdfast.node.serve import serve

    code = await serve(settings, supervise=_supervise, told=lambda served: _tell(served, made))
    print("stopped", flush=True)
    if code:
        raise typer.Exit(code)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"pass a file that can be read: {error}") from None


async def _supervise(target: str, processes: int, environment: dict[str, str], stop: asyncio.Event) -> int:
    supervisor = Supervisor(target, processes, Settings.load().drain, environment)
    ending = asyncio.create_task(stop.wait())
    ending.add_done_callback(lambda _: supervisor.stop())
    try:
        return await supervisor.keep()
    except asyncio.CancelledError:  # asked twice
        supervisor.stop()
        raise
    finally:
        ending.cancel()


def _tell(served: Any, made: str) -> None:
    config, address = served.config, served.address
    print(f"Holdfast {holdfast.__version__} is up. Stop it with Ctrl-C.")
    print(f"  dashboard  {address}/")
    print(f"  API        {address}/docs")
    print(f"  server     {served.url}")
    header = ""
    if made:
        print(f"  token      {made}")
        header = f" -H 'Authorization: Bearer {made}'"
    elif config.token or config.tokens:
        print("  token      needed, as it was set")
        header = ' -H "Authorization: Bearer $TOKEN"'
    program = "holdfast" if shutil.which("holdfast") else shlex.quote(sys.argv[0])
    print("Try")
    body = shlex.quote(json.dumps({"user": "user-7", "data": {"text": "hello"}}))
    if config.app:
        print(f"  curl{header} {address}/v1/fleet")
    else:
        print(f"  curl{header} {address}/v1/buffers/messages/messages --json {body}")
    print(f"  curl{header} {address}/v1/buffers")
    prefix = Settings.load().prefix
    named = "" if prefix == "hf" else f"HOLDFAST_PREFIX={prefix} "
    print(f"  {named}HOLDFAST_URL={shlex.quote(served.url)} {program} top --once", flush=True)

"""Builds the Go and Java workers where their toolchains are installed, and says why where it cannot."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD_LIMIT = 600


@dataclass(frozen=True)
class Built:
    """`command` starts the worker (its arguments follow), `versions` are those of the libraries in it."""

    command: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    def version(self, lib: str) -> str:
        return dict(self.versions).get(lib, "")


@functools.cache
def go_peer() -> Built:
    folder = HERE / "go"
    binary = folder / "bin" / "peer"
    if not shutil.which("go"):
        return Built(reason="no Go toolchain")
    sources = [folder / name for name in ("main.go", "go.mod", "go.sum")]
    # The toolchain that is installed builds it: fetching another one is not a benchmark's business.
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    if _stale(binary, sources) and (reason := _build(["go", "build", "-o", str(binary), "."], folder, environment)):
        return Built(reason=reason)
    required = dict(re.findall(r"^\s*(\S+) (v\S+)", (folder / "go.mod").read_text(encoding="utf-8"), re.M))
    versions = {
        "rueidislock": required.get("github.com/redis/rueidis", ""),
        "redsync": required.get("github.com/go-redsync/redsync/v4", ""),
    }
    return Built((str(binary),), tuple(versions.items()))


@functools.cache
def java_peer() -> Built:
    folder = HERE / "java"
    target = folder / "target"
    if missing := [tool for tool in ("java", "javac", "mvn") if not shutil.which(tool)]:
        return Built(reason=f"no {', '.join(missing)}")
    sources = [folder / "pom.xml", folder / "src" / "main" / "java" / "Worker.java"]
    if _stale(target / "classes" / "Worker.class", sources):
        # `clean` would need one more plugin; what an older pom left in target/lib must not stay on the class path.
        shutil.rmtree(target, ignore_errors=True)
        if reason := _build(["mvn", "-q", "-B", "compile"], folder, dict(os.environ)):
            shutil.rmtree(target, ignore_errors=True)
            return Built(reason=reason)
    found = re.search(r"<artifactId>redisson</artifactId>\s*<version>([^<]+)", sources[0].read_text(encoding="utf-8"))
    version = found.group(1) if found else ""
    class_path = os.pathsep.join([str(target / "classes"), str(target / "lib" / "*")])
    # Eight of them share one machine with the server: the heap is bounded, everything else is the default.
    command = ("java", "-Xmx256m", "-cp", class_path, "Worker")
    return Built(command, (("redisson", version), ("redisson-fair", version)))


def _stale(product: Path, sources: Sequence[Path]) -> bool:
    return not product.exists() or any(source.stat().st_mtime > product.stat().st_mtime for source in sources)


def _build(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    """Empty when it was built, else the reason it was not."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the build took more than {BUILD_LIMIT} s"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")
    return "the build failed: " + re.sub(r"https?://\S+", "(address)", first)[:200]

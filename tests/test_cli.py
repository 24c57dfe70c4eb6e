"""The command line, as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from holdfast.sync import Holdfast

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def run(*words: str, **env: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    return subprocess.run([HOLDFAST, *words], capture_output=True, text=True, timeout=30, env={**clean, **env})


@pytest.fixture
def node(tmp_path):
    process = subprocess.Popen(
        [HOLDFAST, "up", "--port", "0", "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    text = ""
    for line in process.stdout:
        text += line
        if "top --once" in line:
            break
    yield process, text
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait(20)
    process.stdout.close()


def test_up_prints_where_to_connect_and_answers_health(node):
    process, text = node
    url = re.search(r"server +(\S+)", text)[1]
    health = re.search(r"dashboard +(\S+)", text)[1] + "healthz"
    with urllib.request.urlopen(health, timeout=5) as answer:
        assert json.load(answer)["status"] == "ok"
    for wrong, code in ((health.replace("healthz", "other"), 404), (health, 405)):
        request = urllib.request.Request(wrong, method="POST" if code == 405 else "GET")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=5)
        assert error.value.code == code
        error.value.close()
    with Holdfast(url) as hf, hf.lock("a"):
        listed = json.loads(run("locks", "--json", HOLDFAST_URL=url).stdout)
        assert [row["name"] for row in listed] == ["a"]
        assert listed[0]["holders"][0]["pid"] == os.getpid()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_release_by_force(valkey):
    with Holdfast(valkey.url) as hf:
        lease = hf.lock("[red]a", ttl=3).acquire()
        assert "[red]a" in run("locks", "--url", valkey.url).stdout
        done = run("release", "[red]a", "--reason", "stuck", "--url", valkey.url)
        assert (done.returncode, done.stdout) == (0, "1 lease(s) ended\n")
        assert run("release", "[red]a", "--reason", "x", "--url", valkey.url).stdout == "nobody holds it\n"
        lease.wait_lost(15)
        assert lease.lost


def test_a_users_mistake_is_one_line_and_no_traceback():
    done = run("locks")
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: pass a URL to Holdfast(...) or set HOLDFAST_URL")
    assert "Traceback" not in done.stderr
    done = run("locks", "--url", "redis://:hunter2@127.0.0.1:1", HOLDFAST_RETRY_FOR="0.1")
    assert done.returncode == 3
    assert "hunter2" not in done.stderr + done.stdout


def test_version():
    assert run("--version").stdout.strip() == "0.1.0"

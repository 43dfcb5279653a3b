# SPDX-License-Identifier: Apache-2.0
"""make demo ends with encrypted tokens equal to the plaintext's: killed at three random moments; on any one Python."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDED = ("torch", "numba", "fastapi")


def shape(line: str) -> str:
    """A line of output without its numbers, quoted words, bytes and paddings."""
    line = re.sub(r"'[^']*'", "'...'", line)
    line = re.sub(r"\b[0-9a-f]{2}\b(?: [0-9a-f]{2}\b)+", "BYTES", line)
    line = re.sub(r"\d[\d.,e-]*", "N", line)
    line = re.sub(r"(N )*N$", "N", re.sub(r"\[[N ]+\]$", "[N]", line))
    return re.sub(r"\S+/(report|client)", r"OUT/\1", re.sub(r"-{3,}", "---", " ".join(line.split())))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_three_times_it_still_ends_well(tmp_path: Path) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the demo needs {', '.join(missing)}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SHARE": "0.1", "TOKENS": "1", "PROMPT": "Once"}
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), "--out", str(tmp_path / "demo")]
    seed = 14
    moments = random.Random(seed)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(timeout=moments.uniform(5, 90))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            process.wait(timeout=60)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert "equal to the plaintext circuit's tokens" in done.stdout
    (chosen,) = re.findall(r"fed back under encryption: ('.*')", done.stdout)
    assert done.stdout.splitlines()[-2].endswith(f"goes on {chosen}")  # what the reader looks at last
    shown = re.search(r"## What you will see.*?```text\n(.*?)```", (ROOT / "docs" / "demo.md").read_text(), flags=re.S)
    assert shown is not None
    said = {shape(line) for line in done.stdout.splitlines()}
    kept = ("train", "set-up", "measure", "serve")  # a second run says that these are kept, or where it serves
    for line in shown.group(1).splitlines():
        if line and not any(f"] {stage} " in line for stage in kept):
            assert shape(line) in said, f"docs/demo.md shows what the demo does not say: {line}"
    facts = json.loads((tmp_path / "demo" / "demo.json").read_text())["body"]
    names = ["set-up", "train", "measure", "plan", "serve", "keys", "generate", "check", "fidelity"]
    assert [name for name, _ in facts["stages"]] == names
    page = (tmp_path / "demo" / "report.html").read_text()
    for key in ("server", "iterations", "training", "levels", "latency", "fidelity", "drift", "parameters", "versions"):
        assert f'<section id="{key}"' in page, key
    assert len(bytes.fromhex(facts["server"]["hex"].replace("\n", " "))) == 64
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_it_runs_where_only_that_python_is(version: str, tmp_path: Path) -> None:
    """Without Python 3.11 the demo needs no PyTorch. Sets up an environment: needs a package index."""
    found = subprocess.run([ROOT / "scripts" / "setup", "find", version], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"no Python {version} here")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / f"python{version}").symlink_to(Path(found.stdout.strip()).resolve())
    for name in ("bash", "env", "date", "cat", "sha256sum", "cut", "flock", "mkdir", "rm", "touch", "tail", "dirname"):
        place = shutil.which(name)
        if place is not None:
            (tools / name).symlink_to(place)
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    small = {"TOKENS": "1", "PROMPT": "Once", "XDG_CACHE_HOME": cache, "HOME": str(tmp_path), "PATH": str(tools)}
    command = [ROOT / "scripts" / "demo", "--out", tmp_path / "demo"]
    done = subprocess.run(command, env={**os.environ, **small}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert f"Python {version}." in done.stdout
    assert "no PyTorch here" in done.stdout
    assert "equal to the plaintext circuit's tokens" in done.stdout
    (chosen,) = re.findall(r"fed back under encryption: ('.*')", done.stdout)
    assert done.stdout.splitlines()[-2].endswith(f"goes on {chosen}")  # what the reader looks at last
    assert '<section id="training"' in (tmp_path / "demo" / "report.html").read_text()

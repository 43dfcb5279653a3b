# SPDX-License-Identifier: Apache-2.0
"""A stranger's afternoon in a fresh clone, and the images without docker: scripts that must end well."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def need(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_stumble_from_a_fresh_clone_to_a_report(tmp_path: Path) -> None:
    """Own model of context 256, trained, planned, served with TLS, asked from another folder and by OpenAI's client."""
    need("torch", "transformers", "numba", "fastapi", "cryptography", "openai")
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("a fresh clone needs git and a repository")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "afternoon.py", "--out", tmp_path / "day"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    told = json.loads((tmp_path / "day" / "afternoon.json").read_text())
    refused = [row["command"] for row in told["commands"] if row["code"] not in (0, None)]
    assert len(refused) >= 20  # slips, each refused with what mends it
    assert {"train", "plan", "serve", "generate", "report"} <= {command.split()[1] for command in refused}
    said = "".join(p.read_text() for p in (tmp_path / "day" / "log").iterdir())
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_images_build_and_two_clients_are_answered(tmp_path: Path) -> None:
    """The Dockerfile's own steps, and compose.yaml's own commands, as the images' user where that may be chosen."""
    need("yaml")
    place = Path("/var/tmp") / f"heatfhe-image-{os.getpid()}"  # pytest's own folder is closed to other users
    try:
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "image.py", "--out", place], capture_output=True, text=True, check=False
        )
        if done.returncode == 3:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        for client in ("alice", "bob"):
            (line,) = (one for one in done.stdout.splitlines() if one.startswith(f"{client}: "))
            assert "2 tokens in" in line
        for stage in ("server", "client"):
            packages = {p.name.split("-")[0] for p in (place / "stages" / stage).rglob("*.dist-info")}
            assert {"heatfhe", "numba", "fastapi"} <= packages
            assert not packages & {"torch", "pip", "setuptools"}
        held = {p.name for p in (place / "volumes" / "server-data").rglob("*")}
        assert not any("secret" in name for name in held)
        assert any("secret" in p.name for p in (place / "volumes" / "alice-keys").rglob("*"))
    finally:
        shutil.rmtree(place, ignore_errors=True)

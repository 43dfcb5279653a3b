# SPDX-License-Identifier: Apache-2.0
"""The wheel builds, installs into an empty environment without torch, and works from there. Needs a package index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit

ROOT = Path(__file__).parent.parent


def run(*command: object, cwd: Path, timeout: int = 1800) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, cwd=cwd, env=clean, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_wheel_works_without_torch(tmp_path: Path) -> None:
    env = tmp_path / "env"
    run(sys.executable, "-m", "venv", env, cwd=tmp_path)
    python = env / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "-w", tmp_path / "dist", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("heatfhe-*.whl")
    run(*pip, "install", wheel, cwd=tmp_path)
    assert (
        run(python, "-c", "import heatfhe, sys; print(heatfhe.__version__, 'numpy' in sys.modules)", cwd=tmp_path)
        == "0.1.0 False\n"
    )
    told = run(env / "bin" / "heat", "doctor", cwd=tmp_path)
    for name in ("torch", "numba", "fastapi"):
        assert "absent" in next(line for line in told.splitlines() if line.startswith(name))
    run(*pip, "install", f"{wheel}[native,serve]", cwd=tmp_path)
    told = run(env / "bin" / "heat", "doctor", cwd=tmp_path)
    assert "absent" in next(line for line in told.splitlines() if line.startswith("torch"))
    assert "absent" not in next(line for line in told.splitlines() if line.startswith("numba"))
    for how in (("--simulate",), ()):  # the second under toy encryption
        short = (*how, "--tokens", 1, "--context", 16, "--keys", tmp_path / f"keys{len(how)}", "--json")
        said = run(env / "bin" / "heat", "generate", "--local", *short, "Once upon a time", cwd=tmp_path)
        assert json.loads(said)["tokens"] == Circuit.load(default_circuit()).generate([424, 437, 259, 394], 1).tokens
    page = tmp_path / "report.html"
    run(env / "bin" / "heat", "report", "default-calibrated", "default", "-o", page, cwd=tmp_path)
    assert '<section id="training"' in page.read_text()  # the embedded run's log is in the wheel

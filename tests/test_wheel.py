# SPDX-License-Identifier: Apache-2.0
"""The wheel builds, installs into an empty environment without torch, and works from there. Needs a package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heatfhe.assets import default_circuit
from heatfhe.errors import HeatError

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
    run(*pip, "install", f"{wheel}[native,serve]", cwd=tmp_path)
    assert (
        run(python, "-c", "import heatfhe, sys; print(heatfhe.__version__, 'numpy' in sys.modules)", cwd=tmp_path)
        == "0.1.0 False\n"
    )
    told = run(env / "bin" / "heat", "doctor", cwd=tmp_path)
    assert "torch" in told
    assert "absent" in next(line for line in told.splitlines() if line.startswith("torch"))
    try:
        default_circuit()
    except HeatError as err:
        pytest.skip(f"no embedded circuit to generate with: {err}")
    short = ("--simulate", "--tokens", 1, "--context", 16, "--keys", tmp_path / "keys", "--json")
    said = run(env / "bin" / "heat", "generate", "--local", *short, "Once upon", cwd=tmp_path)
    assert '"tokens"' in said

# SPDX-License-Identifier: Apache-2.0
"""The four parsers under a coverage-guided fuzzer, HEATFHE_FUZZ_SECONDS each (default 60). Slow, and needs atheris."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", ["frame", "archive", "configuration", "plan"])
def test_a_fuzzer_finds_no_input_that_ends_unclean(target: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="coverage-guided fuzzing needs atheris (pip install atheris; Python 3.11)")
    seconds = os.environ.get("HEATFHE_FUZZ_SECONDS", "60")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "tests.mutations.fuzz", target, f"-max_total_time={seconds}"]
    command += [f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    assert b"Done " in done.stderr  # libFuzzer's last line: it ran its time

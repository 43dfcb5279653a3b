# SPDX-License-Identifier: Apache-2.0
"""make demo, killed at three random moments and started again, ends with encrypted tokens equal to the plaintext's."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDED = ("torch", "numba", "fastapi")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_three_times_it_still_ends_well(tmp_path: Path) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the demo needs {', '.join(missing)}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SHARE": "0.02", "TOKENS": "1", "PROMPT": "Once"}
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
    facts = json.loads((tmp_path / "demo" / "demo.json").read_text())["body"]
    assert [name for name, _ in facts["stages"]][:3] == ["set-up", "train", "measure"]
    assert len(bytes.fromhex(facts["server"]["hex"].replace("\n", " "))) == 64
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000

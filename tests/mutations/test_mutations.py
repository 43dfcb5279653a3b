# SPDX-License-Identifier: Apache-2.0
"""Changed files and messages, hashes recomputed, over every format: refused with a good error, or read as they say.

``formats`` has the laws. 2,000 cases quickly, 20,000 in the slow run; none may raise anything but a child of HeatError,
take five seconds of processor time, or make the process half as large again. ``tests/server/test_mutations.py`` sends
such messages to a running server.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutations.mutator import RAW_TEXTS, changed, digest, plain, written
from tests.mutations.storm import storm

ROOT = Path(__file__).resolve().parents[2]
SEED = 21
FORMATS = {
    "cost", "cost, version 2", "noise", "calibration", "plan", "circuit", "configuration", "answer", "manifest",
    "refusal", "job", "output", "bundle", "ciphertext", "fresh", "key", "key folder", "secret key",
}  # fmt: skip


def judge(report: dict[str, Any], count: int) -> None:
    assert sum(cases for cases, _ in report["formats"].values()) == count
    assert report["wrong"] == []
    for name, (cases, refusals) in report["formats"].items():
        assert refusals > cases / 3 or name == "refusal", f"{name}: only {refusals} of {cases} changes were refused"
    before, after = report["memory"]
    assert after < 1.5 * before


def in_a_process_of_its_own(count: int) -> None:
    """So that its memory is its own too, and small: a reader that makes much of a small file shows."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.mutations.storm", str(count), str(SEED)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    report = json.loads(done.stdout)
    assert set(report["formats"]) == FORMATS
    judge(report, count)


def checkpoints(folder: Path, count: int) -> None:
    for package in ("torch", "transformers", "accelerate"):
        pytest.importorskip(package, reason="checkpoints need the train extra")
    from tests.mutations.checkpoints import checkpoint_folder

    judge(storm([checkpoint_folder(folder)], count, SEED), count)


def test_1750_changed_files_and_messages() -> None:
    in_a_process_of_its_own(1750)


def test_250_changed_checkpoints(tmp_path: Path) -> None:
    checkpoints(tmp_path, 250)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_18000_changed_files_and_messages() -> None:
    in_a_process_of_its_own(18_000)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_2000_changed_checkpoints(tmp_path: Path) -> None:
    checkpoints(tmp_path, 2000)


def test_a_change_is_a_change_and_comes_again_with_its_seed() -> None:
    """Nine in ten differ from the original; equal seeds give equal text, and the original is left alone."""
    body = {"a": [1, 2.5, {"b": "x"}], "c": None, "d": {"e": True}}
    before = json.dumps(body)
    texts = [written(changed(body, random.Random(seed))) for seed in range(400)]
    assert texts == [written(changed(body, random.Random(seed))) for seed in range(400)]
    assert json.dumps(body) == before
    assert sum(text != written(body) for text in texts) >= 360
    assert len(set(texts)) > 150
    assert sum(any(raw.encode() in text for raw in RAW_TEXTS[:9]) for text in texts) > 10  # text no writer makes


def test_hashes_are_recomputed_as_a_trusting_reader_would() -> None:
    from heatfhe.files import json_digest

    body = {"b": 1, "a": [1.5, "é"]}
    assert digest(written(body)) == json_digest(body)
    assert plain(b"[" * 100_000) is None
    assert len(digest(b"[" * 100_000)) == 64

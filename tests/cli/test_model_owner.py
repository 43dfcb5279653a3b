# SPDX-License-Identifier: Apache-2.0
"""heat prepare, calibrate, export, inspect: the whole way on a tiny checkpoint, as a user types it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.cli.inspect import depth_map
from tests.gpt2_tiny import CONTEXT, VOCABULARY, random_tokens, tiny_gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models

    place = tmp_path_factory.mktemp("owner")
    tiny_gpt2(0).save_pretrained(place / "model")
    words = {f"w{i}": i for i in range(VOCABULARY - 1)} | {"<|endoftext|>": VOCABULARY - 1}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(place / "model" / "tokenizer.json"))
    np.save(place / "tokens.npy", random_tokens(0, rows=10, length=CONTEXT + 1).reshape(-1).numpy())
    return place


def heat(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(w) for w in words])
    out = capsys.readouterr()
    return code, out.out, out.err


def heat_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code, out, err = heat(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_from_checkpoint_to_circuit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = heat_json(capsys, "prepare", folder / "model", "-o", folder / "prepared")
    assert len(listed["sites"]) == 14
    assert (folder / "prepared" / "heat.json").is_file()
    args = ("--text", folder / "tokens.npy", "--tolerance", 1e-3, "--rule", "joint", "-o", folder / "calibration.json")
    args = (*args, "--temperature", 0.7, "--settle", 2)
    calibrated = heat_json(capsys, "calibrate", folder / "model", *args)
    exported = heat_json(
        capsys, "export", folder / "model", "--calibration", folder / "calibration.json", "-o", folder / "circuit"
    )
    assert exported["iterations"] == calibrated["iterations"]
    circuit = Circuit.load(folder / "circuit")
    assert circuit.digest == exported["digest"]
    assert circuit.calibration.counts() == calibrated["counts"]
    assert "tokenizer.json" in circuit.tokenizer
    facts = heat_json(capsys, "inspect", folder / "circuit")
    assert {r["site"]: r["count"] for r in facts["sites"]} == calibrated["counts"]
    assert facts["argmax"]["temperature"] == 0.7
    assert facts["argmax"]["settle"] == [2, 2]
    assert facts["iterations"] == sum(calibrated["iterations"].values())
    code, text, _ = heat(capsys, "inspect", folder / "circuit", "--stages")
    assert code == 0
    parts = ("h.1.attn/refine", "norm_goldschmidt", "levels", "gelu_new", "argmax", "ln_f = norm(h.2.in)")
    for part in (*parts, "2 settling rounds of power 2"):
        assert part in text


def test_depth_map_has_a_column_per_site(folder: Path) -> None:
    circuit = Circuit.load(folder / "circuit")
    panel = depth_map(circuit).split("\n\n")[0].splitlines()
    counts = [c.goldschmidt_count for c in circuit.calibration.norms.values()]
    assert len(panel) == max(counts) + 2
    assert panel[-2].count("##") == len(counts)  # every site runs at least one iteration
    assert sum(line.count("##") for line in panel) == sum(counts)


def test_inspect_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from heatfhe.cli import main; raise SystemExit(main(['inspect', sys.argv[1], '--quiet']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "circuit")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_one_good_line_for_a_mistake(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (("prepare", folder / "nowhere"), "config.json is missing"),
        (("inspect", folder / "nowhere"), "no such circuit directory"),
        (("export", folder / "model", "-o", folder / "x"), "give --calibration FILE"),
        (("calibrate", folder / "model", "-o", folder / "x.json"), "no text"),
        (
            (
                "calibrate",
                folder / "model",
                "--text",
                folder / "tokens.npy",
                "--tolerance",
                "2",
                "-o",
                folder / "x.json",
            ),
            "strictly between 0 and 1",
        ),
    ):
        code, _, err = heat(capsys, *words)
        assert code == 1
        assert message in err
        assert len(err.strip().splitlines()) == 1
    assert not (folder / "x.json").exists()


@pytest.mark.parametrize("command", ["prepare", "calibrate", "export"])
def test_a_disk_that_fills_up_leaves_nothing_half_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """One line that says why, the old result as it was, and no hidden file beside it."""
    words: dict[str, tuple[object, ...]] = {
        "prepare": ("prepare", folder / "model", "-o", tmp_path / "out"),
        "calibrate": ("calibrate", folder / "model", "--text", folder / "tokens.npy", "-o", tmp_path / "out"),
        "export": (
            *("export", folder / "model", "--calibration", folder / "calibration.json"),
            *("-o", tmp_path / "out"),
        ),
    }
    assert heat(capsys, *words[command])[0] == 0

    def contents() -> dict[str, bytes]:
        return {str(p.relative_to(tmp_path)): p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}

    before = contents()

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, _, err = heat(capsys, *words[command])
    assert code == 1
    assert "No space left on device" in err.strip().splitlines()[-1]
    assert "Traceback" not in err
    assert contents() == before

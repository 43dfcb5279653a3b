# SPDX-License-Identifier: Apache-2.0
"""Importing the package is quick and loads nothing optional."""

from __future__ import annotations

import subprocess
import sys

OPTIONAL = (
    "torch transformers datasets accelerate numba cupy openfhe fastapi uvicorn matplotlib cryptography scipy httpx "
    "tokenizers"
)


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_loads_nothing_optional() -> None:
    loaded = _run(f"import sys, heatfhe; print([m for m in '{OPTIONAL}'.split() if m in sys.modules])")
    assert loaded == "[]"


def test_import_takes_under_150_ms() -> None:
    code = "import time; t = time.perf_counter(); import heatfhe; print(time.perf_counter() - t)"
    assert min(float(_run(code)) for _ in range(5)) < 0.150


def test_help_needs_nothing_optional() -> None:
    code = (
        "import sys; from heatfhe.cli import main; main(['--help']); "
        f"assert not [m for m in '{OPTIONAL}'.split() if m in sys.modules]"
    )
    assert "model owner" in _run(code)

# SPDX-License-Identifier: Apache-2.0
"""Importing the package is quick and loads nothing optional."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_names_that_gpu_tests_take_exist() -> None:
    """They are skipped here, so nothing else notices that one was renamed."""
    wanted = set()
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text()
        if "mark.gpu" in text:
            nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module]
            wanted |= {(n.module, a.name) for n in nodes if str(n.module).startswith("heatfhe") for a in n.names}
    assert len(wanted) > 20
    for module, name in sorted(wanted):
        try:
            found = importlib.import_module(str(module))
        except ModuleNotFoundError as err:
            if str(err.name).startswith("heatfhe"):
                pytest.fail(f"tests take {name} from {module}, which does not exist")
            continue  # a library of GPUs is not installed here
        assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module} has no {name}"

# SPDX-License-Identifier: Apache-2.0
"""The notebooks of the documentation: small, without outputs, and (slow) each runs to its end in a fresh kernel."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"first_encrypted_answer": ("numba",), "your_own_model": ("torch", "numba"), "what_does_depth_cost": ()}
"""Packages beside the base that a notebook's first words name."""


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


def test_there_are_three() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(NEEDS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_small_and_without_outputs(path: Path) -> None:
    assert path.stat().st_size < 16_000
    body = json.loads(path.read_text())
    assert (body["nbformat"], body["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in body["cells"]}) == len(body["cells"])
    assert body["cells"][0]["source"][0].startswith("# ")
    for cell in body["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            ast.parse("".join(cell["source"]))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell in order; cells hold assertions of their own, and a cell that raises fails here."""
    for package in ("nbclient", "nbformat", "ipykernel", *NEEDS[path.stem]):
        pytest.importorskip(package, reason="notebooks need the notebooks extra and what their first cell names")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3", resources=resources).execute()
    for cell, kept in zip(notebook.cells, cells(path)):
        assert cell.source == "".join(kept["source"])
        if cell.cell_type == "code":
            assert cell.execution_count is not None
            assert not any(out.output_type == "error" for out in cell.outputs)

# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI description is true: schemathesis drives every operation by it and finds nothing (slow run)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from heatfhe.server import ModelSource
from tests.server.serving import ROOT, ServerProcess, joined


def test_every_route_is_described_with_its_refusals(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path) as app:
        schema = app.app.openapi()
    paths = schema["paths"]
    assert len(paths) == 16
    for path, operations in paths.items():
        for method, operation in operations.items():
            codes = set(operation["responses"])
            assert {"400", "401", "429"} <= codes, (method, path)
            assert "422" not in codes
            if path.startswith("/v1"):
                assert operation["security"] == [{"HTTPBearer": []}], (method, path)


@pytest.mark.slow
def test_schemathesis_finds_nothing(source: ModelSource, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is a development dependency")
    command = shutil.which("st", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert command is not None, "schemathesis is installed without its command"
    server = ServerProcess(source, tmp_path / "server", "--rate", "100000")
    try:
        # Valid by its schema is not valid here: ids must exist and digests must be right, so acceptance of generated
        # data is the one check left out.
        checks = ["--exclude-checks", "positive_data_acceptance"]
        options = [
            "--max-examples",
            "40",
            "--seed",
            "7",
            "--workers",
            "1",
            "--phases",
            "examples,coverage,fuzzing,stateful",
        ]
        done = subprocess.run(
            [
                command,
                "run",
                f"{server.url}/openapi.json",
                "-H",
                f"Authorization: Bearer {server.token}",
                *checks,
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.server.schemathesis_hooks"},
        )
        assert done.returncode == 0, done.stdout[-6000:]
        assert httpx.get(f"{server.url}/healthz").status_code == 200
    finally:
        server.stop()

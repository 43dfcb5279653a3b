# SPDX-License-Identifier: Apache-2.0
"""--device: the native engine's alone, and refused with a reason where it cannot be had."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from heatfhe.cli import main
from heatfhe.server.work import worker

no_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed here")


@no_cupy
@pytest.mark.parametrize("command", [["bench-engine", "native"], ["measure-noise", "native"]])
def test_a_gpu_that_is_not_there_is_named_with_what_to_install(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--device", "cuda"]) != 0
    said = capsys.readouterr().err
    assert "heatfhe[cuda]" in said
    assert "Traceback" not in said


def test_other_engines_have_no_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-engine", "clear", "--device", "cuda"]) != 0
    assert "runs on the CPU" in capsys.readouterr().err


@pytest.mark.parametrize(("device", "capped"), [("cpu", True), ("cuda", False), ("cuda:1", False)])
def test_a_workers_cap_of_addresses_is_for_processors_alone(
    device: str, capped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(worker.resource, "setrlimit", lambda *a: limits.append(a))
    worker.cap_memory(1 << 30, device)
    assert bool(limits) == capped

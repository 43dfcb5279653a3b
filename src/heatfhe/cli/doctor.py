# SPDX-License-Identifier: Apache-2.0
"""heat doctor: what works on this machine, tried for real, and what would make the rest work."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from dataclasses import dataclass

import heatfhe
from heatfhe.cli.console import Console

HELP = "Try every optional part for real, each in a process of its own, and say what would make the missing ones work."
EXAMPLES = (
    "  heat doctor\n  heat doctor --self-test     # also one bootstrap on every real engine, with throwaway keys\n"
)


@dataclass(frozen=True)
class Check:
    """One thing tried: a line of Python in a fresh process."""

    name: str
    code: str
    serves: str
    remedy: str


CHECKS = (
    Check("numpy", "import numpy as m", "everything", "pip install heatfhe"),
    Check("safetensors", "import safetensors as m", "circuits", "pip install heatfhe"),
    Check("tokenizers", "import tokenizers as m", "prompts as text", "pip install heatfhe"),
    Check("torch", "import torch as m", "prepare, calibrate, train, export", "pip install 'heatfhe[train]'"),
    Check("transformers", "import transformers as m", "Hugging Face checkpoints", "pip install 'heatfhe[train]'"),
    Check("numba", "import numba as m", "the native engine", "pip install 'heatfhe[native]'"),
    Check("openfhe", "import openfhe as m; m.CCParamsCKKSRNS()", "the OpenFHE engine", ""),
    Check("fastapi", "import fastapi as m, uvicorn", "heat serve", "pip install 'heatfhe[serve]'"),
    Check("matplotlib", "import matplotlib as m", "figures", "pip install 'heatfhe[report]'"),
    Check(
        "cupy",
        "import cupy as m; assert m.cuda.runtime.getDeviceCount()",
        "GPUs",
        "pip install 'heatfhe[cuda]' on a machine with an NVIDIA GPU",
    ),
)
SELF_TESTS = {
    "native": "from heatfhe.client.keyring_native import self_test; print(round(self_test(), 1))",
    "openfhe": "from heatfhe.client.keyring_openfhe import self_test; print(round(self_test(), 1))",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "--self-test", action="store_true", help="one bootstrap per engine with throwaway keys, bits of precision"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Try everything; always exit 0 unless the core itself is broken."""
    rows: list[tuple[str, str, str]] = []
    found: dict[str, str | None] = {}
    for check in CHECKS:
        version, why = _try(f"{check.code}\nprint(getattr(m, '__version__', 'loads'))")
        found[check.name] = version
        remedy = check.remedy or _openfhe_remedy(why)
        rows.append((check.name, version or "absent", check.serves if version else f"{check.serves}: {remedy}"))
    bits: dict[str, str | None] = {}
    if args.self_test:
        for engine, code in SELF_TESTS.items():
            if found["numba" if engine == "native" else "openfhe"]:
                answer, why = _try(code)
                bits[engine] = answer
                rows.append((f"{engine} bootstrap", f"{answer} bits" if answer else "failed", "" if answer else why))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {' '.join(platform.libc_ver())}"
    console.print(f"heatfhe {heatfhe.__version__}, Python {platform.python_version()}, {machine}")
    console.table(("part", "found", "serves"), rows)
    console.json(
        {"heatfhe": heatfhe.__version__, "python": platform.python_version(), "found": found, "self_test_bits": bits}
    )
    return 0 if found["numpy"] and found["safetensors"] else 1


def _try(code: str) -> tuple[str | None, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 0:
        return done.stdout.strip().splitlines()[-1], ""
    return None, (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


def _openfhe_remedy(why: str) -> str:
    glibc = platform.libc_ver()[1] or "unknown"
    wheel = (
        "Python 3.10 with openfhe==1.6.1.0.22.4"
        if tuple(map(int, (glibc.split(".") + ["0", "0"])[:2])) < (2, 38)
        else "Python 3.12 with openfhe==1.6.1.0.24.4"
    )
    return f"its wheels hold one extension each; with glibc {glibc} use {wheel}" + (f" (here: {why})" if why else "")

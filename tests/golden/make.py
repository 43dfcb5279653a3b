# SPDX-License-Identifier: Apache-2.0
"""Rewrites goldens by name: PYTHONPATH=src python -m tests.golden.make digests wire numbers plan tiny models

``tiny`` is the circuit that plans are made of. It is kept as a folder because its calibration is measured in floating
point and differs in last bits between processors; what is made from the folder does not.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from tests.golden import digests, numbers, wire
from tests.tiny import tiny_circuit

HERE = Path(__file__).parent
COMMAND = "PYTHONPATH=src python -m tests.golden.make"


def tiny() -> Circuit:
    """The stored tiny circuit."""
    return Circuit.load(HERE / "tiny")


def plan_file() -> bytes:
    """The plan file of the tiny circuit with every program, uncompressed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.plan"
        digests.whole_plan(tiny()).save(path)
        return path.read_bytes()


def stored(name: str) -> Any:
    """A golden JSON file's content."""
    return json.loads((HERE / f"{name}.json").read_text())


def _write(name: str, content: Any) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def _models() -> None:
    from tests.golden.models import everything  # torch, which reading the other goldens needs not

    _write("models", everything())


MAKERS: dict[str, Callable[[], object]] = {
    "tiny": lambda: tiny_circuit().save(HERE / "tiny"),
    "plan": lambda: (HERE / "tiny.plan.xz").write_bytes(lzma.compress(plan_file(), preset=9)),
    "digests": lambda: _write("digests", digests.everything(tiny(), HERE / "tiny")),
    "wire": lambda: _write("wire", wire.everything()),
    "numbers": lambda: _write("numbers", numbers.everything()),
    "models": _models,
}


def main(names: list[str]) -> int:
    """Rewrite these goldens, in the order in which they depend on each other."""
    unknown = sorted(set(names) - set(MAKERS))
    if unknown or not names:
        sys.stderr.write(f"usage: {COMMAND} NAME ...; names: {' '.join(MAKERS)}\n")
        return 2
    for name, make in MAKERS.items():
        if name in names:
            make()
            sys.stdout.write(f"rewrote {name}; read the difference before you commit it\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

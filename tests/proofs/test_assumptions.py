# SPDX-License-Identifier: Apache-2.0
"""The Coq proofs rest on the expected axioms and leave nothing unproved."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROOFS = ROOT / "proofs"
SOURCES = sorted(PROOFS.glob("*.v"))
UNPROVED = re.compile(r"\b(Admitted|admit|give_up|Axioms?|Parameters?|Conjecture|Abort)\b")


def expected() -> tuple[set[str], list[str]]:
    """The allowed axioms and the main theorems, from the file beside this one."""
    sections: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "expected_assumptions.txt").read_text().splitlines():
        line = line.strip()
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            current.append(line)
    return set(sections["axioms"]), sections["theorems"]


def is_fresh(build: Path) -> bool:
    """Whether `build` holds compiled copies of exactly these sources, made by the installed Coq."""
    stamp = build / "coq-version"
    if not stamp.exists():
        return False
    version = subprocess.run(["coqc", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return stamp.read_text().strip() == version.strip() and all(
        (build / f"{source.name}o").exists()
        and (build / source.name).exists()
        and (build / source.name).read_bytes() == source.read_bytes()
        for source in SOURCES
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled proofs: the last `scripts/proofs` run when fresh, otherwise a new one."""
    if shutil.which("coqc") is None:
        pytest.skip("coqc is not installed; scripts/proofs says how to get it")
    build = ROOT / "build" / "proofs"
    if is_fresh(build):
        return build
    folder = tmp_path_factory.mktemp("proofs")
    done = subprocess.run(
        [str(ROOT / "scripts" / "proofs"), "--if-present", "--into", str(folder)],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if not is_fresh(folder):
        pytest.skip(done.stdout.strip())       # Coq without the libraries the proofs use
    return folder


def assumptions(compiled: Path, groups: dict[str, list[str]], folder: Path) -> dict[str, set[str]]:
    """The axioms behind each named group of theorems, as `Print Assumptions` reports them.

    A walk through the library costs Coq about a second whatever the theorem, so a group is walked as one tuple.
    """
    modules = sorted({theorem.split(".")[0] for theorems in groups.values() for theorem in theorems})
    lines = [f"From Heat Require Import {' '.join(modules)}."]
    for number, theorems in enumerate(groups.values()):
        terms = ", ".join(f"@{theorem}" for theorem in theorems)
        lines += [f"Definition group_{number} := ({terms}).", f"Print Assumptions group_{number}."]
    (folder / "report.v").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        ["coqc", "-w", "-ambiguous-paths", "-Q", str(compiled), "Heat", "report.v"],
        capture_output=True, text=True, check=False, cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    block = re.compile(r"^(?:Closed under the global context|Axioms:)\n(?:(?!Closed|Axioms:).*\n)*", re.MULTILINE)
    axiom = re.compile(r"^([A-Za-z_][\w.']*)(?: :|$)", re.MULTILINE)        # continuation lines are indented
    reports = [set(axiom.findall(report)) for report in block.findall(done.stdout)]
    assert len(reports) == len(groups), done.stdout
    return dict(zip(groups, reports))


def test_nothing_is_left_unproved() -> None:
    assert SOURCES, f"no proofs found in {PROOFS}"
    left = [
        f"{source.name}:{number}: {line.strip()}"
        for source in SOURCES
        for number, line in enumerate(source.read_text().splitlines(), start=1)
        if UNPROVED.search(line)
    ]
    assert left == []


def test_the_list_of_main_theorems_is_complete() -> None:
    _, theorems = expected()
    stated = [
        f"{source.stem}.{name}"
        for source in SOURCES
        for name in re.findall(r"^\s*Theorem (\w+)", source.read_text(), flags=re.MULTILINE)
    ]
    assert sorted(theorems) == sorted(stated)


def test_every_theorem_rests_on_allowed_axioms_alone(compiled: Path, tmp_path: Path) -> None:
    allowed, theorems = expected()
    used = assumptions(compiled, {"all": theorems}, tmp_path)["all"]
    if used - allowed:                                   # name the theorems, which takes a minute
        found = assumptions(compiled, {theorem: [theorem] for theorem in theorems}, tmp_path)
        surplus = {name: sorted(axioms - allowed) for name, axioms in found.items() if axioms - allowed}
        pytest.fail(f"unexpected axioms: {surplus}")
    assert used == allowed                               # an axiom no longer used leaves the list


def test_an_unexpected_axiom_is_seen(compiled: Path, tmp_path: Path) -> None:
    """The reader of the report finds an axiom that somebody smuggles in, beside a theorem that needs none."""
    (tmp_path / "Smuggled.v").write_text(
        "Axiom magic : 1 = 2.\nTheorem trick : 1 = 2. Proof. exact magic. Qed.\n"
        "Theorem plain : 1 = 1. Proof. reflexivity. Qed.\n"
    )
    subprocess.run(["coqc", "-Q", ".", "Heat", "Smuggled.v"], cwd=tmp_path, check=True, capture_output=True)
    groups = {"plain": ["Smuggled.plain"], "trick": ["Smuggled.trick"], "both": ["Smuggled.plain", "Smuggled.trick"]}
    assert assumptions(tmp_path, groups, tmp_path) == {"plain": set(), "trick": {"magic"}, "both": {"magic"}}

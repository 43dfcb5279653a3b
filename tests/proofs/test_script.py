# SPDX-License-Identifier: Apache-2.0
"""scripts/proofs refuses what is unproved or unlisted, and says what to install where Coq is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
needs_coq = pytest.mark.skipif(shutil.which("coqc") is None, reason="coqc is not installed; scripts/proofs says how")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with one small proof."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "proofs").mkdir()
    shutil.copy(ROOT / "scripts" / "proofs", tmp_path / "scripts")
    (tmp_path / "proofs" / "_CoqProject").write_text("-Q . Heat\nOne.v\n")
    (tmp_path / "proofs" / "One.v").write_text("Theorem one : 1 = 1. Proof. reflexivity. Qed.\n")
    return tmp_path


def check(copy: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(copy / "scripts" / "proofs"), *arguments],
        capture_output=True, text=True, check=False, env=None if path is None else {"PATH": path},
    )


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with neither Coq nor a package manager."""
    folder = tmp_path_factory.mktemp("bin")
    for tool in ("bash", "dirname", "env", "id", "sed"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return str(folder)


def test_without_coq_it_says_what_to_install(copy: Path, bare: str) -> None:
    done = check(copy, path=bare)
    assert done.returncode == 1
    assert "apt-get install coq libcoq-coquelicot libcoq-flocq" in done.stderr


def test_without_coq_it_may_be_skipped(copy: Path, bare: str) -> None:
    done = check(copy, "--if-present", path=bare)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert "Coq is not installed" in done.stdout


@needs_coq
def test_a_sound_proof_is_checked_once(copy: Path) -> None:
    first, second = check(copy, "--if-present"), check(copy, "--if-present")
    assert first.returncode == second.returncode == 0
    if "skipped" in first.stdout:
        pytest.skip(first.stdout.strip())
    assert "proofs: One.v" in first.stdout
    assert "proofs: One.v" not in second.stdout
    assert not list((copy / "proofs").glob("*.vo"))


@needs_coq
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Theorem one : 1 = 2. Proof. Admitted.\n", "One.v:1"),
        ("Axiom one : 1 = 2.\n", "One.v:1"),
        ("Theorem one : 1 = 2. Proof. reflexivity. Qed.\n", "Unable to unify"),
    ],
)
def test_a_hole_is_refused(copy: Path, text: str, complaint: str) -> None:
    (copy / "proofs" / "One.v").write_text(text)
    done = check(copy, "--if-present")
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode != 0
    assert complaint in done.stdout + done.stderr


@needs_coq
def test_an_unlisted_file_is_refused(copy: Path) -> None:
    (copy / "proofs" / "Two.v").write_text("Theorem two : 2 = 2. Proof. reflexivity. Qed.\n")
    done = check(copy, "--if-present")
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 1
    assert "Two.v" in done.stderr

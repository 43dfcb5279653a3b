# SPDX-License-Identifier: Apache-2.0
"""runs/carry.py: what is put together is what was packed, and nothing is unpacked of what is not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "runs"))

from carry import main


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """Three parts of a file and a folder, 90 kB of noise in all."""
    noise = np.random.default_rng(0).bytes(60_000)
    (tmp_path / "a.npy").write_bytes(noise)
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "d").write_bytes(noise[::-2])
    given = [str(tmp_path / "a.npy"), str(tmp_path / "b"), "-o", str(tmp_path / "parts"), "--most", "0.035"]
    assert main(["pack", *given]) == 0
    found = sorted(map(str, (tmp_path / "parts").iterdir()))
    assert len(found) == 3
    assert all((Path(f) / "part").stat().st_size <= 0.035 * 2**20 for f in found)
    return found


def test_parts_in_any_order_give_what_was_packed(tmp_path: Path, parts: list[str]) -> None:
    assert main(["join", *parts[::-1], "-o", str(tmp_path / "here")]) == 0
    for name in ("a.npy", "b/c/d"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_missing_altered_and_foreign_parts_are_refused(tmp_path: Path, parts: list[str]) -> None:
    out = ["-o", str(tmp_path / "here")]
    with pytest.raises(SystemExit, match="part 2 of 3 is missing"):
        main(["join", parts[0], parts[2], *out])
    with pytest.raises(SystemExit, match="holds no part"):
        main(["join", str(tmp_path), *out])
    assert main(["pack", str(tmp_path / "b"), "-o", str(tmp_path / "other"), "--most", "0.02"]) == 0
    with pytest.raises(SystemExit, match="2 different archives"):
        main(["join", *parts[:2], str(tmp_path / "other" / "1"), *out])
    part = Path(parts[1]) / "part"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(SystemExit, match="not what was packed"):
        main(["join", *parts, *out])
    assert not (tmp_path / "here").exists()


def test_what_is_not_there_is_said_before_anything_is_packed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pack", str(tmp_path / "none"), "-o", str(tmp_path / "parts")])
    assert ended.value.code == 2
    assert not (tmp_path / "parts").exists()

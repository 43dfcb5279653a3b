# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled kernels: any change of any source is another folder, and old machine code is never run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="compiled kernels need numba")

from numba import config

import heatfhe
from heatfhe.ckks.kernels import cpu, cpu_jit
from heatfhe.ckks.kernels.cpu_jit import cache_folder, fingerprint

VERSIONS = ("0.60.0", "0.1.0")


def test_any_change_of_any_source_gives_another_folder(tmp_path: Path) -> None:
    sources = tmp_path / "kernels"
    shutil.copytree(cpu_jit.HERE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    before = fingerprint(sources, VERSIONS)
    seen = {before}
    names = sorted(p.name for p in sources.glob("*.py"))
    assert {"cpu.py", "cpu_transforms.py", "cpu_jit.py"} <= set(names)
    for name in names:
        text = (sources / name).read_bytes()
        stamp = os.stat(sources / name)
        (sources / name).write_bytes(text[:-1] + b" ")  # same size, same date
        os.utime(sources / name, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        seen.add(fingerprint(sources, VERSIONS))
        (sources / name).write_bytes(text)
        assert fingerprint(sources, VERSIONS) == before
    (sources / "cpu.py").rename(sources / "cpu_other.py")
    seen.add(fingerprint(sources, VERSIONS))
    seen |= {fingerprint(cpu_jit.HERE, v) for v in (("0.60.1", "0.1.0"), ("0.60.0", "0.1.1"))}
    assert len(seen) == 1 + len(names) + 1 + 2


def test_the_kernels_are_kept_in_that_folder() -> None:
    folder = cache_folder()
    assert folder is not None
    assert folder.name.startswith("heatfhe-kernels-")
    for kernel in (cpu.ntt, cpu.intt, cpu.convert_row):
        assert Path(kernel.stats.cache_path).parent == folder  # type: ignore[attr-defined]
    assert os.environ.get("NUMBA_CACHE_DIR", "") == config.CACHE_DIR  # other users of numba keep their own


@pytest.mark.slow
def test_a_changed_helper_is_compiled_into_its_callers_again(tmp_path: Path) -> None:
    """A caller of cpu_transforms.py in a copy of the package; only cpu_transforms.py changes between two processes."""
    package = tmp_path / "heatfhe"
    shutil.copytree(Path(heatfhe.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    helper = package / "ckks" / "kernels" / "cpu_transforms.py"
    (helper.parent / "caller.py").write_text(
        "from heatfhe.ckks.kernels.cpu_transforms import jit, value\n\n"
        '@jit("int64(int64)")\ndef twice(x):\n    return 2 * value(x)\n'
    )
    text = helper.read_text() + "\n\n@jit()\ndef value(x):\n    return x + "
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])

    def run() -> str:
        code = "from heatfhe.ckks.kernels.caller import twice; print(twice(10), sum(twice.stats.cache_hits.values()))"
        return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout

    helper.write_text(text + "1\n")
    assert run() == "22 0\n"
    assert run() == "22 1\n"  # the cache is used
    helper.write_text(text + "2\n")
    assert run() == "24 0\n"


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")  # no folder can be made under a file, whoever asks
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "__pycache__").write_bytes(b"")
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache_folder.__wrapped__(sources) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))
    found = cache_folder.__wrapped__(sources)
    assert found is not None
    assert found.parent == tmp_path / "users" / "heatfhe"
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "chosen"))
    found = cache_folder.__wrapped__(sources)
    assert found is not None
    assert found.parent == tmp_path / "chosen"

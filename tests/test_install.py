# SPDX-License-Identifier: Apache-2.0
"""What make package builds installs with pip and uv on every Python that is here, and works. Needs a package index."""

from __future__ import annotations

import configparser
import os
import subprocess
from pathlib import Path

import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from tests.test_wheel import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LOOKS = "import heatfhe, sys; print(heatfhe.__version__, sorted({'numpy', 'torch'} & set(sys.modules)))"
CLIENT = """
import heatfhe.client
from heatfhe.client import load_keyring, create_proxy
print(load_keyring("native").__name__, create_proxy.__name__)
"""
ENCRYPTS = """
import heatfhe
circuit = heatfhe.Circuit.from_pretrained("default")
print(heatfhe.generate(circuit, "Once upon", 1, params="insecure-native-12-r40", threads=1))
"""


def interpreter(version: str) -> str:
    found = subprocess.run([ROOT / "scripts" / "setup", "find", version], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"there is no Python {version} here")
    return found.stdout.strip()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist and a wheel as a release has them: twine has accepted both."""
    place = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [ROOT / "scripts" / "package"],
        capture_output=True,
        text=True,
        env={**os.environ, "DIST": str(place)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("PASSED") == 2
    return place


def wheel(dist: Path) -> Path:
    (found,) = dist.glob("heatfhe-*.whl")
    return found


def uv() -> str:
    """The uv of the environment that packages, and the folders of wheels that pip is told of."""
    done = subprocess.run([ROOT / "scripts" / "setup", "package"], capture_output=True, text=True, check=True)
    return f"{done.stdout.strip()}/bin/uv"


def install(tool: str, python: str, env: Path, what: str, *more: object) -> Path:
    """Make an environment and install into it, from nothing; returns its Python."""
    if tool == "pip":
        run(python, "-m", "venv", env, cwd=env.parent)
        run(
            env / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            what,
            *more,
            cwd=env.parent,
        )
        return env / "bin" / "python"
    run(uv(), "venv", "--quiet", "--python", python, env, cwd=env.parent)
    links = [word for place in pip_links() for word in ("--find-links", place)]
    run(uv(), "pip", "install", "--quiet", "--python", env / "bin" / "python", what, *links, *more, cwd=env.parent)
    return env / "bin" / "python"


def pip_links() -> list[str]:
    """Folders of wheels that this machine's pip is configured with: uv does not read pip's settings."""
    found = os.environ.get("PIP_FIND_LINKS", "").split()
    for place in (
        Path("/etc/pip.conf"),
        Path.home() / ".config" / "pip" / "pip.conf",
        Path.home() / ".pip" / "pip.conf",
    ):
        if place.is_file():
            body = configparser.ConfigParser(interpolation=None)
            body.read(place)
            found += body.get("global", "find-links", fallback="").split()
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_package_alone_and_for_a_client(tool: str, version: str, dist: Path, tmp_path: Path) -> None:
    """Alone it computes a circuit in the clear and lists its sites; as a client it has keys and a proxy. No torch."""
    python = install(tool, interpreter(version), tmp_path / "env", str(wheel(dist)))
    assert run(python, "-c", LOOKS, cwd=tmp_path) == "0.1.0 []\n"
    heat = python.parent / "heat"
    assert "default-heat" in run(heat, "inspect", "default", cwd=tmp_path)
    done = subprocess.run([heat, "proxy", "--local"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)  # says which extra it needs
    assert "pip install 'heatfhe[" in done.stderr
    python = install(tool, interpreter(version), tmp_path / "client", f"{wheel(dist)}[client]")
    assert run(python, "-c", CLIENT, cwd=tmp_path) == "NativeKeyring create_proxy\n"
    told = run(python.parent / "heat", "doctor", cwd=tmp_path)
    assert "absent" in next(line for line in told.splitlines() if line.startswith("torch"))


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_everything_on_3_11(tool: str, dist: Path, tmp_path: Path) -> None:
    """From the sdist, with the versions that are tested: it trains, and answers under toy encryption."""
    (source,) = dist.glob("heatfhe-*.tar.gz")
    pins = ("-c", ROOT / "requirements" / "main.txt")
    python = install(tool, interpreter("3.11"), tmp_path / "env", f"{source}[all]", *pins)
    told = run(python.parent / "heat", "doctor", cwd=tmp_path)
    for name in ("torch", "transformers", "numba", "fastapi"):
        assert "absent" not in next(line for line in told.splitlines() if line.startswith(name))
    assert "26 sites" in run(python.parent / "heat", "prepare", "default", "-o", tmp_path / "prepared", cwd=tmp_path)
    circuit = Circuit.load(default_circuit())
    words = circuit.decode(circuit.generate(circuit.encode("Once upon"), 1).tokens)
    assert run(python, "-c", ENCRYPTS, cwd=tmp_path) == f"{words}\n"

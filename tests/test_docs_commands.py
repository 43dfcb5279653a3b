# SPDX-License-Identifier: Apache-2.0
"""README's and the tutorial's commands, run as they are shown: in order, in an empty folder, training cut short."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from heatfhe.assets import default_circuit, default_parent, sampled_stories
from heatfhe.planning import Packing, Rules, cost_table, place, record
from heatfhe.planning.params import preset
from tests.test_docs import NUMBERS, ROOT, commands_of, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"


def words_of(command: str) -> list[str]:
    return [sys.executable, "-m", "heatfhe.cli", *shlex.split(command)[1:]]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "2", "HOME": str(folder)}


def run(command: str, folder: Path) -> str:
    done = subprocess.run(
        words_of(command), capture_output=True, text=True, cwd=folder, env=environment(folder), check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    return done.stdout


@contextlib.contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """A server started by a shown command; yields the line by which it says that it serves."""
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            words_of(command), stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment(folder)
        )
    try:
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        line = next((line for line in said if line.startswith("serving ")), None)
        assert line is not None, (folder / "server.log").read_text()[-2000:]
        yield line
    finally:
        process.terminate()
        process.wait(timeout=30)


def free(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def test_tutorial_sh_blocks(tmp_path: Path) -> None:
    """Every sh block of the tutorial; the training run is cut to a fifth of what is shown."""
    pytest.importorskip("torch", reason="the tutorial trains")
    for command in commands_of(TUTORIAL, ("sh",)):
        said = run(command.replace("--share 0.5", "--share 0.1"), tmp_path)
        if command.startswith("heat prepare"):
            assert "26 sites" in said  # the number the tutorial names
    assert (tmp_path / "out" / "tutorial" / "report.html").stat().st_size > 50_000


def test_tutorial_on_two_machines(tmp_path: Path) -> None:
    """Operator and client as the tutorial shows them, under toy encryption, on the circuit that ships."""
    for package in ("numba", "fastapi"):
        pytest.importorskip(package, reason="serving needs the native and serve extras")
    lines = re.findall(r"^(operator|client)\$ +(heat .*)$", TUTORIAL.read_text(), flags=re.M)
    assert [who for who, _ in lines] == ["operator", "operator", "client", "client"]
    (_, register), (_, serve), (_, keys), (_, ask) = lines
    if not free(8443):
        pytest.skip("port 8443 is taken on this machine")
    shutil.copytree(default_circuit(), tmp_path / "out" / "tutorial" / "heat" / "circuit")
    (tmp_path / "token.txt").write_text(run(register, tmp_path).splitlines()[-1])
    with serving(serve, tmp_path):
        assert "evaluation keys" in run(keys, tmp_path)
        assert "4 tokens in" in run(ask, tmp_path)


def test_readme_five_lines(tmp_path: Path) -> None:
    """One's own model: here the embedded checkpoint and its text, a short recipe; the server starts with TLS."""
    for package in ("torch", "fastapi", "cryptography"):
        pytest.importorskip(package, reason="training and serving need their extras")
    shutil.copytree(default_parent(), tmp_path / "my-gpt2")
    (tmp_path / "corpus.txt").write_text("\n\n".join(sampled_stories()))
    certificate(tmp_path / "c.pem", tmp_path / "k.pem")
    block = re.search(r"## Your own model.*?```console\n(.*?)```", README.read_text(), flags=re.S)
    assert block is not None
    install, *commands = [line.removeprefix("$ ").split("  #")[0] for line in block.group(1).splitlines()]
    assert install.startswith("pip install")
    assert len(commands) == 4
    train, plan, register, serve = commands
    assert "iterations" in json.loads(run(f"{train} --recipe default-model --share 0.1 --json", tmp_path))
    assert "bootstraps" in run(plan, tmp_path)
    assert "token of alice" in run(register, tmp_path)
    with serving(f"{serve} --port 0", tmp_path) as line:
        assert re.search(r"https://0\.0\.0\.0:\d+", line)


def test_planned_table_is_what_the_code_says() -> None:
    tables = script("doc_tables")
    assert tables.on_page("planned") == tables.planned(), "run python scripts/doc_tables.py planned"


def test_planned_gpt2_small_is_what_planning_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bootstraps of a GPT-2-small token at the paper's counts, placed anew."""
    monkeypatch.syspath_prepend(str(ROOT / "runs"))
    from gpt2_small_fixture import gpt2_small

    params = replace(preset("paper-16"), levels=8)
    found = []
    for counts in ("heat", "calibrated"):
        circuit = gpt2_small(counts)
        recording = record(circuit, Packing(circuit.shape, params.slots, 128), "generate", reach=params.reach)
        graph = recording.graph(levels=8, fixed={}, required={"next": 8})
        found.append(place(graph, params, cost_table("unit"), algorithm="exact", rules=Rules()).bootstraps)
    words = f"{found[0]} bootstraps ({found[1]} at the calibrated counts) on 8 levels"
    assert words in " ".join(NUMBERS.read_text().split()), f"docs/numbers.md should say: {words}"


def certificate(place: Path, key_place: Path) -> None:
    """A self-signed one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(timezone.utc)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
    signed = made.not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    place.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    formats = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_place.write_bytes(key.private_bytes(serialization.Encoding.PEM, *formats))

# SPDX-License-Identifier: Apache-2.0
"""The commands as a user types them: both roles on one machine, keys, sessions, and kind refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heatfhe.cli import main
from heatfhe.client import Client
from heatfhe.client.local import local_server
from heatfhe.planning import Plan
from heatfhe.server import ModelSource
from tests.server.serving import ROOT, ServerProcess, served_circuit


def heat(*arguments: str, token: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HEATFHE_TOKEN": token, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "heatfhe.cli", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def server(source: ModelSource, home: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(source, home / "server")
    yield running
    running.stop()


def test_generate_local_runs_both_roles_in_two_processes(source: ModelSource, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    arguments = [
        "generate",
        "--local",
        "--circuit",
        str(source.circuit),
        "--params",
        "insecure-native-11",
        "--simulate",
    ]
    done = heat(*arguments, "--keys", str(folder), "--tokens", "4", "--json", "w1 w2 w3")
    answer = json.loads(done.stdout)
    assert answer["tokens"] == served_circuit().generate([1, 2, 3], 4).tokens
    assert "nothing is encrypted" in done.stderr
    assert (folder / "local-server" / "clients.json").exists()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_local_server_takes_a_prompt_at_once(source: ModelSource, tmp_path: Path) -> None:
    arguments = ["--local", "--circuit", str(source.circuit), "--params", "insecure-native-11", "--simulate"]
    asked = ["--keys", str(tmp_path), "--prefill", "16", "--tokens", "3", "--json", "w1 w2 w3 w9 w4 w30 w8 w5 w17"]
    answer = json.loads(heat("generate", *arguments, *asked).stdout)
    assert answer["tokens"] == served_circuit().generate([1, 2, 3, 9, 4, 30, 8, 5, 17], 3).tokens
    (path,) = (tmp_path / "local-server" / "plans").glob("*-prefill-16.json")
    assert Plan.load(path).prefill == 16


def test_a_local_server_does_not_outlive_who_started_it(source: ModelSource, tmp_path: Path) -> None:
    arguments = ["--circuit", str(source.circuit), "--params", "insecure-native-11", "--simulate", "--insecure"]
    code = (
        "import sys, time; from heatfhe.client.local import local_server\n"
        "with local_server(sys.argv[1:]) as server: print(server.pid, flush=True); time.sleep(120)"
    )
    command = [sys.executable, "-c", code, *arguments, "--folder", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert _runs(pid)
        process.kill()
    end = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _runs(pid)


def test_two_local_servers_on_one_folder_both_serve(source: ModelSource, tmp_path: Path) -> None:
    """The second does not end the first one's token: it has a folder of its own, which goes with it."""
    arguments = ["--circuit", str(source.circuit), "--plan", str(source.plan), "--simulate", "--insecure"]
    arguments += ["--folder", str(tmp_path / "local-server")]
    with subprocess.Popen(["true"]) as ended:
        (tmp_path / f"local-server.{ended.pid}.ab.spare").mkdir()  # of a process that was killed
    with local_server(arguments) as first, local_server(arguments) as second:
        for server in (first, second, first):
            with Client(server.url, token=server.token, folder=tmp_path / "keys", simulate=True) as client:
                assert client.models()
        assert len(list(tmp_path.glob("*.spare"))) == 1
    assert not list(tmp_path.glob("*.spare"))


def _runs(pid: int) -> bool:
    """Whether a process is there and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_keygen_generate_sessions_against_a_server(server: ServerProcess, home: Path) -> None:
    common = ["--server", server.url, "--keys", str(home / "keys"), "--simulate"]
    priced = json.loads(heat("keygen", *common, "--price", "--json", token=server.token).stdout)
    assert priced["price"]["bootstraps_per_token"] > 0
    assert not (home / "keys" / "keys").exists()
    made = json.loads(heat("keygen", *common, "--upload", "--json", token=server.token).stdout)
    assert made["keys"] > 1
    token_file = home / "token"
    token_file.write_text(server.token + "\n")
    said = heat("generate", *common, "--token-file", str(token_file), "--tokens", "3", "--keep", "w1 w2 w3")
    text = " ".join(f"w{t}" for t in served_circuit().generate([1, 2, 3], 3).tokens)
    assert text in said.stdout
    listed = json.loads(heat("sessions", *common, "--json", token=server.token).stdout)
    (session,) = listed["sessions"]
    assert session["position"] == 5
    assert session["session"] in said.stdout
    more = heat(
        "generate", *common, "--session", session["session"], "--tokens", "2", "--json", "w9", token=server.token
    )
    assert len(json.loads(more.stdout)["tokens"]) == 2
    after = json.loads(heat("sessions", *common, "--delete-all", "--json", token=server.token).stdout)
    assert after == {"sessions": [], "key_sets": []}


def test_a_prompt_that_is_too_long_opens_no_session(server: ServerProcess, home: Path) -> None:
    common = ["--server", server.url, "--keys", str(home / "long"), "--simulate"]
    long = heat("generate", *common, "--tokens", "4", "w1 " * 20, token=server.token, check=False)
    assert (long.returncode, "context is 16" in long.stderr) == (1, True)
    assert not (home / "long" / "keys").exists()  # nor were keys made for it
    assert json.loads(heat("sessions", *common, "--json", token=server.token).stdout)["sessions"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate"], "what is the prompt"),
        (["generate", "hello"], "which server"),
        (["generate", "--server", "http://127.0.0.1:9", "hello"], "no token"),
        (["keygen", "--server", "http://127.0.0.1:9", "--token-file", "nowhere"], "cannot be read"),
        (["sessions", "--server", "http://192.0.2.1", "--token-file", "/dev/null"], "must not travel unencrypted"),
        (
            ["serve", "--folder", "FOLDER", "--plan", "x"],
            "start it in a process of its own",
        ),  # this one has client code
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEATFHE_TOKEN", raising=False)
    assert main([str(tmp_path / "served") if a == "FOLDER" else a for a in arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CIRCUIT"], "--plan FILE, or --params NAME"),
        (["CIRCUIT", "--plan", "PLAN"], "NO SECURITY"),
        (["CIRCUIT", "--plan", "PLAN", "--simulate", "--host", "0.0.0.0"], "--tls-cert"),
    ],
)
def test_a_server_that_should_not_start_does_not(
    arguments: list[str], said: str, source: ModelSource, tmp_path: Path
) -> None:
    words = {"CIRCUIT": str(source.circuit), "PLAN": str(source.plan)}
    done = heat("serve", *[words.get(a, a) for a in arguments], "--folder", str(tmp_path / "served"), check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_clients_are_added_and_removed(tmp_path: Path) -> None:
    added = json.loads(heat("serve", "--folder", str(tmp_path), "--add-client", "alice", "--json").stdout)
    assert added["token"].startswith("heat_")
    assert added["token"] not in (tmp_path / "clients.json").read_text()
    removed = json.loads(heat("serve", "--folder", str(tmp_path), "--remove-client", "alice", "--json").stdout)
    assert removed["removed"] is True

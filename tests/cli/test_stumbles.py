# SPDX-License-Identifier: Apache-2.0
"""What cost a new user an afternoon, one test each: slips get one line that names the way out, and nothing is silent.

Terminals are in test_terminal.py, training in test_own_model.py, the proxy in tests/client/test_proxy.py.
"""

from __future__ import annotations

import http.server
import math
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import heatfhe
from heatfhe.cli import GROUPS, _command, blamed, main
from heatfhe.client import Client, Sampler
from heatfhe.errors import ConfigError, HeatError
from heatfhe.planning import Plan, plan
from tests.server.serving import PARAMS, ROOT, joined, save_model, served_circuit
from tests.test_docs_commands import certificate
from tests.tiny import narrowed


def test_a_simulated_server_counts_what_its_plan_did_not_expect_and_answers(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    narrowed(Plan.load(source.plan), 0.05).save(source.plan)
    with joined(source, tmp_path) as there, there.client() as client:
        answer = client.generate([1, 2, 3], 3)
        assert list(answer.tokens) == served_circuit().generate([1, 2, 3], 3).tokens
        assert answer.exceeded > 0
        again = client.generate([1, 2, 3], 3)
    assert again.exceeded == answer.exceeded  # of each answer alone


@pytest.fixture
def self_signed(tmp_path: Path) -> Iterator[str]:
    """A server whose certificate nobody has signed."""
    pytest.importorskip("cryptography", reason="certificates need the native extra")
    certificate(tmp_path / "c.pem", tmp_path / "k.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def heat(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main([str(w) for w in words])
    return code, capsys.readouterr().err


def test_a_certificate_that_is_not_trusted_is_named_at_once(
    self_signed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("it waits where no waiting helps"))
    monkeypatch.setenv("HEATFHE_TOKEN", "heat_x")
    code, said = heat(capsys, "generate", "--server", self_signed, "--keys", tmp_path / "keys", "w1")
    assert code == 4
    assert "self-signed certificate" in said or "self signed certificate" in said
    assert "--ca FILE" in said
    assert said.count("\n") == 1


def test_a_lost_server_is_said_while_it_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEATFHE_TOKEN", "heat_x")
    words = ("--server", "http://127.0.0.1:9", "--keys", tmp_path / "keys", "--patience", 1.5)
    code, said = heat(capsys, "generate", *words, "w1")
    first, last = said.splitlines()
    assert code == 4
    assert "does not answer" in first
    assert "trying again for" in first
    assert "check the address" in last


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "--server", "https://localhost:1", "--ca", "GONE", "w1"), "--ca FILE"),
        (("generate", "--server", "https://localhost:1", "--ca", "EMPTY", "w1"), "no certificate in PEM"),
    ],
)
def test_a_missing_certificate_is_one_line(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEATFHE_TOKEN", "heat_x")
    (tmp_path / "empty.pem").write_text("")
    places = {"GONE": tmp_path / "gone.pem", "EMPTY": tmp_path / "empty.pem"}
    code, line = heat(capsys, *(places.get(w, w) for w in words), "--keys", tmp_path / "keys")
    assert code == 1
    assert said in line
    assert line.count("\n") == 1


def test_a_server_finds_missing_certificates_before_it_plans(tmp_path: Path) -> None:
    """In a process of its own: a server refuses to share one with client code."""
    from tests.client.test_cli import heat as run

    certificate(tmp_path / "c.pem", tmp_path / "k.pem")
    words = ("serve", "default", "--params", "insecure-native-12", "--insecure", "--folder", str(tmp_path / "served"))
    gone, mine, key = (str(tmp_path / name) for name in ("gone.pem", "c.pem", "k.pem"))
    for options, said in (
        (("--tls-cert", gone, "--tls-key", key), "gone.pem: no such file"),
        (("--tls-cert", mine), "--tls-cert and --tls-key belong together"),
        (("--tls-cert", key, "--tls-key", mine), "are not a certificate and its key"),
    ):
        done = run(*words, *options, check=False)
        assert done.returncode == 1
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "served" / "plans").exists()


def test_an_interrupted_question_says_how_its_answer_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_args: object) -> int:
        raise KeyboardInterrupt

    for command, said in (("generate", "--resume"), ("train", "last checkpoint"), ("doctor", "begin anew")):
        module = import_module(f"heatfhe.cli.{command}")
        monkeypatch.setattr(module, "run", interrupted)
        words = {"generate": ["w1"], "train": ["default", "-o", str(tmp_path)], "doctor": []}[command]
        code, line = heat(capsys, command, *words)
        assert code == 130
        assert said in line
    assert "start the same command again" not in heat(capsys, "generate", "w1")[1]  # it would begin anew


def test_a_refused_question_leaves_no_session(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    with joined(source, tmp_path, max_steps=2) as there, there.client() as client:
        with pytest.raises(HeatError, match="steps"):
            client.generate([1, 2], 3)
        assert client.sessions() == []
        with pytest.raises(HeatError):
            list(client.stream([1, 2], 3, interactive=False))
        assert client.sessions() == []


def test_a_plan_samples_at_the_temperature_its_circuit_states(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    warm = served_circuit(temperature=6.0)  # more noise than its logits are large
    warm.save(source.circuit)
    made = plan(warm, PARAMS, programs=("generate", "prompt", "sample"), placement="greedy")
    assert made.notes["noise"] == pytest.approx(6.0 * (math.log(64) + 7))
    made.save(source.plan)
    with joined(source, tmp_path) as there, there.client() as client:
        assert client.config.max_temperature == pytest.approx(6.0)
        assert len(client.generate([1, 2], 2, sampler=Sampler(temperature=5.9)).tokens) == 2
        with pytest.raises(ConfigError, match=r"exceeds 6,.*top_p below 1 through heat proxy"):
            client.check([1, 2], 2, sampler=Sampler(temperature=6.5))


def test_advice_names_options_that_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line = heat(capsys, "sessions")
    assert (code, "--local" in line) == (1, False)
    assert "--local" in heat(capsys, "generate", "w1")[1]
    source = save_model(tmp_path / "model")
    with joined(source, tmp_path) as there:
        stranger = Client("http://joined", token="heat_wrong", transport=there.transport, folder=tmp_path / "keys")
        with stranger, pytest.raises(HeatError, match="does not know this token; check --token-file") as refused:
            stranger.models()
    assert "Authorization" not in str(refused.value)


@pytest.mark.parametrize("name", [name for group in GROUPS.values() for name in group])
def test_every_option_has_help_and_says_its_default(name: str) -> None:
    parser = _command(name, import_module(f"heatfhe.cli.{name.replace('-', '_')}"))
    shown = " ".join(parser.format_help().split())
    for action in parser._actions:
        assert action.help, f"heat {name} {action.dest} has no help"
        if action.nargs != 0 and isinstance(action.default, (int, float)) and action.default is not None:
            assert f"default {action.default}" in shown or "default" in action.help, f"heat {name} {action.dest}"


def test_the_package_is_the_command(tmp_path: Path) -> None:
    for command in ([sys.executable, "-m", "heatfhe"], [str(ROOT / "scripts" / "heat")]):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, env=environment, check=False)
        assert done.stdout == f"heatfhe {heatfhe.__version__}\n", done.stderr


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("unknown recipe 'large'; have: tiny", ["--recipe"]),
        ("a share lies in (0, 1], got 0.0", ["--share"]),
        ("micro_tokens 16 holds no whole window of 128; raise it", ["--micro-tokens"]),
        ("corpsu.txt: no such text file; give a .txt file", ["--text"]),
        ("other-corpsu.txt: no such text file", []),
        ("corpsu.txt.xz: no such text file", []),
        ("out/corpsu.txt: no such text file", []),
        ("notes.txt: cannot be read as text", ["--also"]),
        ("0.0 of 16 windows diverged", []),  # equal by chance
        ("context 512 exceeds the model's own of 16; give at most that (--context)", []),
    ],
)
def test_a_refusal_names_the_option_that_brought_the_value(message: str, named: list[str]) -> None:
    given = {"--recipe": "large", "--share": 0.0, "--micro-tokens": 16, "--text": Path("corpsu.txt"), "--seed": 0}
    given |= {"--also": ["more.txt", "notes.txt"], "--context": 512, "--shard": True, "--lr": None}
    assert blamed(message, given) == named


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("plan", "default", "--params", "native-99"), "--params"),
        (("plan", "default", "--params", "insecure-native-12", "--costs", "cheap"), "--costs"),
        (("plan", "default", "--params", "insecure-native-12", "--context", "4096"), "--context"),
        (("plan", "default", "--params", "insecure-native-12", "--programs", "dream"), "--programs"),
        (("report", "default", "--params", "native-99", "-o", "page.html"), "--params"),
        (("generate", "--server", "http://fhe.example", "w1"), "--server"),
        (("generate", "--local", "--server", "http://localhost:1", "w1"), "--server"),
        (("drift", "default", "--params", "native-99"), "--params"),
    ],
)
def test_slips_are_one_line_with_their_option(
    words: tuple[str, ...],
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEATFHE_TOKEN", "heat_x")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, line = heat(capsys, *words)
    assert code in (1, 4)
    assert line.count("\n") == 1
    assert option in line


def test_a_server_makes_its_own_certificate_and_hands_it_out(tmp_path: Path) -> None:
    """One command gives a client all it needs; a certificate stays while it does, and its key is its owner's alone."""
    from heatfhe.server import self_signed
    from tests.client.test_cli import heat as run

    pytest.importorskip("cryptography", reason="certificates need the native extra")
    folder, out = tmp_path / "served", tmp_path / "for-alice"
    words = ("serve", "--folder", str(folder), "--self-signed", "fhe.lan", "--self-signed", "127.0.0.1")
    said = run(*words, "--add-client", "alice", "--hand-out", str(out)).stdout
    token = (out / "token.txt").read_text().strip()
    assert token.startswith("heat_")
    assert token not in said
    assert {p.name: p.stat().st_mode & 0o777 for p in out.iterdir()} == {"token.txt": 0o600, "certificate.pem": 0o600}
    assert (folder / "tls" / "key.pem").stat().st_mode & 0o777 == 0o600
    first = (folder / "tls" / "certificate.pem").read_bytes()
    assert (out / "certificate.pem").read_bytes() == first
    assert b"PRIVATE" not in first
    self_signed(folder / "tls", ["127.0.0.1"])
    assert (folder / "tls" / "certificate.pem").read_bytes() == first  # it does for this name too
    certificate, key = self_signed(folder / "tls", ["other.lan"])
    assert certificate.read_bytes() != first
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    with pytest.raises(ConfigError, match="--self-signed"):
        self_signed(tmp_path / "none", [" "])
    for wrong, option in (
        (("--tls-cert", "c.pem"), "leave out --tls-cert"),
        (("--hand-out", str(out)), "--add-client"),
    ):
        done = run(*words, *wrong, check=False)
        assert done.returncode == 1
        assert option in done.stderr

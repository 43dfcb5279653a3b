# SPDX-License-Identifier: Apache-2.0
"""What cost a new user an afternoon, one test each: slips get one line that names the way out, and nothing is silent.

Terminals are in test_terminal.py, training in test_own_model.py, the proxy in tests/client/test_proxy.py.
"""

from __future__ import annotations

import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heatfhe.cli import main
from heatfhe.planning import Plan
from tests.server.serving import joined, save_model, served_circuit
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

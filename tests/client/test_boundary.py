# SPDX-License-Identifier: Apache-2.0
"""Two processes over real sockets: tokens equal the circuit's own, through kills, cuts and interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.approx import gumbel_noise
from heatfhe.client import Client, Sampler
from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.errors import ConfigError, WireError
from heatfhe.server import ModelSource
from tests.client.relay import Relay
from tests.server.serving import ROOT, BigKeyring, ServerProcess, served_circuit

PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def server(source: ModelSource, home: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(source, home / "server", "--chunk", "16384")
    yield running
    running.stop()


def client_of(server: ServerProcess, folder: Path, **options: object) -> Client:
    return Client(server.url, token=server.token, folder=folder, simulate=True, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def client(server: ServerProcess, home: Path) -> Iterator[Client]:
    with client_of(server, home / "alice") as found:
        yield found


def test_eight_tokens_equal_the_circuits_own(client: Client) -> None:
    answer = client.generate(PROMPT, 8)
    assert list(answer.tokens) == served_circuit().generate(PROMPT, 8).tokens
    assert answer.text == " ".join(f"w{t}" for t in answer.tokens)
    assert client.sessions() == []


def test_interactive_greedy_equals_teacher_forced_logits(client: Client) -> None:
    """Each choice is made by the client from decrypted logits and goes back encrypted."""
    tokens, circuit = list(PROMPT), served_circuit()
    for _ in range(6):
        tokens.append(int(np.argmax(circuit.run(tokens)[-1])))
    assert list(client.generate(PROMPT, 6, interactive=True).tokens) == tokens[3:]


def test_interactive_sampling_penalises_what_was_said(client: Client) -> None:
    sampler = Sampler(temperature=0.7, top_p=0.9, repetition_penalty=1e6)
    answer = client.generate(PROMPT, 8, interactive=True, sampler=sampler, rng=np.random.default_rng(0))
    assert len({*answer.tokens, *PROMPT}) == len(answer.tokens) + len(PROMPT)


def test_sampled_tokens_are_those_of_the_noise(client: Client) -> None:
    """The server adds what the client drew: with the same noise the clear argmax says the same first token."""
    prompt, moved = [7, 7, 8, 20], 0
    logits = served_circuit().run(prompt)[-1]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        (first,) = client.generate(prompt, 1, sampler=Sampler(temperature=2.0), rng=rng).tokens
        noise = gumbel_noise(np.random.default_rng(seed), 64, 2.0)
        assert first == int(np.argmax(logits + noise))
        moved += first != int(np.argmax(logits))
    assert moved > 0


def test_a_conversation_goes_on_in_its_session(client: Client) -> None:
    talk = client.open()
    first = list(client.stream(PROMPT, 3, conversation=talk))
    again = client.open(talk.session)
    assert (again.position, again.pending) == (5, True)
    second = list(client.stream([9], 3, conversation=again))
    circuit = served_circuit()
    assert first == circuit.generate(PROMPT, 3).tokens
    # The cache holds what was fed back; with near one-hot rows that is the tokens themselves, up to the argmax's error.
    assert second[0] == int(np.argmax(circuit.run([*PROMPT, *first, 9])[-1]))
    client.delete_session(talk.session)


def test_kill_9_in_the_middle_and_start_again(server: ServerProcess, client: Client) -> None:
    tokens = []
    for token in client.stream(PROMPT, 10):
        tokens.append(token)
        if len(tokens) == 4:
            server.kill()
            server.restart()
    assert tokens == served_circuit().generate(PROMPT, 10).tokens


DYING = """
import os, pathlib, signal, sys, threading
import httpx
from heatfhe.client import Client
url, token, folder = sys.argv[1:]
read = threading.Event()
class Dying(httpx.HTTPTransport):
    def handle_request(self, request):
        if request.url.path.endswith("/outputs/2"):
            read.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().handle_request(request)
client = Client(url, token=token, folder=pathlib.Path(folder), simulate=True, transport=Dying())
stream = client.stream([1, 2, 3], 6)
print(next(stream), next(stream), flush=True)
read.set()
list(stream)
"""


def test_a_client_that_dies_resumes_its_job(server: ServerProcess, home: Path) -> None:
    """kill -9 of a client that has fetched two outputs: another process reads all six, and deletes the session."""
    command = [sys.executable, "-c", DYING, server.url, server.token, str(home / "alice")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    died = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert [int(t) for t in died.stdout.split()] == served_circuit().generate(PROMPT, 2).tokens
    with client_of(server, home / "alice") as second:
        assert len(second.sessions()) == 1
        assert list(second.resume()) == served_circuit().generate(PROMPT, 6).tokens
        assert second.sessions() == []
        with pytest.raises(ConfigError, match="no unfinished job"):
            second.resume()


def test_a_key_upload_cut_at_ten_random_places_resumes(server: ServerProcess, tmp_path: Path) -> None:
    places = sorted(int(p) for p in np.random.default_rng(11).integers(3_000, 250_000, size=10))
    cutter = Relay(server.port, places)
    try:
        client = Client(cutter.url, token=server.token, folder=tmp_path, simulate=True, keyring=BigKeyring, patience=60)
        key_set = client.upload_keys()
        assert cutter.cuts == 10
        # 271 kB of keys; every cut costs at most one chunk of 16 kB again, and a request's header
        assert sum(BigKeyring.sizes) < len(cutter.sent) < sum(BigKeyring.sizes) + 10 * 16_384 + 60_000
        status = next(s for s in client.key_sets() if s["key_set"] == key_set)
        assert status["complete"]
        assert status["missing"] == []
        assert list(client.generate(PROMPT, 1).tokens) == served_circuit().generate(PROMPT, 1).tokens
    finally:
        cutter.close()


def test_an_upload_that_was_given_up_goes_on_where_it_was(server: ServerProcess, tmp_path: Path) -> None:
    class Other(BigKeyring):
        sizes = (150_000, 40_000)

        def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
            rng = np.random.default_rng(99)
            yield from ((f"rotation-{i}", rng.bytes(size)) for i, size in enumerate(self.sizes))

    cutter = Relay(server.port, [80_000])
    client = Client(cutter.url, token=server.token, folder=tmp_path, simulate=True, keyring=Other, patience=0.0)
    _ = client.keyring
    with pytest.raises(WireError, match="does not answer"):
        client.upload_keys()
    cutter.close()
    relay = Relay(server.port)
    again = Client(relay.url, token=server.token, folder=tmp_path, simulate=True, keyring=Other)
    key_set = again.upload_keys()
    assert len(relay.sent) < 190_000 - 40_000
    again.delete_key_set(key_set)
    relay.close()


def test_a_client_makes_its_keyring_once(server: ServerProcess, tmp_path: Path) -> None:
    made: list[int] = []

    def counted(*given: Any) -> ClearKeyring:
        made.append(len(given))
        return ClearKeyring(*given)

    with Client(server.url, token=server.token, folder=tmp_path, simulate=True, keyring=counted) as client:
        ring = client.keygen()
        client.upload_keys()
        assert len(client.generate([1, 2], 1).tokens) == 1
        assert client.keyring is client.keygen() is ring
    assert made == [1]  # of the request alone: it was made, and never loaded again


def test_what_a_server_may_not_be(server: ServerProcess, tmp_path: Path) -> None:
    plain = Client(server.url, token=server.token, folder=tmp_path)
    with pytest.raises(ConfigError, match="NOT be encrypted"):
        plain.generate(PROMPT, 1)
    assert not list(tmp_path.rglob("secret"))
    with pytest.raises(ConfigError, match="must not travel unencrypted"):
        Client("http://192.0.2.1:80", token="heat_x")
    with pytest.raises(ConfigError, match="not the address"):
        Client("ftp://127.0.0.1", token="heat_x")


def test_asks_that_cannot_be_met_are_refused_before_anything_is_sent(client: Client) -> None:
    """More of them than a client may have sessions: the next good one is still answered."""
    for _ in range(40):
        with pytest.raises(ConfigError, match="context is 16"):
            client.generate(PROMPT, 15)
    with pytest.raises(ConfigError, match="outside the vocabulary of 64"):
        client.generate([64], 1)
    with pytest.raises(ConfigError, match="interactive mode"):
        client.generate(PROMPT, 1, sampler=Sampler(top_p=0.5))
    with pytest.raises(ConfigError, match=r"temperature 2\.01 exceeds 2, the most this server samples at"):
        client.generate(PROMPT, 1, sampler=Sampler(temperature=2.01))
    assert client.sessions() == []
    assert list(client.generate(PROMPT, 1).tokens) == served_circuit().generate(PROMPT, 1).tokens


def test_steps_do_not_depend_on_what_was_said_unless_asked(client: Client) -> None:
    """A token that ends the text does not end the job; --stop-early does, and only then."""
    expected = served_circuit().generate(PROMPT, 8).tokens
    client.bundle.__dict__["end"] = expected[2]
    try:
        assert list(client.generate(PROMPT, 8).tokens) == expected
        assert list(client.stream(PROMPT, 8, stop_early=True)) == expected[:3]
        assert client.sessions() == []
    finally:
        client.bundle.__dict__.pop("end")


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, in PEM."""
    x509 = pytest.importorskip("cryptography.x509", reason="cryptography comes with the native extra")
    import datetime
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


def test_tls_by_configuration(source: ModelSource, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    server = ServerProcess(source, tmp_path / "server", "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        assert server.url.startswith("https://")
        with client_of(server, tmp_path / "alice", verify=str(cert)) as client:
            assert list(client.generate(PROMPT, 1).tokens) == served_circuit().generate(PROMPT, 1).tokens
        with (
            client_of(server, tmp_path / "bob", patience=0.0) as stranger,
            pytest.raises(WireError, match=r"is not trusted \(self-signed certificate\).*--ca FILE"),
        ):
            stranger.models()
    finally:
        server.stop()

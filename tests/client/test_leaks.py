# SPDX-License-Identifier: Apache-2.0
"""Law 8: nothing that leaves the client holds the secret key, a token or an embedding. Every control is caught.

A relay keeps every byte the client sends to a real server process; those bytes and every file under the server's folder
are searched. The engine is the native one, which encrypts; the controls are clients patched to leak one thing each.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="the native engine needs the native extra")

from heatfhe.client import Answer, Client, Sampler
from heatfhe.client import jobs as jobs_module
from heatfhe.client.keyring_native import NativeKeyring
from heatfhe.planning import plan
from heatfhe.planning.params import preset
from heatfhe.server import ClientBook, ModelSource
from heatfhe.wire import Message, Refusal
from tests.client.relay import Relay
from tests.server.serving import ServerProcess, served_circuit

TOKENS = [33, 47, 12, 61, 29, 54, 18, 40]
TEXT = " ".join(f"w{t}" for t in TOKENS)


@dataclass
class World:
    """A server of a really encrypting model, and what a scan of it needs."""

    server: ServerProcess
    folder: Path
    home: Path
    answer: Answer | None = None

    def run(
        self, ring: type[NativeKeyring] = NativeKeyring, name: str = "alice", **options: Any
    ) -> tuple[Client, bytes]:
        """Generate through a relay; returns the client and every byte it sent."""
        relay = Relay(self.server.port)
        token = self.server.token if name == "alice" else ClientBook(self.folder / "clients.json").add(name)
        client = Client(relay.url, token=token, folder=self.home / name, insecure=True, keyring=ring, patience=20)
        try:
            _ = client.bundle
            options.setdefault("tokens", 1)
            self.answer = client.generate(TEXT, keep=True, **options)
        except Refusal:
            pass  # a leak may be refused; its bytes were sent all the same
        finally:
            client.close()
            relay.close()
        return client, bytes(relay.sent)

    def stored(self) -> Iterator[tuple[str, bytes]]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                yield path.name, path.read_bytes()


@pytest.fixture(scope="module")
def world(home: Path) -> Iterator[World]:
    circuit = served_circuit()
    circuit.save(home / "circuit")
    params = preset("insecure-native-11")
    plan(circuit, params, programs=("generate", "prompt", "logits", "sample"), placement="greedy").save(
        home / "plan.json"
    )
    source = ModelSource(name="tiny", plan=home / "plan.json", circuit=home / "circuit")
    server = ServerProcess(source, home / "server", "--insecure", simulate=False)
    yield World(server, home / "server", home)
    server.stop()


@pytest.fixture(scope="module")
def honest(world: World) -> tuple[Client, bytes]:
    return world.run()


def two_bits(s: np.ndarray, codes: tuple[int, int, int]) -> bytes:
    c = np.asarray(codes, dtype=np.uint8)[s + 1].reshape(-1, 4)
    return (c[:, 0] | c[:, 1] << 2 | c[:, 2] << 4 | c[:, 3] << 6).astype(np.uint8).tobytes()


def secret_forms(ring: Any) -> dict[str, bytes]:
    """The secret in every encoding someone might write: coefficients, packed, residues, evaluation form, text."""
    out: dict[str, bytes] = {}
    chain, kernels = ring._native.chain, ring._maker._ring.kernels
    rows = np.arange(len(chain.moduli), dtype=np.int64)
    for which, s in (("dense", ring._secret.dense), ("sparse", ring._secret.sparse)):
        if which == "dense":  # the sparse one is almost all zeros: only its evaluation form is telling
            int8 = s.astype(np.int8).tobytes()
            out[f"{which} int8"] = int8
            out[f"{which} hex"] = int8.hex().encode()
            out[f"{which} base64"] = base64.b64encode(int8)
            out |= {f"{which} {t}": s.astype(t).tobytes() for t in ("<i4", "<i8", "<f4", "<f8")}
            out[f"{which} packed 012"] = two_bits(s, (0, 1, 2))
            out[f"{which} packed 301"] = two_bits(s, (3, 0, 1))
            for q in chain.moduli[:2]:
                out |= {f"{which} mod {q} {t}": (s % q).astype(t).tobytes() for t in ("<u4", "<u8")}
        words = kernels.evaluate(s, rows)
        for order, evaluated in (("", kernels.download(words)), (" in memory", np.asarray(words))):
            for row in (0, 1, len(chain.moduli) - 1):
                out[f"{which} evaluated {row}{order}"] = evaluated[row].astype("<u4").tobytes()
                out[f"{which} evaluated {row}{order} wide"] = evaluated[row].astype("<u8").tobytes()
    return out


def needles(client: Client) -> dict[str, list[bytes]]:
    """What must not be found: slices long enough that chance does not make them."""
    found: dict[str, list[bytes]] = {}
    for name, form in secret_forms(client.keyring).items():
        at = [0, len(form) // 2, len(form) - 64]
        found[f"secret {name}"] = [form[k : k + 64] for k in at]
    found["prompt text"] = [TEXT.encode()[:12], TEXT.encode("utf-16-le")[:16]]
    for dtype, least in (("u1", 8), ("<u2", 4), (">u2", 4), ("<u4", 2), (">u4", 2), ("<u8", 2), (">u8", 2), ("<f4", 2)):
        ids = np.asarray(TOKENS).astype(dtype)
        found[f"token ids {dtype}"] = [ids[k : k + least].tobytes() for k in range(len(TOKENS) - least + 1)]
    texts = [", ".join(map(str, TOKENS[:4])), ",".join(map(str, TOKENS[:4])), " ".join(map(str, TOKENS[:4]))]
    found["token ids text"] = [t.encode() for t in texts]
    rows = {"raw": client.bundle.table[TOKENS].astype(np.float64), "centred": client.bundle.rows(TOKENS)}
    for kind, table in rows.items():
        for dtype in ("<f2", "<f4", "<f8"):
            found[f"embedding {kind} {dtype}"] = [row.astype(dtype).tobytes()[:32] for row in table[:3]]
    return found


def leaks(client: Client, *texts: bytes) -> set[str]:
    return {name for name, parts in needles(client).items() if any(p in text for text in texts for p in parts)}


def test_an_honest_client_leaks_nothing(world: World, honest: tuple[Client, bytes]) -> None:
    client, sent = honest
    assert len(sent) > client.keys.manifest().size  # all keys went through the relay, and the prompt
    assert b"/jobs" in sent
    assert world.answer is not None
    assert list(world.answer.tokens) == served_circuit().generate(TOKENS, 1).tokens  # and it was really computed
    assert leaks(client, sent) == set()


def test_the_server_stores_nothing_of_it(world: World, honest: tuple[Client, bytes]) -> None:
    client, _ = honest
    names = [name for name, _ in world.stored()]
    assert "journal.json" in names  # the encrypted cache is there, and was searched
    assert any(name.startswith("output-") for name in names)
    whole = b"\0".join(data for _, data in world.stored())
    assert len(whole) > client.keys.manifest().size
    assert leaks(client, whole) == set()


def test_the_secret_is_readable_by_its_owner_alone(honest: tuple[Client, bytes]) -> None:
    client, _ = honest
    files = [p for p in (client.keys.folder / "secret").rglob("*") if p.is_file()]
    assert files
    assert {p.stat().st_mode & 0o777 for p in files} == {0o600}
    assert (client.keys.folder / "secret").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_an_encrypted_answer_equals_the_circuits(world: World) -> None:
    with Client(world.server.url, token=world.server.token, folder=world.home / "alice", insecure=True) as client:
        assert list(client.generate(TOKENS[:2], 8).tokens) == served_circuit().generate(TOKENS[:2], 8).tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"sampler": Sampler(temperature=2.0)}, {"interactive": True, "tokens": 2}],
    ids=["sampled", "interactive"],
)
def test_sampled_and_interactive_requests_leak_nothing(world: World, options: dict[str, Any]) -> None:
    """The noise travels encrypted, and so does every token the client chose itself."""
    client, sent = world.run(**options)
    assert b"/jobs" in sent
    assert world.answer is not None
    whole = b"\0".join(data for _, data in world.stored())
    assert leaks(client, sent, whole) == set()
    for rows in (client.bundle.rows(list(world.answer.tokens)), client.bundle.table[list(world.answer.tokens)]):
        for dtype in ("<f2", "<f4", "<f8"):
            for row in rows:
                assert row.astype(dtype).tobytes()[:32] not in sent + whole


SECRET_LEAKS = [
    "dense int8",
    "dense packed 012",
    "dense packed 301",
    "dense evaluated 0",
    "sparse evaluated 1",
    "dense hex",
]


@pytest.mark.parametrize("form", SECRET_LEAKS)
def test_a_key_set_that_hides_the_secret_is_caught(world: World, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from heatfhe.client import keys as keys_module

    monkeypatch.setattr(keys_module, "looks_secret", lambda _data: False)  # the client's own guard is off

    class Leaking(NativeKeyring):
        def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
            yield "rotation-1", secret_forms(self)[form]

    client, sent = world.run(Leaking, name=f"leak-{SECRET_LEAKS.index(form)}")
    assert f"secret {form}" in leaks(client, sent)


def test_the_clients_own_guard_stops_a_plain_secret(world: World) -> None:
    class Leaking(NativeKeyring):
        def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
            yield "rotation-1", secret_forms(self)["dense int8"]

    from heatfhe.errors import WireError

    with pytest.raises(WireError, match="looks like a secret"):
        world.run(Leaking, name="guarded")


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("prompt text", lambda _client: TEXT.encode()),
        ("token ids <u2", lambda _client: np.asarray(TOKENS).astype("<u2").tobytes()),
        ("token ids <u4", lambda _client: np.asarray(TOKENS).astype("<u4").tobytes()),
        ("token ids text", lambda _client: str(TOKENS).encode()),
        ("embedding centred <f8", lambda client: client.bundle.rows(TOKENS).astype("<f8").tobytes()),
        ("embedding raw <f2", lambda client: client.bundle.table[TOKENS].astype("<f2").tobytes()),
        ("embedding centred <f4", lambda client: client.bundle.rows(TOKENS).astype("<f4").tobytes()),
    ],
)
def test_a_job_that_carries_something_plain_is_caught(
    world: World, honest: tuple[Client, bytes], what: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = honest
    extra = make(client)

    class Leaking(jobs_module.JobRequest):
        def pack(self) -> bytes:
            blocks = {"input/0000": extra}
            return Message(
                kind="job", plan=self.head.plan, body={"config_id": self.head.config_id}, blocks=blocks
            ).pack()

    monkeypatch.setattr(jobs_module, "JobRequest", Leaking)
    caught, sent = world.run()
    assert what in leaks(caught, sent)


def test_requests_are_the_same_size_whatever_they_say(honest: tuple[Client, bytes]) -> None:
    """The number of tokens is public; which ones they are does not show in any length."""
    client, _ = honest
    sizes = set()
    for tokens in ([0, 0, 0], [63, 1, 30], [5, 5, 6]):
        rows = client.bundle.rows(tokens)
        sealed = [client.keyring.encrypt(client.layout.place_row(r), level=client.layout.input_level) for r in rows]
        sizes.add(tuple(len(s) for s in sealed))
        assert len(set(sealed)) == 3  # equal tokens never give equal ciphertexts
    assert len(sizes) == 1

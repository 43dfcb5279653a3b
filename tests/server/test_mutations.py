# SPDX-License-Identifier: Apache-2.0
"""Hostile messages against a real server process: each gets a clear 4xx, it stays up and small, others are untouched.

200 by default, 2000 in the slow run; the seed is written here, and a failure prints the mutation's number.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from heatfhe.client import Client
from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.files import canonical_json
from heatfhe.planning import ProgramName
from heatfhe.server import ClientBook, ModelSource
from heatfhe.wire import MEDIA_TYPE, STATUS, JobHead, JobRequest
from heatfhe.wire.frame import MAGIC, PREFIX
from tests.server.serving import BigKeyring, ServerProcess, served_circuit

SEED = 20_240_611
Sent = tuple[str, str, bytes, dict[str, str]]  # method, path, body, headers


class World:
    """A server process, a victim with a session, and an attacker with valid keys and a valid job to mutate."""

    def __init__(self, source: ModelSource, home: Path) -> None:
        self.server = ServerProcess(source, home / "server", "--rate", "100000", "--workers", "2")
        book = ClientBook(home / "server" / "clients.json")
        self.token = book.add("mallory")
        self.victim = Client(self.server.url, token=self.server.token, folder=home / "alice", simulate=True)
        self.attacker = Client(
            self.server.url, token=self.token, folder=home / "mallory", simulate=True, keyring=BigKeyring
        )
        self.session, self.key_set = self.attacker.open().session, self.attacker.upload_keys()
        self.victim_session = self.victim.open().session
        self.keys = self.attacker.keys.manifest()
        self.job = self._job()
        self.done = next(iter(self._finished()))

    def _job(self) -> bytes:
        client = self.attacker
        rows = client.bundle.rows([1, 2])
        ring = ClearKeyring(client.keyring.request)
        sealed = tuple(ring.encrypt(client.layout.place_row(r), level=client.layout.input_level) for r in rows)
        head = JobHead(
            config_id=client.config.config_id, plan=client.config.plan, key_set=self.key_set,
            program=ProgramName.GENERATE, steps=2, start=0, inputs=2,
        )  # fmt: skip
        return JobRequest(head=head, inputs=sealed).pack()

    def _finished(self) -> Iterator[str]:
        """A job of the victim, for foreign ids."""
        list(self.victim.stream([4], 1, conversation=self.victim.open(self.victim_session)))
        with httpx.Client(base_url=self.server.url, headers={"authorization": f"Bearer {self.server.token}"}) as http:
            yield http.get("/v1/jobs").json()["jobs"][-1]["job"]

    def memory(self) -> int:
        """Resident bytes of the server process."""
        text = Path(f"/proc/{self.server.process.pid}/statm").read_text()
        return int(text.split()[1]) * 4096


@pytest.fixture(scope="module")
def world(source: ModelSource, home: Path) -> Iterator[World]:
    made = World(source, home)
    yield made
    made.server.stop()


def reframed(header: object, blocks: bytes) -> bytes:
    """A message with any header and a right digest: only the header's own checks can refuse it."""
    text = header if isinstance(header, bytes) else canonical_json(header)
    data = PREFIX.pack(MAGIC, 1, 0, len(text)) + text + blocks
    return data + hashlib.sha256(data).digest()


def job_mutations(world: World) -> list[Callable[[np.random.Generator], bytes]]:
    good = world.job
    size = int.from_bytes(good[12:16], "little")
    header, blocks = json.loads(good[16 : 16 + size]), good[16 + size : -32]

    def changed(rng: np.random.Generator, change: Callable[[dict, np.random.Generator], None]) -> bytes:
        copy = json.loads(json.dumps(header))
        change(copy, rng)
        return reframed(copy, blocks)

    def body(name: str, values: list[object]) -> Callable[[np.random.Generator], bytes]:
        return lambda rng: changed(rng, lambda h, r: h["body"].__setitem__(name, values[r.integers(len(values))]))

    def block(name: str, values: list[object]) -> Callable[[np.random.Generator], bytes]:
        return lambda rng: changed(rng, lambda h, r: h["blocks"][0].__setitem__(name, values[r.integers(len(values))]))

    def flipped(rng: np.random.Generator) -> bytes:
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        return bytes(data)

    odd = [-1, 0, 2**31, 2**63, 1.5, "1", None, True, [], {}, "x" * 1000]
    paths = ["../../etc/passwd", "/etc/passwd", "input/0000\x00", "..", "input/../x", "", "a" * 500, "input/0001", 7]
    return [
        lambda rng: good[: int(rng.integers(0, len(good)))],
        flipped,
        lambda rng: good + rng.bytes(int(rng.integers(1, 100))),
        lambda rng: rng.bytes(int(rng.integers(0, 400))),
        lambda rng: MAGIC + rng.bytes(int(rng.integers(0, 400))),
        lambda rng: reframed(b"[" * int(rng.integers(1, 3000)), blocks),
        lambda rng: reframed(rng.bytes(200), blocks),
        body("steps", [*odd, 5000]),
        body("start", [*odd[2:], -1, 1, 5, 10**6]),
        body("parts", odd),
        body("mode", ["peek", "", 5, None, "logits"]),
        body("config_id", ["0" * 64, "zz", 1, None]),
        body("key_set", ["0" * 64, "../x", 1, None]),
        body("surprise", [1]),
        block("size", [*odd[:1], *odd[2:], 10**12, 1]),
        block("sha256", ["0" * 64, "", 5]),
        block("name", paths),
        lambda rng: changed(rng, lambda h, r: h.__setitem__("plan", ["0" * 64, "", 1][r.integers(3)])),
        lambda rng: changed(rng, lambda h, r: h.__setitem__("kind", ["output", "bundle", "", 1][r.integers(4)])),
        lambda rng: changed(rng, lambda h, r: h.__setitem__("blocks", h["blocks"] * int(r.integers(2, 500)))),
        lambda rng: PREFIX.pack(MAGIC, int(rng.integers(2, 60_000)), 0, size) + good[16:],
        lambda rng: PREFIX.pack(MAGIC, 1, int(rng.integers(1, 60_000)), size) + good[16:],
        lambda rng: PREFIX.pack(MAGIC, 1, 0, int(rng.integers(size + 1, 2**32 - 1))) + good[16:],
    ]


def attacks(world: World) -> list[Callable[[np.random.Generator], Sent]]:
    octets, js = {"content-type": "application/octet-stream"}, {"content-type": "application/json"}
    jobs, entry = f"/v1/sessions/{world.session}/jobs", world.keys.keys[0]
    blob = f"/v1/keysets/{world.key_set}/blobs/{entry.sha256}"
    manifest = world.keys.as_json()

    def message(make: Callable[[np.random.Generator], bytes]) -> Callable[[np.random.Generator], Sent]:
        def build(rng: np.random.Generator) -> Sent:
            key = "".join(rng.choice(list("abcdef0123456789"), 20))
            return "POST", jobs, make(rng), {"content-type": MEDIA_TYPE, "idempotency-key": key}

        return build

    def keys(change: Callable[[dict, np.random.Generator], None]) -> Callable[[np.random.Generator], Sent]:
        def build(rng: np.random.Generator) -> Sent:
            copy = json.loads(json.dumps(manifest))
            change(copy, rng)
            return "POST", "/v1/keysets", json.dumps(copy).encode(), js

        return build

    def chunk(rng: np.random.Generator) -> Sent:
        data = rng.bytes(int(rng.integers(1, 300)))
        other = f"/v1/keysets/{world.key_set}/blobs/{rng.bytes(32).hex()}"
        path = [other, f"/v1/keysets/{rng.bytes(32).hex()}/blobs/{entry.sha256}"][rng.integers(2)]
        headers = {**octets, "x-chunk-sha256": hashlib.sha256(data).hexdigest()}
        return "PUT", f"{path}?offset={rng.integers(0, 2**34)}", data, headers

    bomb = gzip.compress(bytes(1 << 22))
    names = ["../x", "/abs", "secret", "sk", "a\x00b", "", 5, None, "x" * 300, "a/../../b"]
    foreign = [
        ("GET", f"/v1/sessions/{world.victim_session}"), ("DELETE", f"/v1/sessions/{world.victim_session}"),
        ("GET", f"/v1/jobs/{world.done}"), ("GET", f"/v1/jobs/{world.done}/outputs/0"),
        ("GET", f"/v1/jobs/{world.done}/events"), ("POST", f"/v1/jobs/{world.done}/cancel"),
        ("GET", f"/v1/keysets/{world.victim.upload_keys()}"), ("DELETE", f"/v1/keysets/{world.victim.upload_keys()}"),
    ]  # fmt: skip
    tricks = [
        "/v1/sessions/..%2f..%2fclients.json", "/v1/sessions/../../clients.json", "/v1/jobs/%00", "/v1/models/..%2f..",
        "/v1/keysets/%2e%2e%2f%2e%2e", "/v1/models/" + "a" * 3000, "/v1/jobs/" + "0" * 31, "/v1/nothing", "//etc/x",
    ]  # fmt: skip
    wild: list[Callable[[np.random.Generator], Sent]] = [
        chunk,
        lambda rng: ("PUT", f"{blob}?offset=0", bytes(100), {**octets, "x-chunk-sha256": rng.bytes(5).hex()}),
        lambda rng: ("PUT", f"{blob}?offset={['-1', 'x', '', '1e9', '9' * 40][rng.integers(5)]}", b"x", octets),
        keys(lambda m, r: m["keys"][0].__setitem__("name", names[r.integers(len(names))])),
        keys(lambda m, r: m["keys"][0].__setitem__("size", [-1, 0, 10**15, 1.5, "9", None][r.integers(6)])),
        keys(lambda m, r: m["keys"][0].__setitem__("sha256", ["", "G" * 64, 1][r.integers(3)])),
        keys(lambda m, r: m.__setitem__("config_id", [r.bytes(32).hex(), "", None][r.integers(3)])),
        keys(lambda m, r: m.__setitem__("keys", [[], {}, None, "x", [1]][r.integers(5)])),
        keys(lambda m, r: m["keys"].extend(m["keys"])),
        keys(lambda m, r: m["keys"][0].__setitem__("size", 1 << 34)),
        lambda rng: ("POST", "/v1/sessions", rng.bytes(int(rng.integers(0, 200))), js),
        lambda rng: ("POST", "/v1/sessions", b"[" * int(rng.integers(1, 4000)), js),
        lambda rng: ("POST", "/v1/sessions", b'{"a":' * 900 + b"1" + b"}" * 900, js),
        lambda rng: ("POST", "/v1/sessions", bytes(5000), js),
        lambda rng: (
            "POST",
            jobs,
            bomb,
            {"content-type": MEDIA_TYPE, "content-encoding": "gzip", "idempotency-key": "b" * 12},
        ),
        lambda rng: ("POST", "/v1/keysets", bomb, {**js, "content-encoding": ["gzip", "br", "zstd"][rng.integers(3)]}),
        lambda rng: ("POST", jobs, world.job, {"content-type": MEDIA_TYPE}),
        lambda rng: ("POST", jobs, world.job, {"content-type": MEDIA_TYPE, "idempotency-key": "a/../b" * 30}),
        lambda rng: (
            "POST",
            f"/v1/sessions/{rng.bytes(16).hex()}/jobs",
            world.job,
            {"content-type": MEDIA_TYPE, "idempotency-key": "c" * 12},
        ),
        lambda rng: (
            "POST",
            f"/v1/sessions/{world.victim_session}/jobs",
            world.job,
            {"content-type": MEDIA_TYPE, "idempotency-key": "d" * 12},
        ),
        lambda rng: (*foreign[rng.integers(len(foreign))], b"", {}),
        lambda rng: ("GET", tricks[rng.integers(len(tricks))], b"", {}),
        lambda rng: ("GET", "/v1/models", b"", {"authorization": f"Bearer {rng.bytes(20).hex()}"}),
        lambda rng: (["PUT", "PATCH", "DELETE"][rng.integers(3)], "/v1/models", b"", {}),
    ]
    return [message(make) for make in job_mutations(world)] + wild


def storm(world: World, count: int) -> None:
    rng, made = np.random.default_rng(SEED), attacks(world)
    victim_files = {
        p: p.stat().st_mtime_ns for p in (world.server._folder / "clients" / "alice").rglob("*") if p.is_file()
    }
    sessions = world.victim.sessions()
    before = world.memory()
    codes: dict[int, int] = {}
    with httpx.Client(
        base_url=world.server.url, headers={"authorization": f"Bearer {world.token}"}, timeout=30
    ) as http:
        for number in range(count):
            method, path, data, headers = made[number % len(made)](rng)
            answer = http.request(method, path, content=data, headers=headers)
            said = answer.text[:300]
            assert 400 <= answer.status_code < 500, (
                f"mutation {number}: {method} {path[:80]} gave {answer.status_code}: {said}"
            )
            error = answer.json()["error"]
            assert error["code"] in STATUS, f"mutation {number}: {said}"
            assert error["message"], f"mutation {number}: {said}"
            codes[answer.status_code] = codes.get(answer.status_code, 0) + 1
        assert http.get("/v1/jobs").json()["jobs"] == []  # nothing became work
    assert world.server.process.poll() is None
    assert world.memory() - before < 64 << 20
    assert world.victim.sessions() == sessions
    after = {p: p.stat().st_mtime_ns for p in (world.server._folder / "clients" / "alice").rglob("*") if p.is_file()}
    assert after == victim_files
    assert {400, 404, 409, 410, 413, 415} <= set(codes)
    assert not list((world.server._folder / "clients" / "mallory" / "incoming").iterdir())
    assert list(world.victim.generate([1, 2, 3], 2).tokens) == served_circuit().generate([1, 2, 3], 2).tokens


def test_two_hundred_mutations_while_another_session_generates(world: World) -> None:
    """A second session of the victim runs during the storm and gets its own tokens."""
    found: list[int] = []
    talk = world.victim.open()
    assert list(world.victim.stream([9, 8], 1, conversation=talk)) == served_circuit().generate([9, 8], 1).tokens
    storm(world, 200)
    again = Client(world.server.url, token=world.server.token, folder=world.victim._folder, simulate=True)
    thread = threading.Thread(target=lambda: found.extend(again.generate([9, 8, 7], 8).tokens))
    thread.start()
    end = time.monotonic() + 30
    rng, made, sent = np.random.default_rng(1), attacks(world), 0
    with httpx.Client(
        base_url=world.server.url, headers={"authorization": f"Bearer {world.token}"}, timeout=30
    ) as http:
        while thread.is_alive() and time.monotonic() < end and sent < 100:
            method, path, data, headers = made[sent % len(made)](rng)
            assert 400 <= http.request(method, path, content=data, headers=headers).status_code < 500
            sent += 1
    thread.join(timeout=60)
    assert found == served_circuit().generate([9, 8, 7], 8).tokens
    world.victim.delete_session(talk.session)


def test_a_stalled_body_and_a_half_request_do_not_hold_the_server(world: World) -> None:
    open_sockets = []
    for data in (
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\n",
        b"GET / HTTP/1.1\r\n" + b"a" * 70_000,
        b"\x16\x03\x01\x02\x00",
    ):
        s = socket.create_connection(("127.0.0.1", world.server.port), timeout=5)
        s.sendall(data)
        open_sockets.append(s)
    assert httpx.get(f"{world.server.url}/healthz", timeout=5).status_code == 200
    for s in open_sockets:
        s.close()


def test_one_clients_stalled_bodies_are_few(world: World) -> None:
    """Bodies on their way are held in memory: of one client at most eight, and others are served meanwhile."""
    path = f"/v1/keysets/{world.key_set}/blobs/{world.keys.keys[0].sha256}?offset=0"
    head = (
        f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.token}\r\nContent-Length: 9000\r\n"
        f"Content-Type: application/octet-stream\r\nX-Chunk-Sha256: {'0' * 64}\r\n\r\n"
    )
    links = [socket.create_connection(("127.0.0.1", world.server.port), timeout=5) for _ in range(12)]
    try:
        for link in links:
            link.sendall(head.encode() + bytes(100))
        answers: list[bytes] = []
        end = time.monotonic() + 20  # a refusal waits up to five seconds for the rest of its body
        while len(answers) < 4 and time.monotonic() < end:
            for link in select.select(links, [], [], 1.0)[0]:
                answers.append(link.recv(4096)[:12])
                links.remove(link)
                link.close()
        assert answers == [b"HTTP/1.1 429"] * 4
        assert list(world.victim.generate([1, 2], 1).tokens) == served_circuit().generate([1, 2], 1).tokens
    finally:
        for link in links:
            link.close()


@pytest.mark.slow
def test_two_thousand_mutations(world: World) -> None:
    storm(world, 2000)


def test_a_refusal_arrives_even_when_a_large_body_was_not_wanted(world: World) -> None:
    """The answer is sent after the body was read and dropped: no reset connection hides it."""
    headers = {"authorization": f"Bearer {world.token}", "content-type": MEDIA_TYPE, "idempotency-key": "e" * 12}
    path = f"{world.server.url}/v1/sessions/{'0' * 32}/jobs"
    for _ in range(10):
        answer = httpx.post(path, content=bytes(3 << 20), headers=headers, timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")

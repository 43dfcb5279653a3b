# SPDX-License-Identifier: Apache-2.0
"""What tests of client and server share: a tiny served model, an app joined to a client without a socket, processes."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from heatfhe.approx import fit_schedule, gumbel_noise
from heatfhe.circuit import Circuit
from heatfhe.ckks.params import Params
from heatfhe.client import Client
from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.engine import KeyRequest
from heatfhe.planning import plan
from heatfhe.records import ArgmaxCalibration
from heatfhe.server import ClientBook, ModelSource, Settings, create_app
from tests.tiny import tiny_circuit

pytest.importorskip("fastapi", reason="the server needs the serve extra")
pytest.importorskip("uvicorn", reason="the server needs the serve extra")
ROOT = Path(__file__).resolve().parents[2]
PARAMS = Params(
    name="insecure-serving",
    engine="openfhe",
    ring_dimension=256,
    levels=9,
    scale_bits=35.0,
    log_qp=900.0,
    noise=1e-6,
    promised_bits=30.0,
    reach=1000.0,
)
WORDS = [f"w{i}" for i in range(63)] + ["<|endoftext|>"]


def word_tokenizer() -> bytes:
    """A tokenizer with one token per word: w0 ... w62 and an end of text."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer.to_str().encode()


@lru_cache(maxsize=3)
def served_circuit(layers: int = 1, temperature: float = 2.0) -> Circuit:
    """The circuit the tests serve: three rounds of argmax, for sampling up to a temperature."""
    circuit, rng = tiny_circuit(layers=layers), np.random.default_rng(0)
    tokens = rng.integers(0, circuit.shape.vocabulary, (24, circuit.shape.context))
    logits = circuit.run(tokens).reshape(-1, circuit.shape.vocabulary)
    noisy = (temperature / 2, temperature)
    rows = np.concatenate([row + [0.0 * row, *(gumbel_noise(rng, row.size, t) for t in noisy)] for row in logits])
    argmax = ArgmaxCalibration(schedule=fit_schedule(rows, powers=(3, 3, 3)), temperature=temperature)
    calibration = replace(circuit.calibration, argmax=argmax)
    return replace(circuit, calibration=calibration, tokenizer={"tokenizer.json": word_tokenizer()})


def save_model(folder: Path, name: str = "tiny", layers: int = 1) -> ModelSource:
    """A plan with every program, and its circuit, on disk."""
    circuit = served_circuit(layers)
    folder.mkdir(parents=True, exist_ok=True)
    circuit.save(folder / "circuit")
    programs = ("generate", "prompt", "logits", "sample")
    plan(circuit, PARAMS, programs=programs, placement="greedy").save(folder / "plan.json")
    return ModelSource(name=name, plan=folder / "plan.json", circuit=folder / "circuit")


class BigKeyring(ClearKeyring):
    """A clear keyring whose evaluation keys are random bytes of real sizes, the same in every process."""

    sizes = (70_000, 1_000, 200_001)

    def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
        rng = np.random.default_rng(7)
        for i, size in enumerate(self.sizes):
            yield f"rotation-{i}", rng.bytes(size)


class AppTransport(httpx.BaseTransport):
    """Joins a synchronous httpx client to an ASGI app on a loop of its own; answers stream."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop: asyncio.Event | None = None
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._life = asyncio.run_coroutine_threadsafe(self._lifespan(started), self._loop)
        if (failure := started.get()) is not None:
            raise failure

    async def _lifespan(self, started: queue.SimpleQueue[BaseException | None]) -> None:
        self._stop = asyncio.Event()
        try:
            async with self._app.router.lifespan_context(self._app):
                started.put(None)
                await self._stop.wait()
        except BaseException as err:
            started.put(err)
            raise

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        parts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "headers": [(k.lower(), v) for k, v in request.headers.raw],
            "client": ("127.0.0.1", 1),
            "server": ("joined", 80),
            "root_path": "",
        }
        task = asyncio.run_coroutine_threadsafe(self._call(scope, body, parts), self._loop)
        first = parts.get()
        if isinstance(first, BaseException):
            raise first
        status, headers = first
        return httpx.Response(status, headers=headers, stream=_Stream(parts, task))

    async def _call(self, scope: dict[str, Any], body: bytes, parts: queue.SimpleQueue[Any]) -> None:
        sent, gone = False, asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                parts.put((message["status"], message["headers"]))
            elif message.get("body"):
                parts.put(message["body"])

        try:
            await self._app(scope, receive, send)
        except BaseException as err:
            parts.put(err)
            raise
        finally:
            parts.put(None)

    def close(self) -> None:
        """The app stays for other clients; ``shut`` ends it."""

    def shut(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._life.result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)


class _Stream(httpx.SyncByteStream):
    def __init__(self, parts: queue.SimpleQueue[Any], task: Any) -> None:
        self._parts, self._task = parts, task

    def __iter__(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, BaseException):
                continue
            yield part

    def close(self) -> None:
        self._task.cancel()


@dataclass
class Joined:
    """An app in this process, its service, and clients of it."""

    settings: Settings
    app: Any
    transport: AppTransport
    home: Path
    connections: Any = ()

    @property
    def service(self) -> Any:
        return self.app.state.service

    def token(self, name: str = "alice") -> str:
        return self.service.book.add(name)

    def client(self, name: str = "alice", **options: Any) -> Client:
        options = {"simulate": True, "folder": self.home / name, "patience": 5.0, **options}
        transport = options.pop("transport", self.transport)
        return Client("http://joined", token=self.token(name), transport=transport, **options)

    def http(self, name: str = "alice") -> httpx.Client:
        headers = {"authorization": f"Bearer {self.token(name)}"}
        return httpx.Client(base_url="http://joined", transport=self.transport, headers=headers, timeout=30)


@contextmanager
def joined(source: ModelSource, home: Path, **options: Any) -> Iterator[Joined]:
    """A simulated server in this process; its workers are processes of their own."""
    fast = {"requests_per_second": 1e6, "request_burst": 1_000_000, "reserve_bytes": 0, "resident_workers": 8}
    settings = Settings(folder=home / "server", models=(source,), simulate=True, joined=True, **{**fast, **options})
    app = create_app(settings)
    transport = AppTransport(app)
    try:
        yield Joined(settings, app, transport, home)
    finally:
        transport.shut()


@contextmanager
def on_socket(app: Joined, **options: Any) -> Iterator[str]:
    """The same app on a real socket, served by a thread of this process; yields its address."""
    from heatfhe.server.http.protocol import bounded_protocol

    protocol = bounded_protocol(**{"head_seconds": 60.0, **options})
    with listening(app.app, app, http=protocol) as url:
        yield url


@contextmanager
def listening(app: Any, owner: Joined | None = None, **options: Any) -> Iterator[str]:
    """Any app on a real socket, served by a thread of this process; yields its address."""
    import socket

    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    if owner is not None:
        owner.connections = server.server_state.connections
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


class ServerProcess:
    """``heat serve`` in a process of its own, on real sockets; may be killed and started again on the same port."""

    def __init__(self, source: ModelSource, folder: Path, *arguments: str, simulate: bool = True) -> None:
        self._folder = folder
        self.token = ClientBook(_made(folder) / "clients.json").add("alice")
        self._arguments = [
            "--plan",
            str(source.plan),
            "--reserve",
            "0",
            "--circuit",
            str(source.circuit),
            "--name",
            source.name,
        ]
        self._arguments += [
            "--folder",
            str(folder),
            *["--simulate"] * simulate,
            "--host",
            "127.0.0.1",
            "--json",
            *arguments,
        ]
        self.port = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "heatfhe.cli", "serve", *self._arguments, "--port", str(self.port)]
        log = (self._folder.parent / f"{self._folder.name}.log").open("ab")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start, exit code {process.wait()}; see {log.name}")
        self.facts = json.loads(line)
        self.url = self.facts["url"]
        self.port = int(self.url.rsplit(":", 1)[1])
        threading.Thread(target=process.stdout.read, daemon=True).start()
        return process

    def kill(self) -> None:
        """kill -9, as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.process = self._start()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.kill()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wait_for(test: Any, seconds: float = 20.0) -> None:
    """Poll until a test holds."""
    end = time.monotonic() + seconds
    while not test():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.02)


def request(rotations: tuple[int, ...] = (1, 2)) -> KeyRequest:
    """A small key request."""
    return KeyRequest(params=PARAMS, rotations=rotations)

# SPDX-License-Identifier: Apache-2.0
"""Eight clients of one server, one of which misbehaves: the p99 of the other seven beside their p99 alone, one run.

    python bench/misbehaving_client.py [--seconds 10] [--ways unread,json,...]

The server is ``heat serve`` on loopback with the embedded model on the clear engine (nothing is encrypted: the network
side is what is measured), its bundle padded to 48 MiB. Seven clients ask again and again; before each way of
misbehaving their time alone is taken anew. The eighth is a process of its own with an address of its own (127.0.0.2).
Every phase lasts ``--seconds``, sockets and requests are bounded, and everything ends with this process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SOURCE = str(Path(__file__).resolve().parent.parent / "src")
OTHERS, BUNDLE, ADDRESS = 7, 48 << 20, ("127.0.0.2", 0)
JS, MARGIN = {"content-type": "application/json"}, 3.0


@dataclass(frozen=True)
class Target:
    """Where a client asks, and as whom."""

    port: int
    token: str
    model: str
    config_id: str

    def connect(self, source: tuple[str, int] | None = None) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60, source_address=source)

    def ask(
        self, link: http.client.HTTPConnection, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, bytes]:
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        link.request(method, path, body=body or None, headers={"authorization": f"Bearer {self.token}", **named})
        answer = link.getresponse()
        return answer.status, answer.read()


# -- the eighth client -------------------------------------------------------------------------------------------------


def unread(target: Target, go_on: Callable[[], bool], _folder: Path) -> None:
    """50 downloads of the bundle, of which nothing is read."""
    head = f"GET /v1/models/{target.model}/bundle HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {target.token}\r\n\r\n"
    while go_on():
        links = []
        for _ in range(50):
            link = socket.create_connection(("127.0.0.1", target.port), timeout=5, source_address=ADDRESS)
            links.append(link)
            with contextlib.suppress(OSError):
                link.sendall(head.encode())
        end = time.monotonic() + 5
        while go_on() and time.monotonic() < end:
            time.sleep(0.1)
        for link in links:
            link.close()


def many(target: Target, go_on: Callable[[], bool], *asks: tuple[str, str, bytes, dict[str, str]]) -> None:
    """Eight connections that send these requests as fast as they are answered."""

    def one() -> None:
        link = target.connect(ADDRESS)
        while go_on():
            for method, path, body, headers in asks:
                try:
                    status, _ = target.ask(link, method, path, body, **headers)
                    if status == 429:
                        time.sleep(0.02)
                except OSError:
                    link.close()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def large_json(target: Target, go_on: Callable[[], bool], _folder: Path) -> None:
    """2 MiB of small numbers, and the largest manifest that is legal."""
    keys = [{"name": f"{i:0128d}", "size": 1 << 34, "sha256": f"{i:064x}"} for i in range(4096)]
    legal = json.dumps({"config_id": target.config_id, "keys": keys}).encode()
    numbers = b'{"keys":[' + b"1," * (1 << 20)
    post = ("POST", "/v1/keysets")
    many(target, go_on, (*post, numbers[: (2 << 20) - 3] + b"1]}", JS), (*post, legal, JS))


def ended_jobs(target: Target, go_on: Callable[[], bool], folder: Path) -> None:
    """As many ended jobs as it may have, listed over and over."""
    with client_of(target, folder) as client:
        for _ in range(40):
            if go_on():
                with contextlib.suppress(Exception):
                    client.generate([1], 1, keep=True)
    many(target, go_on, ("GET", "/v1/jobs", b"", {}))


def key_hashes(target: Target, go_on: Callable[[], bool], _folder: Path) -> None:
    """Keys of 64 MiB in chunks of 8 MiB, deleted and sent again: the last chunk of each has the whole hashed."""
    link, data = target.connect(ADDRESS), secrets.token_bytes(64 << 20)
    sha = hashlib.sha256(data).hexdigest()
    keys = [{"name": "r", "size": len(data), "sha256": sha}]
    manifest = json.dumps({"config_id": target.config_id, "keys": keys}).encode()
    chunks = [data[i : i + (8 << 20)] for i in range(0, len(data), 8 << 20)]
    digests = [hashlib.sha256(chunk).hexdigest() for chunk in chunks]
    while go_on():
        status, answer = target.ask(link, "POST", "/v1/keysets", manifest, **JS)
        if status != 200:
            time.sleep(0.1)
            continue
        path = f"/v1/keysets/{json.loads(answer)['key_set']}"
        for number, (chunk, digest) in enumerate(zip(chunks, digests)):
            headers = {"content-type": "application/octet-stream", "x-chunk-sha256": digest}
            target.ask(link, "PUT", f"{path}/blobs/{sha}?offset={number * (8 << 20)}", chunk, **headers)
        target.ask(link, "DELETE", path)


def long_jobs(target: Target, go_on: Callable[[], bool], folder: Path) -> None:
    """Four conversations at once that each ask for the longest answer there is."""

    def one() -> None:
        with client_of(target, folder) as client:
            while go_on():
                with contextlib.suppress(Exception):
                    for _ in client.stream([1], 100):
                        if not go_on():
                            break

    threads = [threading.Thread(target=one, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    while go_on():
        time.sleep(0.1)


def silent(target: Target, go_on: Callable[[], bool], _folder: Path) -> None:
    """900 connections without a token that never say anything, 200 new ones in a second."""
    links: list[socket.socket] = []
    while go_on():
        with contextlib.suppress(OSError):
            links.append(socket.create_connection(("127.0.0.1", target.port), timeout=2, source_address=ADDRESS))
        if len(links) >= 900:  # within the usual limit of open files
            links.pop(0).close()
        time.sleep(0.005)


WAYS: dict[str, Callable[[Target, Callable[[], bool], Path], None]] = {
    "unread": unread,
    "json": large_json,
    "jobs-list": ended_jobs,
    "key-hash": key_hashes,
    "long-jobs": long_jobs,
    "silent": silent,
}


def misbehave(way: str, target: Target, seconds: float, folder: Path) -> int:
    """The eighth client's process: it ends after its time, or with its parent."""
    end, parent = time.monotonic() + seconds, os.getppid()
    WAYS[way](target, lambda: time.monotonic() < end and os.getppid() == parent, folder)
    sys.stdout.flush()
    os._exit(0)


# -- the other seven ---------------------------------------------------------------------------------------------------


def client_of(target: Target, folder: Path) -> Any:
    from heatfhe.client import Client

    return Client(f"http://127.0.0.1:{target.port}", token=target.token, folder=folder, simulate=True)


def requests_of(target: Target, stop: float, times: list[float]) -> None:
    """Small requests, about 40 in a second: three on a kept connection, then one on a fresh one."""
    link = target.connect()
    paths = ("/v1/models", "/v1/keysets", "/v1/jobs", "/healthz")
    number = 0
    while time.monotonic() < stop:
        path = paths[number % len(paths)]
        if path == "/healthz":
            link.close()
        began = time.perf_counter()
        status, _ = target.ask(link, "GET", path)
        times.append(time.perf_counter() - began if status == 200 else 60.0)
        number += 1
        time.sleep(0.025)


def jobs_of(target: Target, stop: float, times: list[float], folder: Path) -> None:
    """Answers of one token, one after the other."""
    with client_of(target, folder) as client:
        while time.monotonic() < stop:
            began = time.perf_counter()
            client.generate([1], 1)
            times.append(time.perf_counter() - began)


def phase(others: list[tuple[Target, Path]], seconds: float, *, jobs: bool) -> list[float]:
    """Seconds of every request (or job) of the seven, in order of size."""
    stop, times = time.monotonic() + seconds, list[float]()

    def one(target: Target, folder: Path) -> None:
        try:
            jobs_of(target, stop, times, folder) if jobs else requests_of(target, stop, times)
        except Exception as err:
            times.append(60.0)
            print(f"a well-behaved client failed: {type(err).__name__}: {err}", file=sys.stderr)

    threads = [threading.Thread(target=one, args=pair) for pair in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times)


def p99(times: list[float]) -> float:
    return times[min(len(times) - 1, int(0.99 * len(times)))]


# -- the server --------------------------------------------------------------------------------------------------------


def start(folder: Path) -> tuple[subprocess.Popen[str], int, str]:
    """``heat serve`` with a padded bundle; returns the process, its port and the model's name."""
    from heatfhe.assets import default_circuit
    from heatfhe.circuit import Circuit

    circuit = Circuit.load(default_circuit())
    replace(circuit, tokenizer={**circuit.tokenizer, "padding.bin": bytes(BUNDLE)}).save(folder / "circuit")
    command = [sys.executable, "-m", "heatfhe.cli", "serve", str(folder / "circuit"), "--params", "insecure-native-12"]
    command += ["--name", "padded", "--simulate", "--folder", str(folder / "server"), "--port", "0", "--json"]
    command += ["--workers", str(OTHERS + 1), "--ends-with", str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    log = (folder / "log").open("wb")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, int(json.loads(line)["url"].rsplit(":", 1)[1]), "padded"
    raise SystemExit(f"the server did not start: {(folder / 'log').read_text()[-500:]}")


def resident(process: subprocess.Popen[str]) -> float:
    """MiB of the server process."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)


def measure(way: str, args: argparse.Namespace, attacker: Target, others: Any, server: Any, folder: Path) -> bool:
    jobs = way == "long-jobs"
    alone = phase(others, args.seconds, jobs=jobs)
    command = [sys.executable, __file__, "--way", way, "--seconds", str(args.seconds + 4), "--folder", str(folder)]
    command += ["--target", json.dumps(attacker.__dict__)]
    eighth = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE})
    peak, over = [resident(server)], threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            peak.append(resident(server))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    time.sleep(2)
    beside = phase(others, args.seconds, jobs=jobs)
    over.set()
    watcher.join()
    if eighth.wait(timeout=args.seconds + 60):
        print(f"{way}: the misbehaving client failed", file=sys.stderr)
    ratio = p99(beside) / p99(alone)
    print(
        f"{way:<10} | {'jobs' if jobs else 'requests':<8} {len(alone):5d}, {len(beside):5d} | alone p99 "
        f"{1e3 * p99(alone):8.1f} ms | beside p99 {1e3 * p99(beside):8.1f} ms | ratio {ratio:5.2f} "
        f"{'within' if ratio <= MARGIN else 'EXCEEDS'} {MARGIN:g} | server {peak[0]:.0f} to {max(peak):.0f} MiB",
        flush=True,
    )
    return ratio <= MARGIN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways of misbehaving")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        return misbehave(args.way, Target(**json.loads(args.target)), args.seconds, Path(args.folder))
    from heatfhe.server import ClientBook

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, port, model = start(folder)
        try:
            book = ClientBook(folder / "server" / "clients.json")
            plain = Target(port, "", model, "")
            with client_of(replace(plain, token=book.add("eighth")), folder / "eighth") as first:
                config_id = first.config.config_id
                targets = [Target(port, book.add(f"other-{i}"), model, config_id) for i in range(OTHERS)]
                others = [(target, folder / f"other-{i}") for i, target in enumerate(targets)]
                first.generate([1], 1)  # every worker is open before anything is timed
                attacker = replace(plain, token=first._link._client.headers["authorization"][7:], config_id=config_id)
            for target, home in others:
                with client_of(target, home) as client:
                    client.generate([1], 1)
            device = f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
            print(f"{OTHERS} clients beside one that misbehaves, {args.seconds:g} s each, {device}", flush=True)
            ways = [way for way in args.ways.split(",") if way]
            fine = [measure(way, args, attacker, others, server, folder / "eighth") for way in ways]
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main())

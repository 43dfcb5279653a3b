# SPDX-License-Identifier: Apache-2.0
"""What a round of chaos happens to: a server process with a fault inside, a client at work, the accounts after."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heatfhe.client import Client
from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.engine import KeyRequest
from heatfhe.errors import HeatError
from heatfhe.server import ModelSource
from heatfhe.wire import Refusal
from tests.server.serving import ROOT

PROMPT, TOKENS, SECONDS = [1, 2, 3], 4, 240.0


class DerivedKeyring(ClearKeyring):
    """A clear keyring with a secret of its own, from which its evaluation keys follow: mixed keys show."""

    sizes, pauses = (70_000, 1_000, 90_001), (0.0, 0.0)  # how long a secret and each of its keys takes

    def __init__(self, request: KeyRequest, folder: Path | None = None) -> None:
        super().__init__(request, folder)
        time.sleep(self.pauses[0])
        self.secret = secrets.token_bytes(32) if folder is None else (folder / "secret.bin").read_bytes()

    def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
        for i, size in enumerate(self.sizes):
            time.sleep(self.pauses[1])
            yield f"rotation-{i}", hashlib.shake_256(self.secret + bytes([i])).digest(size)

    def save(self, folder: Path) -> None:
        super().save(folder)
        (folder / "secret.bin").write_bytes(self.secret)


class Server:
    """``heat serve`` on a folder as it is, perhaps with a fault inside; started again on the same port."""

    def __init__(self, source: ModelSource, folder: Path) -> None:
        self.folder, self.port, self.process = folder, 0, None
        self.mark = folder.with_name("struck")
        self.arguments = ["--plan", str(source.plan), "--circuit", str(source.circuit), "--name", source.name]
        self.arguments += ["--folder", str(folder), "--simulate", "--reserve", "0", "--chunk", "16384", "--json"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "heatfhe.cli", "serve", *self.arguments, *more]

    def start(self, sabotage: dict[str, Any] | None = None) -> None:
        paths = [str(ROOT / "src"), *([str(ROOT / "tests" / "server" / "sabotage")] if sabotage else [])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        if sabotage:
            environment["HEATFHE_SABOTAGE"] = json.dumps({"mark": str(self.mark), **sabotage})
        with self.folder.with_name("server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command("--port", str(self.port)), stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        line = self.process.stdout.readline()
        if line:
            self.port = int(json.loads(line)["url"].rsplit(":", 1)[1])
        elif not sabotage:
            raise AssertionError(f"the server did not start; see {self.folder.with_name('server.log')}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.wait()

    def wait(self) -> None:
        self.process.wait(timeout=60)
        self.process.stdout.close()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None


@dataclass
class Round:
    """One round's place, its dice, and what it found."""

    server: Server
    token: str
    home: Path
    dice: random.Random
    made: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    struck: bool = False
    url: str = ""

    def client(self) -> Client:
        url = self.url or self.server.url
        return Client(url, token=self.token, folder=self.home, simulate=True, patience=45.0, keyring=DerivedKeyring)

    def work(self, before_delete: Callable[[Client, str], None] = lambda _c, _s: None) -> None:
        """Make keys, upload them, ask, read, delete. A refusal by a full disk is waited out; the tokens must come."""
        end, opened = time.monotonic() + SECONDS, []
        with self.client() as client:
            while True:
                try:
                    key_set = client.upload_keys()
                    talk = client.open()
                    opened.append(talk.session)
                    made = list(client.stream(PROMPT, TOKENS, conversation=talk))
                    before_delete(client, talk.session)
                    while opened:
                        self._gone(client.delete_session, opened[-1])
                        opened.pop()
                    self.made = made
                    if unknown := [s["session"] for s in client.sessions() if s["key_set"] == key_set]:
                        self.faults.append(f"sessions that the client was never told of: {unknown}")
                        return
                    self._gone(client.delete_key_set, key_set)
                    return
                except HeatError as err:
                    if time.monotonic() > end:
                        self.faults.append(f"gave up: {err}")
                        return
                    time.sleep(0.5)

    def _gone(self, delete: Callable[[str], None], name: str) -> None:
        try:
            delete(name)
        except Refusal as refusal:  # the first try arrived, although its answer did not
            if refusal.code != "not_found":
                raise

    def during(self, what: Callable[[threading.Thread], None], **options: Any) -> None:
        """Do something while the work goes on; a server that dies meanwhile is started again."""
        thread = threading.Thread(target=self._caught, kwargs=options, daemon=True)
        thread.start()
        what(thread)
        end = time.monotonic() + SECONDS + 60
        while thread.is_alive() and time.monotonic() < end:
            if self.server.ended:
                self.server.wait()
                self.server.start()
            thread.join(0.05)
        if thread.is_alive():
            self.faults.append("the work did not end")

    def _caught(self, **options: Any) -> None:
        try:
            self.work(**options)
        except BaseException as err:
            self.faults.append(f"{type(err).__name__}: {err}")

    def until_struck(self, thread: threading.Thread) -> bool:
        """Wait until the fault has been met, or the work is over without it."""
        while thread.is_alive() and not self.server.mark.exists() and not self.server.ended:
            time.sleep(0.02)
        return self.server.mark.exists() or self.server.ended


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a server's folder by name; of records what may not change, of other files their hash."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".json" and name != "clock.json":
            body = json.loads(path.read_bytes())["body"]
            found[name] = {k: v for k, v in body.items() if k != "used"}
        elif path.name not in ("clock.json", "lock", "clients.json.lock"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found

# SPDX-License-Identifier: Apache-2.0
"""Chaos: one client's work while its server is killed, filled, closed, or set to another day; then what is left.

Every round begins with the same server folder, in which the client has keys, a session and a finished job. It makes new
keys, uploads them, asks, reads, and deletes what it made, through whatever happens. After that the tokens must be those
of the clear circuit, everything from before must be as it was, and nothing may have been added.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from heatfhe.client import Client
from heatfhe.errors import HeatError
from heatfhe.server import ClientBook, ModelSource
from tests.client.relay import Relay
from tests.server.chaos_world import PROMPT, TOKENS, DerivedKeyring, Round, Server, contents
from tests.server.serving import ROOT, served_circuit

DAY = 86_400


def heal(after: float = 1.0) -> Callable[[Round], Callable[[threading.Thread], None]]:
    """Once the fault has been met, wait a moment, then replace the server by a sound one."""

    def make(r: Round) -> Callable[[threading.Thread], None]:
        def act(thread: threading.Thread) -> None:
            if r.until_struck(thread):
                r.struck = True
                time.sleep(r.dice.uniform(0.0, after))
                if not r.server.ended:
                    r.server.kill()

        return act

    return make


def injected(call: str, path: str, act: str, most: int, **more: str) -> Callable[[Round], None]:
    """A round with one fault inside the server or its worker, at a call chosen by the dice."""

    def run(r: Round) -> None:
        rule = {"call": call, "path": path, "act": act, "nth": r.dice.randint(1, most), **more}
        r.server.start({"rules": [rule]})
        if r.server.ended:
            r.struck = True
            r.server.wait()
            r.server.start()
        r.during(heal()(r))

    return run


def killed(r: Round) -> None:
    r.server.start()

    def act(thread: threading.Thread) -> None:
        for _ in range(r.dice.randint(1, 3)):
            thread.join(r.dice.uniform(0.0, 2.0))
            if thread.is_alive() and not r.server.ended:
                r.server.kill()
                r.server.start()
                r.struck = True

    r.during(act)


def full_at_the_end(r: Round) -> None:
    """The record of the job's end finds no room; the process dies; the next one must still call the job done."""
    rule = {"call": "replace", "path": "job.json", "holds": '"state": "done"', "act": "ENOSPC", "nth": 1}
    r.server.start({"rules": [rule]})

    def restart(_client: Client, session: str) -> None:
        r.struck = r.server.mark.exists()
        r.server.kill()
        r.server.start()
        with httpx.Client(base_url=r.server.url, headers={"authorization": f"Bearer {r.token}"}) as http:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                (job,) = [j for j in http.get("/v1/jobs").json()["jobs"] if j["session"] == session]
                if job["state"] not in ("queued", "running"):
                    break
                time.sleep(0.1)
            if (job["state"], job["outputs"]) != ("done", TOKENS):
                r.faults.append(f"a done job is {job['state']} after the restart")

    r.work(restart)


def clock(days: int) -> Callable[[Round], None]:
    def run(r: Round) -> None:
        r.server.start()

        def act(thread: threading.Thread) -> None:
            thread.join(r.dice.uniform(0.0, 3.0))
            r.server.kill()
            r.server.start({"clock": days * DAY})
            r.struck = True

        r.during(act)

    return run


def second_server(r: Round) -> None:
    r.server.start()

    def act(_thread: threading.Thread) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = r.server.command("--port", "0", "--with-client", "alice")
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        r.struck = True
        if done.returncode != 1 or len(done.stderr.strip().splitlines()) != 1 or done.stdout:
            r.faults.append(f"the second server ended with {done.returncode}: {done.stderr[-300:]}")

    r.during(act)


def clients_at_once(r: Round) -> None:
    r.server.start()
    names = [f"guest-{i}" for i in range(4)]

    def act(_thread: threading.Thread) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

        def all_of(option: str) -> list[dict[str, Any]]:
            several = [
                subprocess.Popen(r.server.command(option, name), stdout=subprocess.PIPE, text=True, env=environment)
                for name in names
            ]
            return [json.loads(p.communicate()[0]) for p in several]

        book, added = ClientBook(r.server.folder / "clients.json"), all_of("--add-client")
        r.struck = True
        if [book.who(row["token"]) for row in added] != names:
            r.faults.append("a token that was printed is not valid")
        all_of("--remove-client")
        if any(book.who(row["token"]) for row in added):
            r.faults.append("a token that was removed is valid")

    r.during(act)


def two_keygens(r: Round) -> None:
    """Two processes make the first keys of one folder at once: one set, with its own secret."""
    r.server.start()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.server.chaos", r.server.url, str(r.home)]
    environment["HEATFHE_TOKEN"] = r.token
    both = [
        subprocess.Popen([*command, *pauses], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for pauses in (("0.1", "0.4"), ("0.3", "0.05"))  # the second writes its secret later and its keys sooner
    ]
    for process in both:
        process.stdout.readline()  # it is ready
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(r.dice.uniform(0.0, 0.05))
    codes = [p.communicate(timeout=120) and p.returncode for p in both]
    r.struck = True
    if codes != [0, 0]:
        r.faults.append(f"keygen ended with {codes}")
    with r.client() as client:
        ring = client.keyring
        hashes = [hashlib.sha256(data).hexdigest() for _, data in ring.evaluation_keys()]
        if [k.sha256 for k in client.keys.manifest().keys] != hashes:
            r.faults.append("the evaluation keys belong to another secret")
    r.work()


def cut_uploads(r: Round) -> None:
    r.server.start()
    places = sorted(r.dice.randrange(400_000) for _ in range(6))
    relay = Relay(r.server.port, places)
    r.url = relay.url
    r.during(lambda _thread: None)
    r.struck = relay.cuts > 0
    r.url = ""
    relay.close()


KINDS: dict[str, Callable[[Round], None]] = {
    "kill -9 at random moments": killed,
    "kill -9 at a rename": injected("replace", "/clients/", "kill", 16),
    "kill -9 after a rename": injected("replace", "/clients/", "kill-after", 16),
    "kill -9 at an fsync": injected("fsync", "/clients/", "kill", 30),
    "kill -9 of a worker at an fsync": injected("fsync", "/clients/", "kill", 20, **{"in": "worker"}),
    "kill -9 at the last chunk of a key": injected("read", "/partial/", "kill", 3),
    "kill -9 at the last job.json": injected("replace", "job.json", "kill", 1, holds='"state": "done"'),
    "kill -9 after the last job.json": injected("replace", "job.json", "kill-after", 1, holds='"state": "done"'),
    "kill -9 after a session.json": injected("replace", "session.json", "kill-after", 1),
    "full disk at an fsync": injected("fsync", "/clients/", "ENOSPC", 30),
    "full disk at the last job.json": full_at_the_end,
    "read-only folder": injected("change", "/clients/", "EROFS", 40),
    "clock +31 days": clock(31),
    "clock -31 days": clock(-31),
    "a second server": second_server,
    "clients added at once": clients_at_once,
    "two keygens at once": two_keygens,
    "uploads cut": cut_uploads,
}


class Chaos:
    """Rounds on copies of one server's folder."""

    def __init__(self, source: ModelSource, home: Path) -> None:
        self._source, self._home = source, home
        self.expected = served_circuit().generate(PROMPT, TOKENS).tokens
        server = Server(source, home / "first" / "server")
        server.folder.mkdir(parents=True)
        self.token = ClientBook(server.folder / "clients.json").add("alice")
        server.start()
        with Client(
            server.url, token=self.token, folder=home / "keys", simulate=True, keyring=DerivedKeyring
        ) as client:
            client.generate(PROMPT, 2, keep=True)
        server.stop()
        self._first = server.folder
        self._before = contents(server.folder)

    def round(self, kind: str, seed: int) -> Round:
        """One round: the fault, the work, a sound start, and the accounts."""
        place = self._home / f"round-{seed}"
        shutil.copytree(self._first, place / "server")
        r = Round(Server(self._source, place / "server"), self.token, place / "home", random.Random(f"{kind} {seed}"))
        try:
            KINDS[kind](r)
            if not r.server.ended:
                (r.server.kill if r.dice.random() < 0.5 else r.server.stop)()
            r.server.mark.unlink(missing_ok=True)
            self._account(r)
        except HeatError as err:
            r.faults.append(f"{type(err).__name__}: {err}")
        finally:
            if r.server.process is not None and not r.server.ended:
                r.server.kill()
        if not r.faults:
            shutil.rmtree(place)
        return r

    def _account(self, r: Round) -> None:
        if r.made != self.expected:
            r.faults.append(f"tokens {r.made} are not {self.expected}")
        r.server.start()
        r.server.stop()
        after = contents(r.server.folder)
        if lost := sorted(set(self._before) - set(after)):
            r.faults.append(f"lost: {lost}")
        if more := sorted(set(after) - set(self._before)):
            r.faults.append(f"left over: {more}")
        if changed := sorted(n for n in set(after) & set(self._before) if after[n] != self._before[n]):
            r.faults.append(f"changed: {changed}")


def run_chaos(
    source: ModelSource, home: Path, rounds: int, *, seed: int = 0, said: Callable[[str], None] = lambda _line: None
) -> dict[str, list[Round]]:
    """``rounds`` rounds, every kind in turn."""
    chaos, kinds = Chaos(source, home), list(KINDS)
    found: dict[str, list[Round]] = {}
    for i in range(rounds):
        kind = kinds[i % len(kinds)]
        r = chaos.round(kind, seed + i)
        found.setdefault(kind, []).append(r)
        said(f"{i + 1:4d}  {kind}: {'; '.join(r.faults) or ('struck' if r.struck else 'not met')}")
    return found


def table(found: dict[str, list[Round]]) -> str:
    """The rounds as Markdown."""
    rows = ["| fault | rounds | met | same tokens | nothing lost or left |", "|---|---|---|---|---|"]
    for kind, rounds in found.items():
        n = len(rounds)
        tokens = sum(not any("tokens" in f or "gave up" in f for f in r.faults) for r in rounds)
        clean, met = sum(not r.faults for r in rounds), sum(r.struck for r in rounds)
        rows.append(f"| {kind} | {n} | {met} | {tokens} | {clean} |")
    every = [r for rounds in found.values() for r in rounds]
    good = sum(not r.faults for r in every)
    rows.append(f"| all | {len(every)} | {sum(r.struck for r in every)} | | {good} |")
    return "\n".join(rows)


if __name__ == "__main__":
    with Client(
        sys.argv[1], token=os.environ["HEATFHE_TOKEN"], folder=Path(sys.argv[2]), simulate=True, keyring=DerivedKeyring
    ) as keygen:
        DerivedKeyring.pauses = (float(sys.argv[3]), float(sys.argv[4]))
        _ = keygen.config
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        keygen.keygen()

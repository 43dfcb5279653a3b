# SPDX-License-Identifier: Apache-2.0
"""The stages of ``make demo`` after set-up. What a stage leaves in out/demo is reused, or made anew if broken."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.cli.console import format_table
from heatfhe.errors import HeatError
from heatfhe.files import write_json
from heatfhe.planning import PRECISION, CostTable, plan, preset, tally
from heatfhe.wire import Limits, parse

ROOT = Path(__file__).resolve().parent.parent
PROMPT = os.environ.get("PROMPT", "Once upon a time")
TOKENS = int(os.environ.get("TOKENS", "3"))
SHARE = os.environ.get("SHARE", "1")
ENCRYPTED_POSITIONS = {"native": 6, "openfhe": 2}
"""Positions decoded under encryption for the figure of fidelity: about half a minute of two cores."""
DRIFT_WINDOWS, DRIFT_POSITIONS, DRIFT_NOISE = 8, 32, 1e-5
"""Noise of the second pair of drift curves: some hundred times a toy set's own, where circuits begin to differ."""


class Demo:
    """One run: where its files are, which engine, and the time of every stage."""

    def __init__(self, engine: str, serving: str, began: float, out: Path) -> None:
        self.out = out
        self.engine, self.serving = engine, serving
        self.params = {"native": "insecure-native-12-r40", "openfhe": "insecure-openfhe-12"}[engine]
        self.began = self._mark = began
        self.stages: list[tuple[str, float]] = []
        self.children: list[subprocess.Popen[str]] = []
        self.out.mkdir(parents=True, exist_ok=True)

    def named(self, path: Path) -> str:
        """A path as a person would type it here."""
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)

    def done(self, stage: str, words: str) -> None:
        """Announce a finished stage in one line, with its time."""
        now = time.time()
        self.stages.append((stage, now - self._mark))
        print(f"[{len(self.stages):2d}] {stage:<10s} {now - self._mark:7.1f} s  {words}", flush=True)
        self._mark = now

    def heat(self, *arguments: Any, python: str | None = None) -> Any:
        """Run the command heat in a process of its own and return its JSON."""
        command = [python or sys.executable, "-m", "heatfhe.cli", *map(str, arguments), "--json"]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": ROOT, "start_new_session": True}
        process = subprocess.Popen(command, preexec_fn=die_with_parent, **options)  # Ctrl-C reaches it through us alone
        self.children.append(process)
        try:
            text, _ = process.communicate()
        except KeyboardInterrupt:
            if arguments[0] == "train":  # it is finishing its update and saving
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=30)
            raise
        if process.returncode == 130:
            raise KeyboardInterrupt
        if process.returncode:
            raise Failed(f"heat {' '.join(map(str, arguments))} ended with {process.returncode}")
        return json.loads(text)

    def stop(self) -> None:
        """End every process this run started."""
        for process in self.children:
            if process.poll() is None:
                process.terminate()
        for process in self.children:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
        self.children.clear()


class Failed(Exception):
    """A command of the demo failed; it has said why."""


def die_with_parent() -> None:
    """On Linux, ask the kernel to end this child when the demo ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def loaded(folder: Path) -> Circuit | None:
    """A circuit that is whole, or none."""
    try:
        return Circuit.load(folder)
    except (HeatError, OSError, ValueError, KeyError):
        return None


def train(demo: Demo) -> Path:
    """A short HEAT run on the embedded model and its own text; a finished one is kept, a stopped one goes on.

    Where PyTorch is absent, the HEAT circuit that ships with the package, and the log of the run that made it.
    """
    if importlib.util.find_spec("torch") is None:
        total = iterations(Circuit.load(default_circuit("heat")))
        words = "no PyTorch here: the HEAT circuit and training log that ship with the package"
        demo.done("train", f"{words}, {total} iterations per token (TRAIN=1 make demo trains here)")
        return default_circuit("heat")
    run = demo.out / f"heat-{SHARE}"
    if loaded(run / "circuit") is not None:
        demo.done("train", f"HEAT run of before, kept in {demo.named(run)} (remove it to train again)")
        return run
    try:
        demo.heat("train", "default", "-o", run, "--share", SHARE)
    except Failed:
        if not (run / "log.jsonl").exists():
            raise
        print("the training left before does not fit any more: starting it clean", flush=True)
        shutil.rmtree(run)
        demo.heat("train", "default", "-o", run, "--share", SHARE)
    total = iterations(Circuit.load(run / "circuit"))
    demo.done("train", f"HEAT on the embedded model, {SHARE} of the recipe: {total} iterations per token")
    return run


def iterations(circuit: Circuit) -> int:
    """Solver iterations of one token."""
    return sum(circuit.calibration.iterations().values())


def prices(demo: Demo) -> CostTable:
    """This machine's own prices, measured on the engine that will run."""
    path = demo.out / f"costs-{demo.params}.json"
    try:
        table = CostTable.load(path)
    except HeatError:
        few = ["--levels", "1,5,10" if demo.engine == "native" else "1,4,8", "--periods", "8", "--repeats", "3"]
        threads = str(os.cpu_count() or 1)
        demo.heat("bench-engine", demo.engine, "--params", demo.params, *few, "--threads", threads, "--out", path,
                  python=demo.serving)  # fmt: skip
        table = CostTable.load(path)
    demo.done("measure", f"one full bootstrap takes {table.bootstrap[table.slots]:.2f} s here ({table.hardware})")
    return table


def compare(demo: Demo, circuits: list[Circuit], table: CostTable) -> list[list[Any]]:
    """Plan every circuit, print the table, write the plan of the last."""
    rows, plans = [], []
    for circuit in circuits:
        made = plan(circuit, preset(demo.params), cost=table, precision=PRECISION)
        found = tally(made, "generate", table).values()
        levels = sum(t.levels for t in found)
        rows.append(
            [circuit.name, iterations(circuit), levels, sum(t.bootstraps for t in found), sum(t.seconds for t in found)]
        )
        plans.append(made)
    plans[-1].save(demo.out / "plan.json")
    headers = ("circuit", "iterations", "levels", "bootstraps", "predicted s per token")
    print("\n" + format_table(headers, rows) + "\n", flush=True)
    ratio = rows[-1][4] / rows[0][4]
    demo.done("plan", f"{rows[-1][0]} takes {ratio:.2f} times the predicted time of {rows[0][0]}; set {demo.params}")
    return rows


def serve(demo: Demo, folder: Path) -> tuple[str, Path]:
    """A server process that never has a key to decrypt with; its folder starts empty each time."""
    home = demo.out / "server"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    threads = os.cpu_count() or 1
    command = [
        demo.serving,
        "-m",
        "heatfhe.cli",
        "serve",
        str(folder),
        "--plan",
        str(demo.out / "plan.json"),
        "--insecure",
    ]
    command += ["--name", "demo", "--folder", str(home), "--port", "0", "--with-client", "demo", "--json"]
    command += ["--option", f"threads={threads}", "--workers", "1"]
    log = (demo.out / "server.log").open("w")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, preexec_fn=die_with_parent
    )
    demo.children.append(process)
    assert process.stdout is not None
    for line in process.stdout:
        if '"url"' in line:
            facts = json.loads(line)
            token = demo.out / "token.txt"
            token.touch(mode=0o600)
            token.write_text(facts["token"])
            demo.done("serve", f"process {process.pid} at {facts['url']}: has the model, the plan and no secret key")
            return facts["url"], token
    raise Failed(f"the server did not start; {demo.named(demo.out)}/server.log says why")


def ask(demo: Demo, url: str, token: Path) -> tuple[dict[str, Any], bytes]:
    """Keys, then an encrypted prompt and its encrypted answer, in client processes of their own."""
    who = ["--server", url, "--token-file", token, "--keys", demo.out / "client", "--insecure"]
    keys = demo.heat("keygen", *who, "--upload", python=demo.serving)
    size = f"{keys['keys']} evaluation keys, {keys['bytes'] / 1e6:.1f} MB sent"
    demo.done("keys", f"{size}; the secret one stays in {demo.named(demo.out / 'client')}")
    print(f"     asking {PROMPT!r} under encryption, {TOKENS} tokens ...", flush=True)
    box: list[bytes] = []
    threading.Thread(target=peek, args=(demo.out / "server", box), daemon=True).start()
    answer = demo.heat("generate", *who, "--tokens", TOKENS, "--keep", PROMPT, python=demo.serving)
    demo.done("generate", f"{TOKENS} tokens chosen and fed back under encryption: {answer['text']!r}")
    return {**answer, "keys": keys}, box[0]


def peek(server: Path, box: list[bytes]) -> None:
    """Copy the request as it lies on the server's disk while the job runs; the server removes it afterwards."""
    while not box:
        for path in server.glob("clients/*/jobs/*/request.bin"):
            with contextlib.suppress(OSError):
                box.append(path.read_bytes())
        time.sleep(0.2)


def check(demo: Demo, circuit: Circuit, answer: dict[str, Any]) -> list[int]:
    """The same question to the plaintext circuit: the tokens must be equal."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(circuit.tokenizer["tokenizer.json"].decode())
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False).ids
    wanted = circuit.generate(prompt, TOKENS).tokens
    if wanted != answer["tokens"]:
        raise Failed(f"encrypted tokens {answer['tokens']} differ from the plaintext circuit's {wanted}")
    demo.done("check", f"equal to the plaintext circuit's tokens {wanted}")
    return list(prompt)


def look(demo: Demo, answer: dict[str, Any], seen: bytes, prompt: list[int]) -> dict[str, Any]:
    """What the server saw beside what the client saw; returned for the report."""
    job = max((demo.out / "server").glob("clients/*/jobs/*/job.json"), key=lambda p: p.stat().st_mtime)
    body = json.loads(job.read_text())["body"]
    message = parse(seen, Limits(), kinds=("job",))
    first = next(iter(message.blocks.values()))
    middle = first[len(first) // 2 : len(first) // 2 + 64]
    lines = [middle[i : i + 16].hex(" ") for i in range(0, 64, 16)]
    returned = sum(f.stat().st_size for f in job.parent.glob("output-*"))
    spent = body["ended"] - body["started"]
    server = [
        ("input", f"{len(message.blocks)} ciphertexts of {len(first):,} bytes"),
        ("prompt", f"length {len(prompt)} tokens; no words"),
        ("answer", f"{body['steps']} steps, {returned:,} bytes of ciphertext"),
        ("keys", f"{answer['keys']['bytes']:,} bytes of evaluation keys"),
        ("time", f"{spent:.1f} s for {body['units']} positions, {spent / max(1, body['units']):.1f} s each"),
    ]
    client = [
        ("prompt", repr(PROMPT)), ("as tokens", " ".join(map(str, prompt))), ("answer", repr(answer["text"])),
        ("as tokens", " ".join(map(str, answer["tokens"]))), ("waited", f"{answer['seconds']:.1f} s"),
    ]  # fmt: skip
    print("\nwhat the server saw" + " " * 44 + "what the client saw")
    for (a, b), (c, d) in zip(server, client):
        print(f"  {a:<8s} {b:<52s} {c:<10s} {d}")
    print("  64 bytes from the middle of the first ciphertext:")
    print("\n".join(f"    {line}" for line in lines) + "\n", flush=True)
    words = {"prompt": PROMPT, "answer": answer["text"]}
    timing = {"prompt": len(prompt), "tokens": body["steps"], "server": spent, "client": answer["seconds"]}
    saw = {"facts": server, "hex": "\n".join(lines)}
    return {"server": saw, "client": {"facts": client, **words}, "timing": timing}


def compare_logits(demo: Demo, folder: Path) -> None:
    """Logits by position: decoded under encryption, and both circuits under refresh noise on the clear engine."""
    options = ["--params", demo.params, "--threads", os.cpu_count() or 1]
    options += ["--costs", demo.out / f"costs-{demo.params}.json"]
    count = ENCRYPTED_POSITIONS[demo.engine]
    where = demo.out / f"fidelity-{demo.engine}"
    found = demo.heat("evaluate", folder, "--engine", demo.engine, *options, "--positions", count, "--out", where,
                      python=demo.serving)["evaluations"][0]["fidelity"]  # fmt: skip
    noises = f"{preset(demo.params).noise:g},{DRIFT_NOISE:g}"
    sizes = ["--windows", DRIFT_WINDOWS, "--positions", DRIFT_POSITIONS, "--sigma", noises, "--quiet"]
    rows = demo.heat("drift", default_circuit("calibrated"), folder, "--params", demo.params, *sizes)
    (demo.out / "drift.json").write_text(json.dumps(rows))
    words = f"{count} positions decoded under encryption: top token as in the clear at {found['top1']:.0%}"
    demo.done("fidelity", f"{words}, KL {found['kl']:.1g}; drift under refresh noise simulated")


def report(demo: Demo, run: Path, facts: dict[str, Any]) -> None:
    """Everything of this run as one page."""
    stages = [[n, round(s, 2)] for n, s in demo.stages]
    write_json(demo.out / "demo.json", "heatfhe-demo", 1, {"params": demo.params, "stages": stages, **facts})
    page = demo.out / "report.html"
    costs = demo.out / f"costs-{demo.params}.json"
    runs = [default_circuit("calibrated"), run, demo.out / f"fidelity-{demo.engine}", demo.out]
    title = "heatfhe: an encrypted answer, and what it cost"
    made = demo.heat("report", *runs, "--params", demo.params, "--costs", costs, "--title", title, "-o", page)
    demo.done("report", f"{demo.named(page)}, {made['bytes'] // 1024} KiB, opens in a browser without a network")


def main() -> int:
    """All stages in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--began", type=float, default=time.time())
    parser.add_argument("--engine", choices=("native", "openfhe"), default="native")
    parser.add_argument("--serving", default=sys.executable, help="the Python that serves and asks")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo", help="where everything is kept")
    args = parser.parse_args()
    demo = Demo(args.engine, args.serving, args.began, args.out.resolve())
    lock = (demo.out / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("demo: another make demo runs in this folder; wait for it or stop it", file=sys.stderr)
        return 1
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, signal.default_int_handler)
    words = f"insecure toy parameters ({demo.params}): they protect nothing"
    print(f"heatfhe demo on {os.cpu_count()} cores, with {words}")
    try:
        demo.done("set-up", f"{args.engine} engine, Python {sys.version.split()[0]}")
        run = train(demo)
        folder = run if (run / "circuit.json").exists() else run / "circuit"
        trained = Circuit.load(folder)
        table = prices(demo)
        rows = compare(demo, [Circuit.load(default_circuit("calibrated")), trained], table)
        url, token = serve(demo, folder)
        answer, seen = ask(demo, url, token)
        prompt = check(demo, trained, answer)
        facts = look(demo, answer, seen, prompt)
        demo.stop()
        compare_logits(demo, folder)
        report(demo, run, {"rows": rows, **facts})
    except KeyboardInterrupt:
        print("\ninterrupted; make demo goes on from here", file=sys.stderr)
        return 130
    except (Failed, HeatError) as err:
        print(f"demo: {err}", file=sys.stderr)
        return 1
    finally:
        demo.stop()
    minutes = (time.time() - demo.began) / 60
    print("try next:")
    print(f"  open {demo.named(demo.out)}/report.html")
    print("  make demo PROMPT='The little dog' TOKENS=8")
    if importlib.util.find_spec("torch") is not None:
        print("  make demo SHARE=0.5                    half the training: what does that cost?")
    print("  make demo ENGINE=openfhe               the same on OpenFHE, where it loads")
    print("  scripts/heat generate --local 'The little dog'      any command, without installing it")
    print("  docs/tutorial.md                       your own model, in five commands")
    print(f"\nthe answer that only the client could read: {PROMPT!r} goes on {answer['text']!r}")
    print(f"done in {minutes:.1f} minutes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

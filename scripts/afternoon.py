# SPDX-License-Identifier: Apache-2.0
"""A stranger's afternoon, replayed: an own model of context 256, from a fresh clone to an OpenAI client and a report.

    env=$(scripts/setup main); $env/bin/python scripts/afternoon.py --out out/afternoon

Every command is one a person would type, in a folder of their own beside the clone, and so are the slips between
them: each must be refused in one line that says what mends it, with options that exist, and must change nothing. Where
a command ends with ``next:``, that is what is typed next. No command may show a traceback. Toy parameters, which
protect nothing; on two busy cores it took 14 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "the cat"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
MODEL = """
import random, sys, torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel
who, did, where = ["cat", "dog", "bird", "girl"], ["sat", "ran", "slept", "sang"], ["mat", "tree", "road", "house"]
draw = random.Random(7)
pick = draw.choice
line = lambda: f"the {pick(who)} {pick(did)} on the {pick(where)} and the {pick(who)} saw it. "
text = "<|endoftext|>".join("".join(line() for _ in range(40)) for _ in range(120))
open("corpus.txt", "w").write(text)
bpe = ByteLevelBPETokenizer()
bpe.train_from_iterator([text], vocab_size=777, special_tokens=["<|endoftext|>"], show_progress=False)
torch.manual_seed(0)
end = bpe.token_to_id("<|endoftext|>")
model = GPT2LMHeadModel(GPT2Config(vocab_size=777, n_positions=256, n_embd=96, n_layer=3, n_head=3,
                                   bos_token_id=end, eos_token_id=end))
ids = torch.tensor(bpe.encode(text).ids)
adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
for update in range(60):
    rows = torch.stack([ids[k : k + 64] for k in torch.randint(len(ids) - 64, (8,)).tolist()])
    loss = model(input_ids=rows, labels=rows).loss
    adam.zero_grad(); loss.backward(); adam.step()
model.save_pretrained("my-gpt2")
bpe.save("my-gpt2/tokenizer.json")
print(f"{loss.item():.2f}")
"""
ANSWER = """
import json, sys, heatfhe
circuit = heatfhe.Circuit.load(sys.argv[1])
print(json.dumps(circuit.generate(circuit.encode(sys.argv[2]), int(sys.argv[3])).tokens))
"""
STREAMED = """
import sys, openai
ai = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=3600)
name = ai.models.list().data[0].id
parts = ai.completions.create(model=name, prompt=sys.argv[2], max_tokens=2, stream=True)
print("".join(part.choices[0].text for part in parts))
"""
CANCELLED = """
import sys, openai
ai = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=3600)
name = ai.models.list().data[0].id
with ai.completions.create(model=name, prompt=sys.argv[2], max_tokens=40, stream=True) as parts:
    print(next(part.choices[0].text for part in parts if part.choices[0].text))
"""


def options_named(line: str, command: str) -> list[tuple[str, str]]:
    """Options that a line names, each with the command it is of: this one, or the last one that the line writes out."""
    found = []
    for other, option in re.findall(rf"\bheat ([a-z][a-z-]+)(?= )|({OPTION.pattern})", line):
        command = other or command
        if option:
            found.append((command, option))
    return found


class Stumbled(Exception):
    """Something a stranger would have stumbled over."""


class Afternoon:
    """One replay: its folders, and every command with what it said."""

    def __init__(self, out: Path, *, clone: bool, slips: bool = True) -> None:
        if out.exists():
            shutil.rmtree(out)
        self.place, self.elsewhere, self.log = out / "owner", out / "another folder", out / "log"
        for folder in (self.place, self.elsewhere, self.log):
            folder.mkdir(parents=True)
        self.clone = self._cloned(out / "clone") if clone else ROOT
        self.began, self.slips = time.monotonic(), slips
        self.said: list[dict[str, Any]] = []
        self.stumbles: list[str] = []
        self._options: dict[str, set[str]] = {}

    @staticmethod
    def _cloned(place: Path) -> Path:
        """What is committed, and nothing else."""
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, place], check=True)
        return place

    def environment(self) -> dict[str, str]:
        """A home of the stranger's own; only what scripts/setup has made before is shared with this one."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HEATFHE_TOKEN")}
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        envs = os.environ.get("HEATFHE_ENVS") or str(cache / "heatfhe" / "envs")
        calm = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}  # as the Makefile has it
        return {**kept, "HOME": str(self.elsewhere / "home"), "HEATFHE_ENVS": envs, **calm}

    def words(self, command: str) -> list[str]:
        """A command as it is typed, with the clone's own ``heat``."""
        first, *rest = shlex.split(command)
        if first != "heat":
            raise Stumbled(f"{command}: not a command of heat")
        return [str(self.clone / "scripts" / "heat"), *rest]

    def heat(self, command: str, *, folder: Path | None = None, code: int = 0, given: str = "") -> str:
        """Run a command to its end; what it printed."""
        began = time.monotonic()
        done = subprocess.run(
            self.words(command),
            capture_output=True,
            text=True,
            input=given,
            cwd=folder or self.place,
            env=self.environment(),
            check=False,
        )
        self.note(command, done.returncode, done.stdout, done.stderr, time.monotonic() - began)
        if done.returncode != code:
            raise Stumbled(f"{command}: ended with {done.returncode}, not {code}\n{done.stderr[-2000:]}")
        return done.stdout if code == 0 else done.stderr

    def note(self, command: str, code: int | None, out: str, err: str, seconds: float) -> None:
        number = len(self.said) + 1
        (self.log / f"{number:02d}.txt").write_text(f"$ {command}\n{out}\n--- stderr, exit code {code}\n{err}\n")
        self.said.append({"command": command, "code": code, "seconds": round(seconds, 1)})
        print(f"[{number:2d}] {seconds:6.1f} s  exit {code}  {command}", flush=True)
        if "Traceback (most recent call last)" in out + err:
            raise Stumbled(f"{command}: a traceback\n{(out + err)[-3000:]}")

    def slip(self, command: str, mends: str, *, code: int = 1, folder: Path | None = None) -> None:
        """A mistake: refused in one line that names what mends it, and no option that this command does not have."""
        if not self.slips:
            return
        try:
            line = self.heat(command, code=code, folder=folder)
            told = [one for one in line.splitlines() if not one.startswith("warning: ")]
            name = command.split()[1]
            if len(told) != 1 or not told[0].startswith("heat"):
                raise Stumbled(f"{command}: a refusal is one line, not\n{line}")
            print(f"     {told[0]}", flush=True)
            if mends not in told[0] or not all(self.has(*named) for named in options_named(told[0], name)):
                raise Stumbled(f"{command}: should name {mends}, and only options it has:\n{told[0]}")
        except Stumbled as err:
            self.stumbles.append(str(err))  # the next slip may stumble too
            print(f"     STUMBLED {err}", flush=True)

    def has(self, name: str, option: str) -> bool:
        """Whether a command has an option, by its own help."""
        if name not in self._options:
            self._options[name] = set(OPTION.findall(self.heat(f"heat {name} --help")))
        return option in self._options[name]

    def python(self, code: str, *arguments: object, folder: Path | None = None) -> str:
        """A program of the stranger's own."""
        environment = {**self.environment(), "PYTHONPATH": str(self.clone / "src")}
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=folder or self.place,
            env=environment,
            check=False,
        )
        if done.returncode:
            raise Stumbled(f"a program of the stranger's own failed\n{done.stderr[-3000:]}")
        return done.stdout.strip()

    @contextlib.contextmanager
    def running(self, command: str, sign: str, *, folder: Path | None = None) -> Iterator[str]:
        """A command that goes on until it is ended; yields the address in the line that begins with ``sign``."""
        began, errors = time.monotonic(), self.log / f"running-{command.split()[1]}.txt"
        with errors.open("w") as err:
            process = subprocess.Popen(
                self.words(command),
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                cwd=folder or self.place,
                env=self.environment(),
            )
        assert process.stdout is not None
        try:
            line = next((one for one in process.stdout if one.startswith(sign)), None)
            self.note(command, None, line or "", errors.read_text(), time.monotonic() - began)
            if line is None:
                raise Stumbled(f"{command}: it ended\n{errors.read_text()[-2000:]}")
            found = re.search(r"https?://\S+", line)
            assert found is not None
            yield found.group()
        finally:
            process.terminate()
            process.wait(timeout=60)
            process.stdout.close()
            if "Traceback (most recent call last)" in errors.read_text():
                raise Stumbled(f"{command}: a traceback\n{errors.read_text()[-3000:]}")


def follow(said: str) -> str:
    """The command after ``next:``, without its remark."""
    lines = [line for line in said.splitlines() if line.startswith("next: ")]
    if not lines:
        raise Stumbled(f"no 'next:' line in\n{said[-1000:]}")
    return lines[-1].removeprefix("next: ").split("   (")[0]


def train(day: Afternoon) -> str:
    """The model owner's half hour; what ``heat train`` says to do next."""
    day.python(MODEL)
    words = "heat train my-gpt2 --text corpus.txt -o out/mine"
    shutil.copytree(day.place / "my-gpt2", day.place / "bare")
    (day.place / "bare" / "tokenizer.json").unlink()
    day.slip("heat train my-gpt2 -o out/mine", "--text")
    day.slip("heat train my-gpt2 --text corpsu.txt -o out/mine", "--text")
    day.slip(f"{words} --context 512", "--context")
    day.slip(f"{words} --recipe large", "--recipe")
    day.slip(f"{words} --share 0", "--share")
    day.slip(f"{words} --preset cold", "--preset")
    day.slip(f"{words} --lr -1", "--lr")
    day.slip(f"{words} --odd 2", "--odd")
    day.slip(f"{words} --micro-tokens 16", "--micro-tokens")
    day.slip("heat train my-gtp2 --text corpus.txt -o out/mine", "give a folder")
    day.slip("heat train bare --text corpus.txt -o out/mine", "tokenizer.json")
    if (day.place / "out").exists():
        raise Stumbled("a refused run left something behind")
    return follow(day.heat(f"{words} --share 0.01"))


def serve(day: Afternoon, planned: str) -> str:
    """The operator's slips, and the command that serves with TLS."""
    day.slip("heat plan out/mine/circuit --params native-99", "--params")
    command = follow(day.heat(f"{planned} -o mine.plan"))
    bare = command.replace(" --insecure", "")
    day.slip(bare, "--insecure")
    day.slip(f"{command} --host 0.0.0.0", "--self-signed")
    day.slip(f"{command} --tls-cert c.pem --tls-key k.pem", "--tls-cert")
    day.slip("heat serve out/mine/circuit --folder served", "--plan")
    day.slip("heat serve --folder served --hand-out for-alice", "--add-client")
    day.heat("heat serve --folder served --self-signed localhost --add-client alice --hand-out for-alice")
    for name in ("token.txt", "certificate.pem"):
        shutil.copy(day.place / "for-alice" / name, day.elsewhere)
    return f"{command} --host localhost --port 0 --self-signed localhost"


def ask(day: Afternoon, url: str) -> None:
    """A client in another folder: the slips of a first evening, then an answer equal to the circuit's own."""
    there, (own,) = day.elsewhere, json.loads(f"[{day.python(ANSWER, 'out/mine/circuit', PROMPT, 2)}]")
    asked = f'heat generate --server {url} --ca certificate.pem --token-file token.txt --insecure --tokens 2 "{PROMPT}"'
    day.slip(asked.replace(" --ca certificate.pem", ""), "--ca", code=4, folder=there)
    day.slip(asked.replace("certificate.pem", "gone.pem"), "--ca", folder=there)
    day.slip(asked.replace("token.txt", "gone.txt"), "--token-file", folder=there)
    day.slip(asked.replace(" --token-file token.txt", ""), "--token-file", folder=there)
    day.slip(asked.replace(" --insecure", ""), "--insecure", folder=there)
    day.slip(asked.replace("--tokens 2", "--tokens 2000"), "--tokens", folder=there)
    day.slip(asked.replace("--tokens 2", "--temperature 99"), "temperature 99 exceeds", folder=there)
    day.slip(asked.replace("--tokens 2", "--temperature -1"), "--temperature", folder=there)
    day.slip(asked.replace("--tokens 2", "--top-p 0.5"), "--interactive", folder=there)
    (there / "wrong.txt").write_text("heat_wrong")
    day.slip(asked.replace("token.txt", "wrong.txt"), "--token-file", code=4, folder=there)
    answer = json.loads(day.heat(f"{asked} --json", folder=there))
    if answer["tokens"] != own:
        raise Stumbled(f"the encrypted answer {answer['tokens']} is not the circuit's own {own}")
    asked = f"--server {url} --ca certificate.pem --token-file token.txt --insecure"
    left = json.loads(day.heat(f"heat sessions {asked} --json", folder=there))["sessions"]
    if left:
        raise Stumbled(f"sessions are left on the server: {left}")


def programs(day: Afternoon, url: str) -> None:
    """OpenAI's client through a proxy: streamed, then hung up on, and the next one does not wait for it."""
    there = day.elsewhere
    words = f"heat proxy --server {url} --ca certificate.pem --token-file token.txt --insecure --port 0"
    with day.running(f"{words} --cancel-on-disconnect", "OpenAI-compatible", folder=there) as endpoint:
        text = day.python(STREAMED, endpoint, PROMPT, folder=there)
        print(f"     streamed: {text!r}")
        day.python(CANCELLED, endpoint, PROMPT, folder=there)
        after = day.python(STREAMED, endpoint, PROMPT, folder=there)
        if after != text:
            raise Stumbled(f"after a request that was cancelled {after!r} was answered where {text!r} was before")
        with urllib.request.urlopen(endpoint.replace("/v1", "/health")) as health:
            if json.load(health)["status"] != "ok":
                raise Stumbled("the proxy is not well")


def look_back(day: Afternoon) -> None:
    """What is left to look at."""
    day.slip("heat report out/nowhere -o report.html", "out/nowhere")
    day.slip("heat report out/mine -o .", "report.html")
    day.slip("heat report out/mine --params native-99 -o report.html", "--params")
    day.heat("heat report out/mine mine.plan --params insecure-native-12-r40 -o report.html")
    size = (day.place / "report.html").stat().st_size
    if size < 50_000:
        raise Stumbled(f"a report of {size} bytes")
    day.heat("heat models out mine.plan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "afternoon", help="removed first, if it exists")
    parser.add_argument("--here", action="store_true", help="this checkout as it is, instead of a fresh clone of it")
    parser.add_argument("--no-slips", action="store_true", help="only what a person types who makes no mistake")
    args = parser.parse_args()
    day = Afternoon(args.out.resolve(), clone=not args.here, slips=not args.no_slips)
    try:
        with day.running(serve(day, train(day)), "serving ") as url:
            ask(day, url)
            programs(day, url)
        look_back(day)
        if day.stumbles:
            raise Stumbled("\n".join(day.stumbles))
    except Stumbled as err:
        print(f"stumbled after {(time.monotonic() - day.began) / 60:.1f} minutes: {err}", file=sys.stderr)
        return 1
    minutes = (time.monotonic() - day.began) / 60
    refused = sum(row["code"] not in (0, None) for row in day.said)
    print(f"no stumble in {len(day.said)} commands, {refused} of them slips; {minutes:.1f} minutes", flush=True)
    (args.out / "afternoon.json").write_text(json.dumps({"minutes": round(minutes, 1), "commands": day.said}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile's steps without docker, and compose.yaml's services as processes, for machines that have neither.

    env=$(scripts/setup main); $env/bin/python scripts/image.py --out DIR

Every stage gets a folder for its root. Its instructions run in the order written: COPY copies, RUN runs in a shell,
with the absolute paths that the Dockerfile makes itself moved into that root. So what is tested is what is written
there: which files are copied, what is installed into what, that nothing else is needed. The base image is this
machine's Python of that version. Then the services of compose.yaml run as the image's user (where this script may
change users), on loopback, in the order of their dependencies, with volumes as folders. An instruction this script does
not know is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOVED = re.compile(r"(?<![\w.$}/])/(src|dist|opt|data|keys|inbox)(?=[/\s\"'$:\])]|$)")
"""Absolute paths of the images that the Dockerfile makes itself; others are the base image's."""


@dataclass
class Stage:
    """One stage: its instructions, and what it leaves beside files."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def read_stages(text: str) -> tuple[dict[str, Stage], dict[str, str]]:
    """Stages by name, in order, and the arguments before the first."""
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, kind, name = rest.split()
            if kind != "AS":
                raise SystemExit(f"{line}: every stage has a name")
            stages[name] = Stage(name, base)
        elif not stages:
            if word != "ARG":
                raise SystemExit(f"{line}: only ARG comes before the first FROM")
            arguments.update([rest.split("=", 1)])
        else:
            list(stages.values())[-1].steps.append((word, rest.strip()))
    return stages, arguments


class Images:
    """Stages built below one folder. ``here`` always names the stage at work, so that paths inside stay valid."""

    def __init__(self, out: Path, *, python: str) -> None:
        self.out, self.python = out, python
        self.here = out / "root"
        self.stages, self.arguments = read_stages((ROOT / "Dockerfile").read_text())
        self._built: set[str] = set()

    def place(self, stage: str) -> Path:
        return self.out / "stages" / stage

    def build(self, name: str) -> Stage:
        """Build a stage after those it comes from."""
        stage = self.stages[name]
        if name in self._built:
            return stage
        for needed in [stage.base, *(v for w, v in stage.steps if w == "COPY" for v in re.findall(r"--from=(\S+)", v))]:
            if needed in self.stages:
                self.build(needed)
        place = self.place(name)
        if stage.base in self.stages:
            shutil.copytree(self.place(stage.base), place, symlinks=True)
            stage.folder = self.stages[stage.base].folder
            stage.environment = dict(self.stages[stage.base].environment)
        elif re.fullmatch(r"python:\$\{PYTHON\}-slim", stage.base):
            place.mkdir(parents=True)
        else:
            raise SystemExit(f"{stage.base}: this script knows python:${{PYTHON}}-slim alone")
        self.here.unlink(missing_ok=True)
        self.here.symlink_to(place)
        given: dict[str, str] = {}
        for word, rest in stage.steps:
            self._step(stage, word, rest, given)
        self._built.add(name)
        return stage

    def inside(self, path: str, stage: Stage) -> Path:
        """A path of the image, on this machine."""
        absolute = path if path.startswith("/") else f"{stage.folder}/{path}"
        return self.here / os.path.normpath(absolute).lstrip("/")

    def _step(self, stage: Stage, word: str, rest: str, given: dict[str, str]) -> None:
        print(f"{stage.name:<16}{word} {rest}"[:150], flush=True)
        if word == "WORKDIR":
            stage.folder = rest
            self.inside(rest, stage).mkdir(parents=True, exist_ok=True)
        elif word == "ARG":
            name, _, value = rest.partition("=")
            given[name] = os.environ.get(name, value)
        elif word == "ENV":
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                stage.environment[name] = value
        elif word == "COPY":
            self._copy(stage, rest)
        elif word == "RUN":
            moved = MOVED.sub(rf"{self.here}/\1", rest)
            if os.geteuid():
                moved = re.sub(r"(install -d) -o \d+ -g \d+", r"\1", moved)
            environment = {**self.clean(), **given, "PATH": f"{Path(self.python).parent}:/usr/bin:/bin"}
            folder = self.inside(stage.folder, stage)
            folder.mkdir(parents=True, exist_ok=True)
            moved = re.sub(r"^python\b", self.python, moved)
            done = subprocess.run(["bash", "-ec", moved], cwd=folder, env=environment, check=False)
            if done.returncode:
                raise SystemExit(f"{stage.name}: RUN {rest} ended with {done.returncode}")
        elif word == "USER":
            stage.user = rest
        elif word in ("ENTRYPOINT", "CMD"):
            setattr(stage, "entry" if word == "ENTRYPOINT" else "command", json.loads(rest))
        elif word not in ("VOLUME", "EXPOSE"):
            raise SystemExit(f"{stage.name}: this script does not know {word}")

    def _copy(self, stage: Stage, rest: str) -> None:
        words = rest.split()
        source = self.place(words.pop(0).removeprefix("--from=")) if words[0].startswith("--from=") else ROOT
        *names, target = words
        place = self.inside(target, stage)
        for name in names:
            found = source / name.lstrip("/")
            into = place / found.name if target.endswith("/") else place
            if found.is_dir():  # COPY copies what is in a folder
                skipped = shutil.ignore_patterns("__pycache__", "*.egg-info") if source == ROOT else None
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True, ignore=skipped)
            else:
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, into)

    @staticmethod
    def clean() -> dict[str, str]:
        """This process's environment without what an image would not have."""
        kept = ("PIP_", "SSL_", "REQUESTS_", "UV_", "LANG", "LC_", "http", "https", "HTTP", "HTTPS", "no_", "NO_")
        found = {k: v for k, v in os.environ.items() if k.startswith(kept)}
        return found | {"HOME": os.environ.get("HOME", "/")}

    def run(self, name: str, words: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start the entry of an image, as its user where this process may choose one."""
        stage = self.build(name)
        inside = self.place(name)
        environment = {k: MOVED.sub(rf"{inside}/\1", v).split(":$")[0] for k, v in stage.environment.items()}
        environment = {**environment, "PATH": f"{environment['PATH']}:/usr/bin:/bin"}
        entry = inside / "opt" / "heatfhe" / "bin"
        if stage.entry != ["heat"]:
            raise SystemExit(f"{name}: its entry is {stage.entry}, not heat")
        user: dict[str, Any] = {}
        if os.geteuid() == 0 and stage.user != "root":
            uid, _, gid = stage.user.partition(":")
            user = {"user": int(uid), "group": int(gid), "extra_groups": []}
        return subprocess.Popen(
            [str(entry / "python"), str(entry / "heat"), *words],
            cwd=inside / stage.folder.lstrip("/"),
            env=environment | {"OMP_NUM_THREADS": "1"},
            text=True,
            **user,
            **options,
        )


class Composed:
    """The services of compose.yaml as processes: a volume is a folder that is linked into place for a container."""

    def __init__(self, images: Images, out: Path) -> None:
        import yaml

        self.images, self.out = images, out
        self.body = yaml.safe_load((ROOT / "compose.yaml").read_text())
        self.services: dict[str, dict[str, Any]] = self.body["services"]
        self._image = {s: v["build"]["target"] for s, v in self.services.items()}

    def words(self, service: str, port: int) -> list[str]:
        """The command of a service, its paths in volumes, the server on loopback at a free port."""
        mounts = dict(self.mounts(service))
        found = []
        for word in map(str, self.services[service]["command"]):
            word = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word)
            word = word.replace("https://server:8443", f"https://localhost:{port}")
            for inside, folder in mounts.items():
                word = re.sub(rf"^{inside}(?=/|$)", str(folder), word)
            found.append({"0.0.0.0": "127.0.0.1"}.get(word, word))
        if service == "server":
            found += ["--port", "0"]
        if "--self-signed" in found:
            found += ["--self-signed", "localhost"]
        return found

    def mounts(self, service: str) -> list[tuple[str, Path]]:
        """Where volumes are seen in a container, and their folders here."""
        found = []
        for line in self.services[service].get("volumes", []):
            name, inside, *_ = line.split(":")
            if name not in self.body["volumes"]:
                raise SystemExit(f"compose.yaml: volume {name} of {service} is not declared")
            folder = self.out / "volumes" / name
            if not folder.exists():
                folder.mkdir(parents=True, mode=0o700)
                if os.geteuid() == 0:
                    uid, _, gid = self.images.build(self._image[service]).user.partition(":")
                    os.chown(folder, int(uid), int(gid))
            found.append((inside, folder))
        return found

    def start(self, service: str, port: int = 0) -> subprocess.Popen[str]:
        image = self._image[service]
        self.images.build(image)
        for inside, folder in self.mounts(service):  # as a mount hides what the image has there
            place = self.images.place(image) / inside.lstrip("/")
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
            place.symlink_to(folder)
        print(f"{service:<16}{' '.join(self.words(service, port))}", flush=True)
        return self.images.run(
            image, self.words(service, port), stdout=subprocess.PIPE, stderr=(self.out / f"{service}.log").open("w")
        )

    def finish(self, service: str, port: int = 0) -> str:
        process = self.start(service, port)
        said, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{service} ended with {process.returncode}: {(self.out / f'{service}.log').read_text()}")
        return said

    def up(self) -> dict[str, str]:
        """Everything in the order of its dependencies; what each client printed."""
        said: dict[str, str] = {}
        for service in ("alice-token", "bob-token"):
            self.finish(service)
        server = self.start("server")
        assert server.stdout is not None
        try:
            line = next((one for one in server.stdout if one.startswith("serving ")), None)
            if line is None:
                raise SystemExit(f"the server ended: {(self.out / 'server.log').read_text()[-2000:]}")
            port = int(re.findall(r":(\d+)", line)[-1])
            for service in ("alice", "bob"):
                said[service] = self.finish(service, port)
        finally:
            server.terminate()
            server.wait(timeout=60)
        return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="an empty folder that its user may read (default: a temporary one)")
    parser.add_argument("--build-only", action="store_true", help="leave the services of compose.yaml alone")
    args = parser.parse_args()
    began = time.monotonic()
    _, arguments = read_stages((ROOT / "Dockerfile").read_text())
    version = arguments["PYTHON"]
    usable = [p for p in (f"/usr/bin/python{version}", f"/usr/local/bin/python{version}") if Path(p).exists()]
    if not usable:
        found = subprocess.run(
            [ROOT / "scripts" / "setup", "find", version], capture_output=True, text=True, check=False
        )
        usable = [found.stdout.strip()] if found.returncode == 0 else []
    if not usable:
        print(f"no Python {version} here; the images are of that version (ARG PYTHON)", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as temporary:
        out = (args.out or Path(temporary)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        out.chmod(0o755)
        images = Images(out, python=usable[0])
        for name in ("server", "client"):
            doctor = images.run(name, ["doctor", "--json"], stdout=subprocess.PIPE)
            said, _ = doctor.communicate()
            if doctor.returncode:
                raise SystemExit(f"{name}: heat doctor ended with {doctor.returncode}: {said}")
            if (images.place(name) / "src").exists():
                raise SystemExit(f"{name}: the sources are in the image")
        if not args.build_only:
            for service, said in Composed(images, out).up().items():
                print(f"{service}: {' | '.join(said.strip().splitlines())}")
    print(f"images built and tried in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

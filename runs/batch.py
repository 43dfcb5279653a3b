# SPDX-License-Identifier: Apache-2.0
"""Many runs on one machine that is only borrowed: several at a time, in the order of a table, until the seconds end.

    python runs/batch.py runs/h200.toml --out OUT --given checkpoint=DIR train=TRAIN.npy heldout=HELDOUT.npy
        [--seconds 560] [--lanes 4] [--memory 130] [--only medium,atlas-0] [--pack KEPT] [--unpack KEPT] [--detach]
    python runs/batch.py --watch 500 --out OUT
    python runs/batch.py runs/h200.toml --list

A job of the table has a ``command``, the ``seconds`` it takes, and perhaps: ``after``, jobs that must have ended well
before; ``memory``, in GiB; ``alone = true``, since its figures are times; ``last = true``, since others would have to
make room for it in the middle: its seconds are kept free at the end; ``pieces = true``, since it stops by its own
--seconds and goes on when called again; ``makes``, the file that says it is finished and that jobs after it read;
``keep``, what is worth taking along. A row with ``each = [0, 1, 2]`` is three jobs NAME-0, NAME-1 and NAME-2, with {n}
for the number. Commands may name {python}, {folder} (OUT), {seconds} (that are left) and anything given by --given.
Every job has its own folder OUT/NAME, which holds its log. Jobs begin in the order of the table, and one that waits
until it can be alone holds back those below it.

No job is begun that would not end in time. When the seconds are used up, or at Ctrl-C, what still runs is interrupted.
With --pack, the log and everything to keep of a job are in KEPT/NAME.tar.xz from the moment it ends, so that a machine
that is taken away takes along only what was running; --unpack puts them back on the next one, where the same command
then goes on. A finished job is run again only where a job after it still needs what it made and that was too large to
keep. The last lines say what became of every job.

--detach leaves the batch running in the background, in a session of its own, and says so at once; its lines are in
OUT/batch.log, and kill -INT its number, in OUT/batch.pid, stops it. --watch waits until it has ended, or so many
seconds, shows these lines and the last one of every job's log, and exits with 3 if it has not ended. So a machine that
is given back when nobody asks for anything is never left alone, and a command that is cut off takes nothing with it.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

ENDING = 12.0  # seconds that interrupted jobs have to write what they have
MARGIN = 5.0  # seconds by which a job in pieces stops before the others are interrupted
LEAST = 30.0  # seconds that are worth beginning another piece for
LIMIT = 16 << 20  # bytes of one file that many borrowed machines give back
FINISHED, LOG = "finished", "log.txt"
LINES, NUMBER, ENDED = "batch.log", "batch.pid", "batch: ended"  # of one in the background
SHOWN = 30  # of its lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of the table."""

    name: str
    command: str
    seconds: float
    memory: float = 0.0
    after: tuple[str, ...] = ()
    alone: bool = False
    last: bool = False
    pieces: bool = False
    makes: str = ""
    keep: tuple[str, ...] = ()


def read_jobs(path: Path) -> dict[str, Job]:
    """The jobs of a table, by name and in its order. What is wrong with one is said before anything runs."""
    known = {*Job.__dataclass_fields__, "each"} - {"name"}
    jobs: dict[str, Job] = {}
    for title, row in tomllib.loads(path.read_text()).items():
        if wrong := sorted(set(row) - known):
            raise SystemExit(f"{path}: {title} has {wrong[0]!r}, which is none of {', '.join(sorted(known))}")
        if missing := [key for key in ("command", "seconds") if key not in row]:
            raise SystemExit(f"{path}: {title} has no {missing[0]!r}")
        numbers = row.pop("each", None)
        for n in [""] if numbers is None else numbers:
            made = {key: numbered(value, n) for key, value in row.items()}
            name = title if numbers is None else f"{title}-{n}"
            jobs[name] = Job(name=name, **made)
            if unknown := [a for a in jobs[name].after if a not in jobs]:
                raise SystemExit(f"{path}: {name} comes after {unknown[0]!r}, which no row above it has for a name")
    return jobs


def numbered(value: Any, n: Any) -> Any:
    """A value of a row with {n} filled in; a list becomes a tuple."""
    if isinstance(value, list):
        return tuple(numbered(part, n) for part in value)
    return value.replace("{n}", str(n)) if isinstance(value, str) else value


@dataclass
class Batch:
    """The jobs under way on this machine."""

    jobs: Mapping[str, Job]
    folder: Path
    given: Mapping[str, str]
    end: float
    lanes: int
    memory: float
    pack: Path | None = None
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)
    became: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    closing: bool = False  # only what comes last is left

    def words(self, job: Job, seconds: float) -> list[str]:
        """The command as it is started."""
        values = {
            "python": sys.executable, "folder": str(self.folder), "seconds": f"{seconds:.0f}", **self.given
        }  # fmt: skip
        try:
            return [word.format_map(values) for word in shlex.split(job.command)]
        except KeyError as err:
            raise SystemExit(f"{job.name} needs --given {err.args[0]}=...") from None

    def finished(self, job: Job) -> bool:
        """Whether it has ended well and, where a job that is still to be done reads what it made, that is here."""
        place = self.folder / job.name
        if not (place / FINISHED).exists():
            return False
        here = not job.makes or (place / job.makes).exists()
        return here or all(self.finished(j) for j in self.jobs.values() if job.name in j.after)

    def next(self) -> Job | None:
        """The first job that may begin now. One that waits to be alone holds back those below it."""
        for job in self.jobs.values():
            if job.name in self.running or job.name in self.became or self.finished(job):
                continue
            if job.last != self.closing:
                continue
            left = self.end - time.time()
            if left < (LEAST + MARGIN if job.pieces else job.seconds):
                continue
            if not all(self.finished(self.jobs[name]) for name in job.after):
                continue
            beside = [self.jobs[name] for name in self.running]
            lanes = 1 if job.alone or any(other.alone for other in beside) else self.lanes
            fits = job.memory + sum(other.memory for other in beside) <= self.memory or not beside
            if len(beside) < lanes and fits:
                return job
            if job.alone:
                return None
        return None

    def begin(self, job: Job) -> None:
        """Start it in a process group of its own, its output in its log."""
        place = self.folder / job.name
        place.mkdir(parents=True, exist_ok=True)
        words = self.words(job, self.end - time.time() - MARGIN)
        say(f"{job.name}: {shlex.join(words)}")
        with (place / LOG).open("ab") as log:
            log.write(f"$ {shlex.join(words)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=heeding,
            )  # fmt: skip
        self.running[job.name] = (process, time.time())

    def reap(self) -> None:
        """See which have ended, and put away what they made."""
        for name, (process, began) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[name]
            job, place = self.jobs[name], self.folder / name
            whole = code == 0 and (not job.makes or (place / job.makes).exists())
            rest = "to be gone on with" if code == 0 or self.interrupted else f"failed ({code})"
            word = "finished" if whole else rest
            self.became[name] = f"{word} after {time.time() - began:.0f} s"
            if whole:
                (place / FINISHED).write_text(f"{time.time() - began:.1f} s\n")
            size = "" if self.pack is None else f", {packed(job, place, self.pack)}"
            say(f"{name}: {self.became[name]}{size}")
            if word.startswith("failed"):
                say("".join(f"  | {line}\n" for line in (place / LOG).read_text(errors="replace").splitlines()[-12:]))

    def run(self) -> None:
        """Begin what can be begun until nothing is left to wait for, or the time is up; then what comes last."""
        last = [job for job in self.jobs.values() if job.last and not self.finished(job)]
        end = self.end
        if last:
            self.end -= sum(job.seconds for job in last) + ENDING
        for self.closing in (False, True):
            try:
                self.run_until_end()
            finally:
                self.stop()
            self.end = end

    def run_until_end(self) -> None:
        """Begin jobs of this part of the batch and wait for them, until its time is up."""
        while time.time() < self.end:
            self.reap()
            if (job := self.next()) is not None:
                self.begin(job)
            elif self.running:
                time.sleep(0.2)
            else:
                break

    def stop(self) -> None:
        """Interrupt what still runs, as Ctrl-C would; what does not end by itself is ended."""
        self.interrupted = bool(self.running)
        for sent in (signal.SIGINT, signal.SIGKILL):
            for process, _ in self.running.values():
                if process.poll() is None:
                    os.killpg(process.pid, sent)
            until = time.time() + ENDING
            while self.running and time.time() < until:
                self.reap()
                time.sleep(0.1)

    def said(self) -> list[str]:
        """What became of every job."""
        rows = []
        for name, job in self.jobs.items():
            waits = [a for a in job.after if not self.finished(self.jobs[a])]
            rest = f"waits for {', '.join(waits)}" if waits else f"left out: takes {job.seconds:.0f} s"
            before = "finished before" if self.finished(job) else rest
            rows.append(f"{name}: {self.became.get(name, before)}")
        return rows


def heeding() -> None:
    """Let SIGINT interrupt this process: shells have what they start in the background ignore it, children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def packed(job: Job, place: Path, target: Path) -> str:
    """Write what is to be kept of a job, and say how much it is."""
    found = {path for pattern in (*job.keep, LOG, FINISHED) for path in place.glob(pattern) if path.is_file()}
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f"{job.name}.tar.xz"
    half = archive.with_suffix(".part")
    with tarfile.open(half, "w:xz") as tar:
        for path in sorted(found):
            tar.add(path, f"{job.name}/{path.relative_to(place)}")
    half.replace(archive)
    size = archive.stat().st_size
    return f"{len(found)} files kept, {size / 2**20:.1f} MiB{' (OVER 16 MiB)' if size > LIMIT else ''}"


def say(words: str) -> None:
    print(words, flush=True)


def detach(words: Sequence[str], out: Path) -> None:
    """Start this batch in a session of its own, where it outlives the command that began it."""
    if (out / NUMBER).exists() and alive(number := int((out / NUMBER).read_text())) and not has_ended(out):
        raise SystemExit(f"{out}: batch {number} still runs there; watch it, or stop it by kill -INT {number}")
    out.mkdir(parents=True, exist_ok=True)
    with (out / LINES).open("wb") as lines:
        process = subprocess.Popen(
            [sys.executable, __file__, *words], stdin=subprocess.DEVNULL, stdout=lines, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    (out / NUMBER).write_text(f"{process.pid}\n")
    say(f"batch: {process.pid} runs on; its lines are in {out / LINES}")


def watch(out: Path, seconds: float) -> int:
    """Wait until a batch in the background has ended, or so many seconds, and show how far it and its jobs are."""
    if not (out / LINES).exists():
        raise SystemExit(f"{out}: no batch was started there with --detach")
    end, number = time.time() + seconds, int((out / NUMBER).read_text())
    while not (ended := has_ended(out)) and time.time() < end and alive(number):
        time.sleep(0.5)
    say("\n".join((out / LINES).read_text(errors="replace").splitlines()[-SHOWN:]))
    if not ended and not alive(number):
        say(f"batch: {number} is gone without a last word: start it again, it goes on")
    for path in sorted(out.glob(f"*/{LOG}")):
        words = path.read_text(errors="replace").replace("\r", "\n").split("\n")
        say(f"  {path.parent.name}: {next((w for w in reversed(words) if w.strip()), '')[:300]}")
    return 0 if ended else 3


def has_ended(out: Path) -> bool:
    """Whether the batch in the background has said its last line."""
    return (out / LINES).read_text(errors="replace").rstrip().endswith(ENDED)


def alive(number: int) -> bool:
    """Whether a process of that number exists."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, help="folder of the runs")
    parser.add_argument("--given", nargs="*", default=[], metavar="NAME=VALUE", help="what commands name")
    parser.add_argument("--seconds", type=float, default=560.0, help="for all of it (default 560)")
    parser.add_argument("--lanes", type=int, default=4, help="jobs at a time (default 4)")
    parser.add_argument("--memory", type=float, default=math.inf, help="GiB that jobs at a time may take together")
    parser.add_argument("--only", help="jobs with commas, and what they come after")
    parser.add_argument("--pack", type=Path, help="folder for archives of what is to be kept")
    parser.add_argument("--unpack", type=Path, help="folder of such archives, of another machine")
    parser.add_argument("--list", action="store_true", help="show the table and end")
    parser.add_argument("--detach", action="store_true", help="run in the background, and end at once")
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="wait so long at most for a batch in the background, and show it"
    )
    args = parser.parse_args(given)
    if args.watch is not None:
        if args.out is None:
            parser.error("give --out, the folder of the batch to watch")
        return watch(args.out, args.watch)
    if args.table is None:
        parser.error("give a table, such as runs/h200.toml")
    end, jobs = time.time() + args.seconds, read_jobs(args.table)
    if args.list:
        for job in jobs.values():
            marks = " alone" * job.alone + " last" * job.last + " pieces" * job.pieces
            marks += f" after {', '.join(job.after)}" * bool(job.after)
            say(f"{job.name}: {job.seconds:.0f} s{marks}\n    {job.command}")
        return 0
    if args.out is None:
        parser.error("give --out, the folder of the runs")
    if args.only is not None:
        jobs = chosen(jobs, args.only.split(","))
    if args.unpack is not None:
        for path in sorted(args.unpack.glob("*.tar.xz")):
            if not (args.out / path.name.removesuffix(".tar.xz")).exists():  # else it has gone on here since
                with tarfile.open(path) as tar:
                    tar.extractall(args.out, filter="data")
    if wrong := [pair for pair in args.given if "=" not in pair]:
        parser.error(f"--given takes NAME=VALUE, got {wrong[0]!r}")
    values = dict(pair.split("=", 1) for pair in args.given)
    batch = Batch(jobs, args.out.resolve(), values, end, args.lanes, args.memory, args.pack)
    for job in jobs.values():
        batch.words(job, 0.0)  # what is not given is said now
    if args.detach:
        words = sys.argv[1:] if given is None else given
        detach([word for word in words if word != "--detach"], args.out)
        return 0
    heeding()
    try:
        batch.run()
    except KeyboardInterrupt:
        say("stopped: the same command goes on")
    say("\n".join([*batch.said(), ENDED]))
    return int(any("failed" in word for word in batch.became.values()))


def chosen(jobs: Mapping[str, Job], names: Sequence[str]) -> dict[str, Job]:
    """These jobs, and those that they come after."""
    if unknown := [name for name in names if name not in jobs]:
        raise SystemExit(f"no job {unknown[0]!r}; have: {', '.join(jobs)}")
    wanted = set(names)
    for job in reversed(list(jobs.values())):
        if job.name in wanted:
            wanted.update(job.after)
    return {name: job for name, job in jobs.items() if name in wanted}


if __name__ == "__main__":
    raise SystemExit(main())

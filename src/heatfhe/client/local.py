# SPDX-License-Identifier: Apache-2.0
"""Both roles on one machine: a server in a process of its own on loopback, for as long as the client needs it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from heatfhe.client.leftovers import runs
from heatfhe.errors import ConfigError

_BUSY = "another server uses this folder"  # what heat serve says
_READY = re.compile(r"\{.*\"url\".*\}")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A running server process: its address, a token for it, and its process id."""

    url: str
    token: str
    pid: int


@contextmanager
def local_server(arguments: Sequence[str], *, seconds: float = 900.0, client: str = "local") -> Iterator[LocalServer]:
    """Start ``heat serve`` with these arguments on a free loopback port and yield it once it answers.

    It ends with this block, and with this process however that ends. Where another server uses the folder, this one
    gets a folder of its own beside it, for as long as the block lasts.
    """
    with ExitStack() as stack:
        try:
            server = stack.enter_context(_running(arguments, seconds, client))
        except ConfigError as err:
            if _BUSY not in str(err) or "--folder" not in arguments:
                raise
            where = list(arguments).index("--folder") + 1
            spare = stack.enter_context(_spare(Path(arguments[where])))
            beside = [*arguments[:where], str(spare), *arguments[where + 1 :]]
            server = stack.enter_context(_running(beside, seconds, client))
        yield server


@contextmanager
def _spare(folder: Path) -> Iterator[Path]:
    """A folder beside one that is in use. It goes with the block; those of processes that were killed go now."""
    for old in folder.parent.glob(f"{folder.name}.*.spare"):
        owner = old.name.removeprefix(f"{folder.name}.").partition(".")[0]
        if owner.isdecimal() and not runs(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    spare = folder.with_name(f"{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.spare")
    spare.mkdir(mode=0o700)
    try:
        yield spare
    finally:
        shutil.rmtree(spare, ignore_errors=True)


@contextmanager
def _running(arguments: Sequence[str], seconds: float, client: str) -> Iterator[LocalServer]:
    source = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    command = [sys.executable, "-m", "heatfhe.cli", "serve", *arguments]
    command += ["--host", "127.0.0.1", "--port", "0", "--with-client", client, "--json"]
    command += ["--ends-with", str(os.getpid())]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    errors: list[str] = []
    listener = threading.Thread(target=_keep_last, args=(process, errors), daemon=True)
    listener.start()
    try:
        yield _await_ready(process, errors, time.monotonic() + seconds)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _keep_last(process: subprocess.Popen[str], errors: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        errors.append(line.rstrip())
        del errors[:-20]


def _await_ready(process: subprocess.Popen[str], errors: list[str], end: float) -> LocalServer:
    assert process.stdout is not None
    box: list[str] = []
    reader = threading.Thread(target=_find_ready, args=(process, box), daemon=True)
    reader.start()
    while time.monotonic() < end:
        if box:
            facts = json.loads(box[0])
            return LocalServer(facts["url"], facts["token"], process.pid)
        if process.poll() is not None:
            time.sleep(0.1)
            why = next((line for line in reversed(errors) if line.strip()), "no reason given")
            raise ConfigError(f"the local server did not start: {why}")
        time.sleep(0.02)
    raise ConfigError("the local server did not answer in time; start it by hand with: heat serve")


def _find_ready(process: subprocess.Popen[str], box: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if not box and _READY.search(line):
            box.append(line)

# SPDX-License-Identifier: Apache-2.0
"""A worker process: one device, one client's key set. Orders come on stdin, what it says leaves on stdout.

It parses ciphertexts from strangers, so it runs under a memory cap and away from the process that answers requests. It
ends at once when its parent does: the pipe closes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from heatfhe.errors import HeatError, MissingKeyError, ObjectError, WireError
from heatfhe.server.faults import log_fault
from heatfhe.server.store.disk import FULL
from heatfhe.server.store.jobs import REQUEST
from heatfhe.server.store.lease import LeaseLost
from heatfhe.server.store.objects import Objects, open_objects, sha256_of
from heatfhe.server.wall import close_wall
from heatfhe.server.work.orders import Assignment, Broken, Cancel, Ended, GiveWay, Opening, Ready, Record, pack, unpack
from heatfhe.server.work.pace import Pace
from heatfhe.server.work.perform import CancelledWork, perform
from heatfhe.wire import MessageFile, Refusal

logger = logging.getLogger(__name__)
DIGEST_BYTES = 32  # SHA-256 of all that comes before it ends a message, and is what the message is known by


class _Orders:
    """Reads stdin on a thread: run orders queue up, the others act at once, the end of the pipe ends the process."""

    def __init__(self, stream: TextIO) -> None:
        self.runs: SimpleQueue[Assignment] = SimpleQueue()
        self._cancelled: set[str] = set()
        self._yielding: set[str] = set()
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def cancelled(self, job: str) -> bool:
        return job in self._cancelled

    def yielding(self, job: str) -> bool:
        return job in self._yielding

    def _read(self) -> None:
        for line in self._stream:
            order = unpack(line)
            if isinstance(order, Cancel):
                self._cancelled.add(order.job)
            elif isinstance(order, GiveWay):
                self._yielding.add(order.job)
            else:
                self._yielding.discard(order.job)  # a new turn
                self.runs.put(order)
        os._exit(0)


def cap_memory(size: int | None, device: str) -> None:
    """Limit this process's addresses; not with a GPU, whose driver reserves many times the machine's memory in them."""
    if size and not device.startswith("cuda"):
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def main() -> int:
    """Entry point: ``python -m heatfhe.server.work.worker``, told everything on stdin."""
    facts = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not speak on the facts' pipe
    close_wall()

    def emit(record: Record) -> None:
        facts.write(pack(record))
        facts.flush()

    first: Opening = unpack(sys.stdin.readline()).placed()
    cap_memory(first.memory, first.device)
    orders = _Orders(sys.stdin)
    try:
        from heatfhe.server.work.program import open_runner

        store = open_objects(first.objects) if first.objects else None
        runner = open_runner(first, store)
    except Exception as err:
        _report(err)
        emit(Broken(code=_code(err), message=_message(err)))
        return 1
    emit(Ready())
    pace = Pace()
    while True:
        task = orders.runs.get()
        try:
            with _asked(task, first, store) as message:
                whole = perform(
                    runner,
                    message,
                    task if store else task.placed(first.store),
                    emit=emit,
                    cancelled=partial(orders.cancelled, task.job),
                    yielding=partial(orders.yielding, task.job),
                    store=store,
                    pace=pace,
                )
        except LeaseLost:  # another worker has the session: whoever still listens to this one sees it end
            logger.warning("a worker lost its lease and ends")
            return 1
        except CancelledWork:
            emit(Ended(job=task.job, state="cancelled"))
        except Exception as err:  # bytes from strangers end their own job, never the process that other jobs share
            _report(err)
            emit(Ended(job=task.job, state="failed", error=_code(err), message=_message(err)))
        else:
            emit(Ended(job=task.job, state="done" if whole else "yielded"))


@contextlib.contextmanager
def _asked(task: Assignment, first: Opening, store: Objects | None) -> Iterator[MessageFile]:
    """The message of a job: the file itself, or what an object store has, checked, on this machine's disk meanwhile."""
    if store is None:
        yield MessageFile(first.store / task.job_folder / REQUEST, first.limits, kinds=("job",))
        return
    with tempfile.TemporaryDirectory() as folder:
        path, name = Path(folder) / REQUEST, f"{task.job_folder.as_posix()}/{REQUEST}"
        data = store.read(name)
        if data is None:
            raise ObjectError(task.request, name, "is lost")
        if (sha256_of(data[:-DIGEST_BYTES]), data[-DIGEST_BYTES:].hex()) != (task.request, task.request):
            raise ObjectError(task.request, name, "was torn or changed")
        path.write_bytes(data)
        del data
        yield MessageFile(path, first.limits, kinds=("job",))


def _report(err: Exception) -> None:
    """What nobody expected, on stderr for the operator; the client learns only its kind."""
    if not isinstance(err, (HeatError, MemoryError, OSError, ArithmeticError, ValueError)):
        log_fault(logger, "a worker failed", err)


def _code(err: BaseException) -> str:
    if isinstance(err, Refusal):
        return err.code
    if isinstance(err, MissingKeyError):
        return "key_mismatch"
    if isinstance(err, WireError):
        return "bad_ciphertext"
    if isinstance(err, OSError) and err.errno in FULL:
        return "disk_full"
    return "engine_failed"


def _message(err: BaseException) -> str:
    if isinstance(err, MemoryError):
        return "the worker's memory cap was reached"
    if isinstance(err, OSError):
        return f"the worker met a system error: {errno.errorcode.get(err.errno or 0, 'unknown')}"
    return str(err)[:500] if isinstance(err, HeatError) else f"the engine failed with {type(err).__name__}"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        sys.exit(main())

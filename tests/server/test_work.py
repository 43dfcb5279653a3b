# SPDX-License-Identifier: Apache-2.0
"""The work of a job, with a runner that computes something checkable: killed after any unit, it ends the same."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.errors import WireError
from heatfhe.planning import ProgramName
from heatfhe.progress import Reporter
from heatfhe.server.store.disk import folder_bytes
from heatfhe.server.store.journal import Journal
from heatfhe.server.work.orders import Assignment, Completed, Progress, Running
from heatfhe.server.work.perform import CancelledWork, perform, units
from heatfhe.wire import JobHead, JobOutput, JobRequest, Limits, MessageFile, Refusal, parse

D = "ab" * 32


class Chain:
    """A runner whose every value is a text of what made it, so that a lost or repeated step shows."""

    class engine:
        parse = dump = staticmethod(lambda data: data)
        level = staticmethod(lambda _value: 0)

    class plan:
        @staticmethod
        def program(_name: str) -> Any:
            ports = dict.fromkeys(("x", "noise"), SimpleNamespace(level=0))
            return SimpleNamespace(inputs=ports, bootstraps=lambda: [None])

    def run(
        self, program: str, inputs: Mapping[str, Sequence[bytes]], position: int, reporter: Reporter
    ) -> dict[str, list[bytes]]:
        (old,), (x,) = inputs.get("cache/k", [b""]), inputs["x"]
        cache = old + b"[%d:%s]" % (position, x)
        reporter.advance(program, kind="bootstrap")
        out = {"cache/k": [cache]}
        if program in ("generate", "sample"):
            assert (program == "sample") == ("noise" in inputs)
            token = [b"g%d" % position + b"".join(inputs.get("noise", ()))]
            out |= {"token": token, "next": token}
        return {**out, "logits": [b"logits" + cache]} if program == "logits" else out


def work_on(work: MessageFile, order: Assignment, *, emit: Any = lambda _fact: None, **more: Any) -> bool:
    """Perform a job on a chain."""
    return perform(cast(Any, Chain()), work, order, emit=emit, **{"cancelled": lambda: False, **more})


def message(
    folder: Path, inputs: int, steps: int, program: ProgramName = ProgramName.GENERATE, start: int = 0
) -> MessageFile:
    head = JobHead(
        config_id=D, plan=D, key_set=D, program=program, steps=steps, start=start if inputs else 1, inputs=inputs
    )
    extra = tuple(b"n%d" % i for i in range(head.noise))
    request = JobRequest(head=head, inputs=tuple(b"i%d" % i for i in range(inputs)), noise=extra)
    (folder / "request.bin").write_bytes(request.pack())
    return MessageFile(folder / "request.bin", Limits(), kinds=("job",))


def task(folder: Path, pending: bool = False, job: str = "cd" * 16, quota: int = 1 << 20) -> Assignment:
    for name in ("job", "session"):
        (folder / name).mkdir(exist_ok=True)
    return Assignment(
        job=job, job_folder=folder / "job", session_folder=folder / "session", pending=pending, seconds_per_unit=1.0,
        client_folder=folder, client_bytes=quota,
    )  # fmt: skip


def outputs(folder: Path) -> list[bytes]:
    found = [
        JobOutput.from_message(parse(p.read_bytes(), Limits(), kinds=("output",)))
        for p in sorted(folder.glob("output-*"))
    ]
    return [o.outputs[0] for o in found]


@settings(max_examples=25, deadline=None)
@given(inputs=st.integers(1, 3), steps=st.integers(1, 4), kills=st.lists(st.integers(0, 3), max_size=3))
def test_killed_after_any_unit_it_ends_the_same(
    tmp_path_factory: pytest.TempPathFactory, inputs: int, steps: int, kills: list[int]
) -> None:
    class Killed(BaseException):
        pass

    folder = tmp_path_factory.mktemp("work")
    order, work = task(folder), message(folder, inputs, steps)
    for life in kills:
        left = life

        def emit(fact: Progress) -> None:
            nonlocal left
            if isinstance(fact, Completed):
                left -= 1
                if left < 0:
                    raise Killed

        with contextlib.suppress(Killed):
            work_on(work, order, emit=emit)
    facts: list[Progress] = []
    work_on(work, order, emit=facts.append)
    assert outputs(folder / "job") == [b"g%d" % (inputs - 1 + k) for k in range(steps)]
    found = Journal(folder / "session").read()
    assert (found.position, found.pending, found.units) == (inputs - 1 + steps, True, inputs - 1 + steps)
    fed = [b"i%d" % k for k in range(inputs)] + [b"g%d" % (inputs - 1 + k) for k in range(steps - 1)]
    assert found.values["cache/k#0"] == b"".join(b"[%d:%s]" % (p, t) for p, t in enumerate(fed))
    assert facts[-1] == Completed(unit=inputs - 1 + steps, units=inputs - 1 + steps, outputs=steps)


@settings(deadline=None, max_examples=25)
@given(inputs=st.integers(1, 3), steps=st.integers(1, 4), turns=st.lists(st.integers(1, 4), max_size=6))
def test_a_job_that_gives_up_its_turn_after_any_unit_ends_the_same(
    tmp_path_factory: pytest.TempPathFactory, inputs: int, steps: int, turns: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("work")
    order, work = task(folder), message(folder, inputs, steps)
    whole, spent = False, 0
    for turn in turns:
        asked: list[int] = []

        def yielding(turn: int = turn, asked: list[int] = asked) -> bool:
            asked.append(1)
            return len(asked) >= turn

        whole = work_on(work, order, yielding=yielding)
        spent = min(spent + turn, inputs - 1 + steps)
        assert whole == (spent == inputs - 1 + steps)
        assert Journal(folder / "session").head().units == spent
        if whole:
            break
    assert whole or work_on(work, order)
    assert outputs(folder / "job") == [b"g%d" % (inputs - 1 + k) for k in range(steps)]


def test_a_second_job_first_takes_in_the_pending_token(tmp_path: Path) -> None:
    work_on(message(tmp_path, 1, 2), task(tmp_path))
    second = task(tmp_path, pending=True, job="ef" * 16)
    work = message(tmp_path, 1, 1, program=ProgramName.LOGITS, start=2)
    work_on(work, second)
    assert outputs(tmp_path / "job")[0] == b"logits[0:i0][1:g0][2:g1][3:i0]"
    assert not Journal(tmp_path / "session").head().pending


def test_noise_reaches_its_own_step(tmp_path: Path) -> None:
    work_on(message(tmp_path, 2, 3, ProgramName.SAMPLE), task(tmp_path))
    assert outputs(tmp_path / "job") == [b"g1n0", b"g2n1", b"g3n2"]


def test_cancel_leaves_the_last_whole_unit(tmp_path: Path) -> None:
    seen: list[Progress] = []
    with pytest.raises(CancelledWork):
        stop = {"cancelled": lambda: any(isinstance(f, Completed) and f.outputs == 2 for f in seen)}
        work_on(message(tmp_path, 1, 4), task(tmp_path), emit=seen.append, **stop)
    assert Journal(tmp_path / "session").head().position == 2
    assert len(outputs(tmp_path / "job")) == 2


def test_the_units_follow_from_public_numbers() -> None:
    generate, logits = ProgramName.GENERATE, ProgramName.LOGITS
    assert [u.program for u in units(generate, 3, 2, False)] == ["prompt", "generate", "generate", "generate"]
    assert [u.program for u in units(logits, 1, 2, True)] == ["prompt", "prompt", "logits"]
    assert [(u.program, u.source) for u in units(generate, 2, 0, True)] == [("generate", None), ("generate", None)]
    at_once = [(u.program, u.source) for u in units(generate, 2, 4, False, packed=2)]
    assert at_once == [("prefill", 0), ("prompt", 2), ("generate", 3), ("generate", None)]
    with pytest.raises(WireError):
        units(generate, 2, 0, False)


@pytest.mark.parametrize("program", [ProgramName.GENERATE, ProgramName.SAMPLE])
def test_events_keep_their_words_whether_or_not_there_is_noise(tmp_path: Path, program: ProgramName) -> None:
    seen: list[Progress] = []
    work_on(message(tmp_path, 2, 1, program), task(tmp_path), emit=seen.append)
    running = [f for f in seen if isinstance(f, Running)]
    assert [(f.kind, f.step) for f in running if f.bootstrap is None] == [("prompt", None), ("generate", 0)]
    assert [(f.kind, f.bootstrap, f.bootstraps) for f in running[1::2]] == [("prompt", 1, 1), ("generate", 1, 1)]


def test_a_full_disk_ends_the_job_and_keeps_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heatfhe.server.work.worker import _code

    order, work = task(tmp_path), message(tmp_path, 1, 3)
    seen: list[Progress] = []

    def full(_fd: int) -> None:
        if any(isinstance(f, Completed) and f.outputs == 1 for f in seen):
            raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space") as caught:
            work_on(work, order, emit=seen.append)
    assert _code(caught.value) == "disk_full"
    assert Journal(tmp_path / "session").head().position == 1
    work_on(work, order, emit=seen.append)
    assert outputs(tmp_path / "job") == [b"g0", b"g1", b"g2"]


def test_a_job_that_outgrows_the_quota_ends_and_keeps_the_session(tmp_path: Path) -> None:
    """What a job stores grows with every step; the step that does not fit is not stored, not even in part."""
    from heatfhe.server.work.worker import _code

    seen: list[Progress] = []
    work = message(tmp_path, 1, 30)
    room = folder_bytes(tmp_path) + 9000
    with pytest.raises(Refusal, match=f"of {room} are used") as caught:
        work_on(work, task(tmp_path, quota=room), emit=seen.append)
    assert _code(caught.value) == "quota"
    assert folder_bytes(tmp_path) <= room + 1000  # records of a few hundred bytes are not asked for
    done = len(outputs(tmp_path / "job"))
    assert 0 < done < 30
    assert Journal(tmp_path / "session").read().position == done
    work_on(work, task(tmp_path), emit=seen.append)
    assert len(outputs(tmp_path / "job")) == 30

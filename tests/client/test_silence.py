# SPDX-License-Identifier: Apache-2.0
"""The server learns nothing from a failed decryption, nor from where a consumer stops: its requests are the same."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from heatfhe.client import Client, Conversation, Sampler
from heatfhe.client.proxy import Generation, Line, read_ask
from heatfhe.errors import DecryptError
from heatfhe.server import ModelSource
from heatfhe.wire import Refusal
from tests.client.tap import OUTCOMES, Tap
from tests.server.serving import ROOT

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is a development dependency")
given, settings = hypothesis.given, hypothesis.settings
st = pytest.importorskip("hypothesis.strategies")

PROMPT, STEPS = [1, 2, 3], 4
MODES: dict[str, dict[str, Any]] = {
    "free": {},
    "sampled": {"sampler": Sampler(temperature=1.5)},
    "interactive": {"interactive": True},
    "nucleus": {"interactive": True, "sampler": Sampler(temperature=0.7, top_p=0.9, repetition_penalty=1.3)},
}
SEEN: dict[tuple[Any, ...], list[Any]] = {}  # what an undisturbed generation sends, by what was asked for
WAYS = ("break", "close", "forget", "error", "throw", "exhaust")


class ConsumerError(Exception):
    """What a consumer's own code raises."""


def consume(stream: Any, stop: int, way: str, held: list[Any]) -> list[int]:
    """Take ``stop`` tokens, then stop reading in one of the ways a program can."""
    made: list[int] = []
    if way == "forget":  # keeps the iterator and never asks it again
        held.append(stream)
        made += itertools.islice(stream, stop)
    elif way == "exhaust":
        made += stream
    elif stop == 0 and way == "throw":
        stream.throw(ConsumerError())
    elif stop == 0:
        stream.close()
    else:
        for token in stream:
            made.append(token)
            if len(made) == stop:
                if way == "close":
                    stream.close()
                if way == "error":
                    raise ConsumerError
                if way == "throw":
                    stream.throw(ConsumerError())
                break
    return made


def wire(
    tap: Tap,
    mode: str,
    pattern: Sequence[str],
    stop: int = STEPS,
    way: str = "exhaust",
    *,
    keep: bool = False,
    fails_after: int | None = None,
    steps: int = STEPS,
) -> tuple[list[Any], list[int], Exception | None]:
    """Requests of one generation and what the consumer had of it: tokens, and the error raised to it."""
    tap.reset(fails_after)
    held: list[Any] = []
    made: list[int] = []
    raised: Exception | None = None
    with tap.client(pattern) as client:
        try:
            made = consume(client.stream(PROMPT, steps, keep=keep, **MODES[mode]), stop, way, held)
        except (DecryptError, Refusal, ConsumerError) as err:
            raised = err
        client.sessions()  # whatever a program asks next comes after
    return list(tap.log), made, raised


@pytest.fixture(scope="module")
def tap(source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Tap:
    made = Tap(source, tmp_path_factory.mktemp("tap"))
    with made.client() as client:
        client.generate(PROMPT, 1)  # keys and bundle are there from now on
    return made


def plain(log: list[Any]) -> list[str]:
    return [f"{method} {path.split('/', 2)[2]}" for method, path, _, _ in log]


def test_what_a_free_generation_asks(tap: Tap) -> None:
    """The control: every output is fetched, and the session is deleted."""
    log, made, raised = wire(tap, "free", ())
    assert (made, raised) == ([5, 6, 7, 8], None)
    session, job = f"{1:032x}", f"{2:032x}"
    assert (
        plain(log)[-9:]
        == [
            "POST sessions",
            f"POST sessions/{session}/jobs",
            f"GET jobs/{job}/events",
            *(f"GET jobs/{job}/outputs/{k}" for k in range(STEPS)),
            f"GET jobs/{job}",
            f"DELETE sessions/{session}",
            "GET sessions",
        ][-9:]
    )
    assert tap.sessions == set()


@pytest.mark.parametrize("mode", ["free", "interactive"])
def test_every_failure_pattern_and_every_stop_look_the_same(tap: Tap, mode: str) -> None:
    """All 2^4 patterns of failures, at all five points at which a consumer can stop."""
    wanted, _, _ = wire(tap, mode, ())
    for pattern in itertools.product(("fine", "implausible"), repeat=STEPS):
        for stop in range(STEPS + 1):
            log, made, raised = wire(tap, mode, pattern, stop, "exhaust" if stop == STEPS else "break")
            assert log == wanted, (pattern, stop)
            assert tap.sessions == set()
            good = pattern.index("implausible") if "implausible" in pattern else STEPS
            assert len(made) == min(stop, good) or raised is not None
            if stop == STEPS and good < STEPS:
                assert isinstance(raised, DecryptError)


@settings(max_examples=80, deadline=None)
@given(
    mode=st.sampled_from(sorted(MODES)),
    pattern=st.lists(st.sampled_from(OUTCOMES), min_size=6, max_size=6),
    steps=st.sampled_from([1, 5]),
    stop=st.integers(0, 6),
    way=st.sampled_from(WAYS),
    keep=st.booleans(),
    fails_after=st.none() | st.sampled_from([0, 3]),
)
def test_requests_do_not_depend_on_decryptions_or_consumers(
    tap: Tap, mode: str, pattern: list[str], steps: int, stop: int, way: str, keep: bool, fails_after: int | None
) -> None:
    """Modes, kinds of failure, ways to stop, kept sessions, and servers whose jobs fail themselves."""
    options: dict[str, Any] = {"keep": keep, "fails_after": fails_after, "steps": steps}
    asked = (mode, keep, fails_after, steps)
    if asked not in SEEN:
        SEEN[asked], _, _ = wire(tap, mode, (), **options)
    log, _, _ = wire(tap, mode, pattern, stop, way, **options)
    assert log == SEEN[asked]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_tokens_before_a_failure_are_given_and_the_error_comes_when_all_is_fetched(tap: Tap, mode: str) -> None:
    tap.reset()
    made = []
    with tap.client(["fine", "fine", "raw", "fine"]) as client:
        stream = client.stream(PROMPT, STEPS, **MODES[mode])
        made += [next(stream), next(stream)]
        with pytest.raises(DecryptError, match="does not retry, because a retry would reveal the failure"):
            next(stream)
        assert tap.log[-1][0] == "DELETE"  # it was over before the consumer heard of it
    assert len(made) == 2


def test_generate_raises_after_the_session_is_deleted(tap: Tap) -> None:
    tap.reset()
    with tap.client(["fine", "nan"]) as client, pytest.raises(DecryptError):
        client.generate(PROMPT, STEPS)
    assert tap.sessions == set()
    assert sum("/outputs/" in path for _, path, _, _ in tap.log) == STEPS


def test_a_next_question_waits_for_a_stream_that_was_left(tap: Tap) -> None:
    """A program that leaves a stream and asks again does not show where it left."""
    logs = []
    for stop in range(STEPS + 1):
        tap.reset()
        with tap.client() as client:
            stream = client.stream(PROMPT, STEPS)
            for _ in range(stop):
                next(stream)
            client.generate([9], 2)
        logs.append(list(tap.log))
    assert all(log == logs[0] for log in logs)


@pytest.mark.parametrize("way", ["break", "close", "forget", "error", "throw"])
def test_the_rest_is_fetched_after_the_consumer_has_gone(tap: Tap, way: str) -> None:
    """The third output is not there before the consumer leaves."""
    wanted, _, _ = wire(tap, "free", ())
    tap.reset()
    tap.gate.clear()
    held: list[Any] = []
    with tap.client() as client:
        with contextlib.suppress(ConsumerError):
            consume(client.stream(PROMPT, STEPS), 2, way, held)
        assert sum("/outputs/" in path for _, path, _, _ in tap.log) == 2
        tap.gate.set()
        client.sessions()
    assert tap.log == wanted


def test_facts_come_to_the_consumer_and_its_errors_stay_there(tap: Tap) -> None:
    wanted, _, _ = wire(tap, "free", ())
    tap.reset()

    def facts(_event: dict[str, Any]) -> None:
        raise ConsumerError

    with tap.client() as client:
        with pytest.raises(ConsumerError):
            list(client.stream(PROMPT, STEPS, facts=facts))
        client.sessions()
    assert tap.log == wanted


@pytest.mark.parametrize("interactive", [False, True])
def test_the_proxy_shows_neither_a_failure_nor_a_program_that_hangs_up(tap: Tap, interactive: bool) -> None:
    logs = []
    body = {"prompt": "w1 w2 w3", "max_tokens": STEPS, "stop": "w6", **({"top_p": 0.5} if interactive else {})}
    for pattern in ((), ("nan",), ("fine", "fine", "raw"), ("huge",) * STEPS):
        for stop in range(3):
            tap.reset()
            with tap.client(pattern) as client:
                ask = read_ask(body, chat=False, model="tiny")
                generation = Generation(client, ask, Line())
                with contextlib.suppress(DecryptError):
                    asyncio.run(_listen(generation, stop))
                generation.thread.join()
            logs.append(list(tap.log))
            assert tap.sessions == set()
    assert all(log == logs[0] for log in logs)


async def _listen(generation: Any, pieces: int) -> None:
    """Take so many pieces and leave."""
    source = generation.pieces()
    for _ in range(pieces):
        if await anext(source, None) is None:
            return


def test_a_conversation_is_opened_by_its_first_question_and_kept_for_the_next(tap: Tap) -> None:
    tap.reset()
    with tap.client() as client:
        talk = Conversation()
        list(client.stream(PROMPT, 2, conversation=talk, keep=True))
        assert tap.sessions == {talk.session}
        assert talk.position == 4
        list(client.stream([4], 2, conversation=talk, keep=False))
        assert tap.sessions == set()


# -- sessions do not pile up -----------------------------------------------------------------------------------------

NEVER = [
    ({"prompt": [1] * 20}, "context is 16"),
    ({"prompt": [1, 64]}, "vocabulary of 64"),
    ({"prompt": [-1]}, "vocabulary of 64"),
    ({"prompt": [1 << 80]}, "vocabulary of 64"),
    ({"prompt": []}, "no token"),
    ({"prompt": "   "}, "no token"),
    ({"prompt": [1], "tokens": 0}, "at least one token"),
    ({"prompt": [1], "sampler": Sampler(top_p=0.5)}, "interactive mode"),
    ({"prompt": [1], "sampler": Sampler(temperature=2.5)}, "exceeds 2, the most this server samples at"),
]


@pytest.mark.parametrize(("ask", "said"), NEVER)
def test_what_can_never_work_is_said_before_a_session_is_opened(tap: Tap, ask: dict[str, Any], said: str) -> None:
    from heatfhe.errors import HeatError

    tap.reset()
    ask = {"tokens": 2, **ask}
    with tap.client() as client:
        for call in (client.generate, client.stream, lambda prompt, **more: client.stream(prompt, keep=True, **more)):
            with pytest.raises(HeatError, match=said):
                list(call(**ask))  # type: ignore[operator]
    assert not [row for row in tap.log if row[0] != "GET"]


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("fails_after", [0, 2])
def test_a_failed_job_leaves_no_session(tap: Tap, mode: str, fails_after: int) -> None:
    tap.reset(fails_after=0 if "interactive" in MODES[mode] else fails_after)
    with tap.client() as client:
        for keep in (False, True):  # nobody has heard the name of a session that was opened here
            with pytest.raises(Refusal, match="the job failed"):
                client.generate(PROMPT, STEPS, keep=keep, **MODES[mode])
        assert tap.sessions == set()
        talk = client.open()
        with pytest.raises(Refusal, match="the job failed"):
            client.generate(PROMPT, STEPS, conversation=talk, keep=True, **MODES[mode])
        assert tap.sessions == {talk.session}


def test_a_refused_job_leaves_no_session(tap: Tap) -> None:
    tap.reset()
    tap.refusals = {r"POST /v1/sessions/\w+/jobs": 413}
    try:
        with tap.client() as client, pytest.raises(Refusal, match="no; no"):
            client.generate(PROMPT, 2)
    finally:
        tap.refusals = {}
    assert tap.sessions == set()
    assert client.pending.latest(tap.config.config_id) is None


def leave_a_job(tap: Tap, **options: Any) -> None:
    """A client that loses its server while it reads."""
    tap.reset()
    tap.refusals = {r"GET /v1/jobs/\w+/outputs/2": 503}
    try:
        with tap.client() as client, pytest.raises(Refusal, match="no; no"):
            client.generate(PROMPT, STEPS, **options)
    finally:
        tap.refusals = {}
    assert len(tap.sessions) == 1  # a lost server may come back: its job is still ours


@pytest.mark.parametrize("keep", [False, True])
def test_resume_reads_the_whole_answer_and_deletes_the_session(tap: Tap, keep: bool) -> None:
    leave_a_job(tap, conversation=Conversation(), keep=keep)
    with tap.client(["fine", "implausible"]) as client, pytest.raises(DecryptError):
        list(client.resume())
    assert len(tap.sessions) == keep
    assert client.pending.latest(tap.config.config_id) is None


def test_a_resume_that_is_refused_for_now_may_be_tried_again(tap: Tap) -> None:
    leave_a_job(tap)
    tap.refusals = {r"POST /v1/sessions/\w+/jobs": 503}
    try:
        with tap.client() as client, pytest.raises(Refusal, match="no; no"):
            list(client.resume())
    finally:
        tap.refusals = {}
    with tap.client() as client:
        assert list(client.resume()) == [5, 6, 7, 8]
    assert tap.sessions == set()


def test_an_interactive_answer_is_not_resumed_and_its_session_goes(tap: Tap) -> None:
    from heatfhe.errors import ConfigError

    tap.reset()
    tap.refusals = {r"GET /v1/jobs/\w+/outputs/0": 503}
    try:
        with tap.client() as client, pytest.raises(Refusal, match="no; no"):
            client.generate(PROMPT, STEPS, interactive=True)
    finally:
        tap.refusals = {}
    with tap.client() as client:
        with pytest.raises(ConfigError, match="interactive answer cannot be resumed"):
            client.resume()
        with pytest.raises(ConfigError, match="no unfinished job"):
            client.resume()
    assert tap.sessions == set()


# -- how a process ends ----------------------------------------------------------------------------------------------

CHILD = """
import os, pathlib, signal, sys, time
from heatfhe.server import ModelSource
from tests.client.tap import Tap
folder, plan, circuit, way = sys.argv[1:]
source = ModelSource(name="tiny", plan=pathlib.Path(plan), circuit=pathlib.Path(circuit))
tap = Tap(source, pathlib.Path(folder))
def told(request, answer=tap.handle_request):
    print(request.method, flush=True)
    return answer(request)
tap.handle_request = told
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
def main():
    if way == "leave":
        stream = tap.client().stream([1, 2, 3], 4)
        next(stream)
        return
    with tap.client() as client:
        for _ in client.stream([1, 2, 3], 4):
            if way == "exit":
                sys.exit(3)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(600)
main()
"""


@pytest.mark.parametrize(("way", "code"), [("leave", 0), ("exit", 3)])
def test_a_process_that_ends_fetches_the_rest_first(source: ModelSource, tmp_path: Path, way: str, code: int) -> None:
    arguments = [str(tmp_path), str(source.plan), str(source.circuit), way]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.split()[-1] == "DELETE"


def test_an_interrupt_ends_the_process_at_once(source: ModelSource, tmp_path: Path) -> None:
    """Ctrl-C is the user's own choice; it is documented that the server sees it."""
    arguments = [str(tmp_path), str(source.plan), str(source.circuit), "interrupt"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode in (130, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr


def test_a_client_can_be_closed_twice(tap: Tap) -> None:
    client: Client = tap.client()
    client.generate(PROMPT, 1)
    client.close()
    client.close()

# SPDX-License-Identifier: Apache-2.0
"""Programs that hang up and programs that wait: what the proxy does for them, with a client whose tokens take time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from heatfhe.server import ModelSource
from tests.server.serving import joined, listening, served_circuit, wait_for

STEPS = 40


class SlowClient:
    """A client whose server takes 50 ms a token; counts what was asked for and what was made."""

    def __init__(self) -> None:
        price = SimpleNamespace(seconds_per_prompt_token=0.05, seconds_per_token=0.05)
        self.config = SimpleNamespace(model="slow", price=price)
        self.bundle = SimpleNamespace(encode=lambda text: [1], decode=lambda ids: "x" * len(ids), end=None)
        self.made, self.ended = 0, threading.Event()

    def stream(
        self, ids: list[int], tokens: int, *, facts: Any, stop: Callable[[], bool], **_options: Any
    ) -> Iterator[int]:
        for left in range(tokens, 0, -1):
            if stop():
                break
            facts({"eta_s": 0.05 * left})
            time.sleep(0.05)
            self.made += 1
            yield 1
        self.ended.set()


@contextmanager
def proxied(**options: bool) -> Iterator[tuple[SlowClient, str]]:
    from heatfhe.client import create_proxy

    client = SlowClient()
    with listening(create_proxy(client, **options)) as url:
        yield client, url


def body(tokens: int, *, stream: bool) -> dict[str, Any]:
    return {"model": "slow", "prompt": "a b", "max_tokens": tokens, "stream": stream}


def hang_up(url: str, stream: bool) -> None:
    """Ask for many tokens and leave after the first sign of life."""
    if stream:
        with httpx.stream("POST", f"{url}/v1/completions", json=body(STEPS, stream=True), timeout=10) as answer:
            next(answer.iter_lines())
        return
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=body(STEPS, stream=False), timeout=0.3)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cancels", [True, False])
def test_a_program_that_hangs_up_ends_its_job_only_if_that_was_wanted(stream: bool, cancels: bool) -> None:
    with proxied(cancel_on_disconnect=cancels) as (client, url):
        hang_up(url, stream)
        assert client.ended.wait(20)
        assert (client.made == STEPS) is not cancels
        after = httpx.post(f"{url}/v1/completions", json=body(2, stream=False), timeout=20).json()
        assert after["choices"][0]["text"] == "xx"


def test_who_waits_is_told_how_long() -> None:
    with proxied() as (client, url):
        first = threading.Thread(
            target=httpx.post, args=(f"{url}/v1/completions",), kwargs={"json": body(20, stream=False)}
        )
        first.start()
        wait_for(lambda: client.made)
        health = httpx.get(f"{url}/health").json()
        assert (health["status"], health["model"], health["waiting"]) == ("ok", "slow", 1)
        assert 0 < health["expected_wait_s"] <= 1.1
        with httpx.stream("POST", f"{url}/v1/completions", json=body(2, stream=True), timeout=20) as answer:
            lines = [line for line in answer.iter_lines() if line]
        first.join()
        assert lines[0].startswith(": waiting for its turn, about ")
        assert lines[-1] == "data: [DONE]"
        wait_for(lambda: httpx.get(f"{url}/health").json()["waiting"] == 0)
        assert "heatfhe_proxy_served_total 2\n" in httpx.get(f"{url}/metrics").text


def test_a_generation_that_is_stopped_is_cancelled_on_the_server(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path) as there, there.client() as client:
        asked: list[bool] = []
        talk = client.open()
        tokens = client.stream([1, 2, 3], 8, stop=lambda: bool(asked) or bool(asked.append(True)), conversation=talk)
        got = list(tokens)
        assert got == served_circuit().generate([1, 2, 3], 8).tokens[: len(got)]
        assert len(got) < 8
        assert [job["state"] for job in client._link.json("GET", "/v1/jobs")["jobs"]] == ["cancelled"]
        assert [row["session"] for row in client.sessions()] == [talk.session]  # it was opened for more than this
        list(client.stream([1, 2, 3], 8, stop=lambda: True))
        assert [row["session"] for row in client.sessions()] == [talk.session]

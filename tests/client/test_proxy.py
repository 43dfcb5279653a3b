# SPDX-License-Identifier: Apache-2.0
"""The local endpoint with the official openai client and with curl: answers, streams, and says no in OpenAI's words."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from heatfhe.cli.proxy import EXAMPLES
from heatfhe.client.openai import BadRequest, read_ask
from heatfhe.errors import ConfigError
from heatfhe.server import ModelSource
from tests.server.serving import ROOT, ServerProcess, served_circuit

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is a development dependency")
given, settings = hypothesis.given, hypothesis.settings
st = pytest.importorskip("hypothesis.strategies")
openai = pytest.importorskip("openai", reason="the openai package is a development dependency")
PROMPT = "w1 w2 w3"
NAMES = ["prompt", "messages", "content", "type", "text", "stop", "temperature", "top_p", "max_tokens", "n", "stream"]
NAMES += ["repetition_penalty", "best_of", "model", "stream_options", "include_usage", "max_completion_tokens"]
JSON_LEAF = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(10**400))


def bodies(inner: Any) -> Any:
    return st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)


TOKENS = served_circuit().generate([1, 2, 3], 8).tokens
ANSWER = " ".join(f"w{t}" for t in TOKENS)


@pytest.fixture(scope="module")
def server(source: ModelSource, home: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(source, home / "server")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def url(server: ServerProcess, home: Path) -> Iterator[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HEATFHE_TOKEN": server.token}
    command = [sys.executable, "-m", "heatfhe.cli", "proxy", "--server", server.url, "--simulate", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--keys", str(home / "keys"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["url"]
    process.terminate()
    process.wait(timeout=15)


@pytest.fixture(scope="module")
def ai(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


def test_models(ai: Any) -> None:
    assert [m.id for m in ai.models.list()] == ["tiny"]


def test_a_completion_equals_the_circuits(ai: Any) -> None:
    answer = ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=8)
    assert answer.choices[0].text == ANSWER
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 8)
    ids = ai.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=8)
    assert ids.choices[0].text == ANSWER


def test_a_streamed_completion_comes_in_pieces(ai: Any) -> None:
    chunks = list(ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == ANSWER
    assert len([c for c in chunks if c.choices[0].text]) >= 4
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_and_streamed_chat(ai: Any) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    answer = ai.chat.completions.create(model="tiny", messages=messages, max_tokens=8)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.role == "assistant"
    stream = ai.chat.completions.create(
        model="tiny", messages=messages, max_completion_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER
    assert chunks[-1].usage.total_tokens == 11


def test_stop_ends_the_text_and_not_the_job(ai: Any, server: ServerProcess) -> None:
    stop = f"w{TOKENS[3]}"
    answer = ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, stop=stop)
    assert answer.choices[0].text == ANSWER.split(stop)[0]
    assert answer.choices[0].finish_reason == "stop"
    headers = {"authorization": f"Bearer {server.token}"}
    after = ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=1)  # waits its turn: the first ran to its end
    assert after.choices[0].text == f"w{TOKENS[0]}"
    jobs = httpx.get(f"{server.url}/v1/jobs", headers=headers).json()["jobs"]
    assert not [j for j in jobs if j["state"] in ("cancelled", "failed")]


def test_sampling_options(ai: Any) -> None:
    warm = ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=1.5)
    assert len(warm.choices[0].text.split()) >= 1
    nucleus = ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=1.0, top_p=0.01)
    assert nucleus.choices[0].text == " ".join(ANSWER.split()[:4])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": PROMPT, "max_tokens": 100}, "context"),
        ({"prompt": PROMPT, "logprobs": 3}, "logprobs"),
        ({"prompt": PROMPT, "n": 2}, "one answer"),
        ({"prompt": [PROMPT, PROMPT]}, "prompt must be one text"),
        ({"prompt": PROMPT, "temperature": -1}, "temperature"),
        ({"prompt": [1, 64], "max_tokens": 1}, "vocabulary of 64"),
        ({"prompt": [1, 1 << 70], "max_tokens": 1}, "vocabulary of 64"),
    ],
)
def test_what_cannot_be_done_is_said(ai: Any, options: dict[str, object], said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        ai.completions.create(model="tiny", **options)
    assert caught.value.body["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("name", "value"),
    [("frequency_penalty", 0.5), ("presence_penalty", -1), ("logprobs", 0), ("tools", [{}]), ("suffix", "x")]
    + [("response_format", {"type": "json_object"}), ("best_word", 1), ("echo", 1), ("seed", -1), ("seed", "a")],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        read_ask({"prompt": PROMPT, name: value}, chat=False, model="tiny")
    assert caught.value.param == name
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0, "logprobs": None, "user": "me", "tools": []}
    assert read_ask({"prompt": PROMPT, **neutral}, chat=False, model="tiny").tokens == 16


def test_echo_and_seed_are_honoured(ai: Any) -> None:
    told = ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, echo=True)
    assert told.choices[0].text == PROMPT + ANSWER
    drawn = [ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=6, temperature=1.9, seed=s) for s in (3, 3)]
    assert drawn[0].choices[0].text == drawn[1].choices[0].text


def test_models_and_unknown_routes_answer_as_openai_does(ai: Any, url: str) -> None:
    assert ai.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="this proxy serves tiny") as caught:
        ai.models.retrieve("other")
    assert caught.value.body["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        ai.completions.create(model="other", prompt=PROMPT)
    with pytest.raises(openai.NotFoundError, match="no such resource or method"):
        ai.embeddings.create(model="tiny", input="w1")
    wrong = httpx.get(f"{url}/completions")
    assert wrong.status_code == 405
    assert wrong.json()["error"]["type"] == "invalid_request_error"


def test_langchain_asks_and_streams(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="LangChain's client is a development dependency")
    chat = langchain.ChatOpenAI(base_url=url, api_key="none", model="tiny", max_tokens=8, max_retries=0)
    assert chat.invoke(PROMPT).content == ANSWER
    assert "".join(part.content for part in chat.stream(PROMPT)) == ANSWER


def test_an_error_in_a_stream_is_an_error(ai: Any) -> None:
    with pytest.raises(openai.APIError, match="context"):
        list(ai.completions.create(model="tiny", prompt=PROMPT, max_tokens=100, stream=True))


def test_pages_in_a_browser_cannot_reach_it(url: str) -> None:
    body = {"model": "tiny", "prompt": PROMPT}
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert httpx.post(f"{url}/completions", json=body, headers=headers).status_code == 403
    form = httpx.post(f"{url}/completions", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert form.status_code == 400
    assert (
        httpx.post(f"{url}/completions", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("stop", v) for v in (5, 0, True, {"a": 1}, [5], [""], ["a"] * 5, [["a"]])]
    + [("temperature", v) for v in ("1", True, 10**400, [1], {})]
    + [("top_p", 10**400), ("max_tokens", 0), ("max_tokens", False), ("max_tokens", "4"), ("max_tokens", 2.0)]
    + [("prompt", v) for v in ("\ud800", "", 5, [], [[1], [2]], [True], {})],
    ids=lambda v: ascii(v)[:24],
)
def test_a_value_of_the_wrong_kind_is_a_bad_request_and_names_itself(name: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        read_ask({"prompt": PROMPT, name: value}, chat=False, model="tiny")
    assert caught.value.param == name


@settings(deadline=None)
@given(body=st.recursive(JSON_LEAF, lambda inner: st.lists(inner, max_size=3) | bodies(inner), max_leaves=8))
def test_no_body_raises_an_error_that_is_not_ours(body: object) -> None:
    for chat in (False, True):
        with contextlib.suppress(BadRequest, ConfigError):
            read_ask(body, chat=chat, model="tiny")


def printed(kind: str) -> list[str]:
    """Commands of a kind as the README, the page about the proxy and the command's own help print them."""
    pages = [page for page in (ROOT / "README.md", ROOT / "docs" / "howto" / "openai.md") if page.exists()]
    blocks = [b for page in pages for b in re.findall(r"```(?:sh|bash|python)\n(.*?)```", page.read_text(), re.DOTALL)]
    if kind == "curl":
        lines = "\n".join([*blocks, EXAMPLES]).replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip().startswith("curl") and "/v1/" in line]
    return [b for b in blocks if "openai" in b and "import" in b]


def here(text: str, url: str) -> str:
    """The same command against this test's endpoint and model."""
    text = re.sub(r"http://(127\.0\.0\.1|localhost):\d+/v1", url, text)
    return re.sub(r"([\"'])default-heat\1", r"\1tiny\1", text)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", printed("curl"))
def test_curl_lines_work_as_printed(url: str, line: str) -> None:
    done = subprocess.run(["bash", "-c", here(line, url)], capture_output=True, text=True, check=True)
    body = json.loads(done.stdout)
    assert "error" not in body, body
    assert body["object"] in ("list", "text_completion", "chat.completion")


@pytest.mark.parametrize("code", printed("python"))
def test_python_lines_work_as_printed(url: str, code: str) -> None:
    done = subprocess.run([sys.executable, "-c", here(code, url)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()

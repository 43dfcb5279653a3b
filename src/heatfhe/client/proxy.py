# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible endpoint on loopback: tokenises, encrypts, forwards, decrypts. Plain text stays on the machine.

A generation always runs for the steps it was asked for: neither a stop string, nor the model's end of text, nor an
output that cannot be read, nor a program that hangs up changes what the server sees. What comes after is dropped here.
"""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse

from heatfhe.client.client import Client
from heatfhe.client.sampling import Sampler
from heatfhe.errors import ConfigError, DataError, HeatError
from heatfhe.wire import Refusal

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
MOST_BYTES = 1 << 20
UNSUPPORTED = ("logprobs", "top_logprobs", "tools", "functions", "suffix", "logit_bias", "response_format", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request as the proxy understands it."""

    prompt: str | tuple[int, ...]
    tokens: int
    sampler: Sampler
    interactive: bool
    stop: tuple[str, ...]
    stream: bool
    usage: bool
    chat: bool


class BadRequest(Exception):
    """A request the endpoint cannot serve, with the parameter that is wrong."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        self.param, self.code = param, code
        super().__init__(message)


class Generation:
    """One generation on a thread of its own, drained to its end whether or not anyone still listens."""

    def __init__(self, client: Client, ask: Ask, lock: threading.Lock) -> None:
        self._client, self._ask, self._lock = client, ask, lock
        self._pieces: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()
        self.made: list[int] = []
        self.prompt_tokens = 0
        self.finish = "length"
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def pieces(self) -> Iterator[str]:
        """Text as it comes; raises what went wrong."""
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def _run(self) -> None:
        try:
            with self._lock:
                self._generate()
        except Exception as err:
            self._pieces.put(err)
        finally:
            self._pieces.put(None)

    def _generate(self) -> None:
        ask, bundle = self._ask, self._client.bundle
        ids = bundle.encode(ask.prompt) if isinstance(ask.prompt, str) else list(ask.prompt)
        self.prompt_tokens = len(ids)
        shown, open_ = "", True
        for token in self._client.stream(ids, ask.tokens, sampler=ask.sampler, interactive=ask.interactive):
            if not open_:
                continue  # the steps were fixed when they were asked for
            self.made.append(token)
            text = bundle.decode(self.made)
            ended = token == bundle.end
            cut = min((at for s in ask.stop if (at := text.find(s)) >= 0), default=-1)
            if cut >= 0:
                text, ended = text[:cut], True
            if not text.endswith("\ufffd") or ended:  # wait for the rest of a character
                # A stop string may be on its way: hold back as much of the end as could still become one.
                safe = text if ended else text[: len(text) - _held(text, ask.stop)]
                if len(safe) > len(shown):
                    self._pieces.put(safe[len(shown) :])
                    shown = safe
            if ended:
                self.finish, open_ = "stop", False
                self._pieces.put(None)
        if open_:
            rest = bundle.decode(self.made)[len(shown) :]
            if rest:
                self._pieces.put(rest)


def _held(text: str, stops: tuple[str, ...]) -> int:
    return max((k for s in stops for k in range(1, len(s)) if text.endswith(s[:k])), default=0)


def create_proxy(client: Client) -> Any:
    """The app. One generation runs at a time; others wait their turn."""
    app = FastAPI(title="heatfhe proxy", docs_url=None, redoc_url=None)
    lock = threading.Lock()

    async def models(request: Request) -> JSONResponse:
        if (refused := _foreign(request)) is not None:
            return refused
        row = {"id": client.config.model, "object": "model", "created": 0, "owned_by": "heatfhe"}
        return JSONResponse({"object": "list", "data": [row]})

    async def answer(request: Request, chat: bool) -> Response:
        if (refused := _foreign(request)) is not None:
            return refused
        try:
            ask = read_ask(await _json(request), chat=chat, model=client.config.model)
        except (BadRequest, ConfigError) as err:
            return _error(400, str(err), getattr(err, "param", None), getattr(err, "code", None))
        generation = Generation(client, ask, lock)
        if ask.stream:
            return StreamingResponse(_stream(client, ask, generation), media_type="text/event-stream")
        try:
            text = await run_in_threadpool(lambda: "".join(generation.pieces()))
        except Exception as err:
            return _failure(err)
        return JSONResponse(_whole(client, ask, generation, text))

    async def completions(request: Request) -> Response:
        return await answer(request, False)

    async def chat_completions(request: Request) -> Response:
        return await answer(request, True)

    app.add_api_route("/v1/models", models, methods=["GET"], response_class=Response)
    app.add_api_route("/v1/completions", completions, methods=["POST"], response_class=Response)
    app.add_api_route("/v1/chat/completions", chat_completions, methods=["POST"], response_class=Response)
    return app


def read_ask(body: Any, *, chat: bool, model: str) -> Ask:
    """Read an OpenAI-style body; what cannot be honoured is refused, never ignored in silence."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for name in UNSUPPORTED:
        if body.get(name):
            raise BadRequest(f"{name} cannot be computed under encryption here", name)
    if body.get("n", 1) != 1 or body.get("best_of", 1) not in (1, None):
        raise BadRequest("only one answer per request", "n")
    if body.get("model") not in (None, model):
        raise BadRequest(f"this proxy serves {model}", "model", "model_not_found")
    tokens = next((v for v in map(body.get, ("max_completion_tokens", "max_tokens")) if v is not None), 16)
    if type(tokens) is not int or tokens < 1:
        raise BadRequest("max_tokens must be a positive integer", "max_tokens")
    numbers = {}
    for name, default in (("temperature", 0.0), ("top_p", 1.0), ("repetition_penalty", 1.0)):
        value = body.get(name)
        if value is not None and not _is_number(value):
            raise BadRequest(f"{name} must be a number", name)
        numbers[name] = default if value is None else float(value)
    sampler = Sampler(**numbers)
    stop = body.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or len(stop) > 4 or not all(isinstance(s, str) and s for s in stop):
        raise BadRequest("stop must be up to four strings", "stop")
    options = body.get("stream_options") or {}
    return Ask(
        prompt=_chat_prompt(body.get("messages")) if chat else _prompt(body.get("prompt")),
        tokens=tokens,
        sampler=sampler,
        interactive=sampler.needs_logits,
        stop=tuple(stop),
        stream=body.get("stream") is True,
        usage=isinstance(options, dict) and options.get("include_usage") is True,
        chat=chat,
    )


def _is_number(value: Any) -> bool:
    """Whether a value is a JSON number that a float can hold."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 64)


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether a value is text that has a UTF-8 form: half of a surrogate pair has none."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and type(value[0]) is not int:
        value = value[0]
    if _is_text(value) and value:
        return value
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        return tuple(value)
    raise BadRequest("prompt must be one text, or one list of token ids", "prompt")


def _chat_prompt(messages: Any) -> str:
    """Messages as plain text: contents in order, one per line. The models served here know no roles."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a non-empty list", "messages")
    texts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            parts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
            content = "".join(p for p in parts if isinstance(p, str))
        if not _is_text(content):
            raise BadRequest("every message needs text as its content", "messages")
        texts.append(content)
    prompt = "\n".join(texts)
    if not prompt:
        raise BadRequest("the messages hold no text", "messages")
    return prompt


def _usage(generation: Generation) -> dict[str, int]:
    counts = {"prompt_tokens": generation.prompt_tokens, "completion_tokens": len(generation.made)}
    return {**counts, "total_tokens": sum(counts.values())}


def _whole(client: Client, ask: Ask, generation: Generation, text: str) -> dict[str, Any]:
    said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
    choice = {"index": 0, "finish_reason": generation.finish, "logprobs": None, **said}
    return {**_frame(client, ask, stream=False), "choices": [choice], "usage": _usage(generation)}


def _frame(client: Client, ask: Ask, *, stream: bool) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if stream else "chat.completion") if ask.chat else "text_completion"
    prefix = "chatcmpl" if ask.chat else "cmpl"
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": client.config.model,
    }


def _stream(client: Client, ask: Ask, generation: Generation) -> Iterator[bytes]:
    frame = _frame(client, ask, stream=True)

    def chunk(text: str | None, finish: str | None = None, *, first: bool = False) -> bytes:
        if ask.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            said: dict[str, Any] = {"delta": delta if text is None else {**delta, "content": text}}
        else:
            said = {"text": text or ""}
        choice = {"index": 0, "finish_reason": finish, "logprobs": None, **said}
        return _data({**frame, "choices": [choice]})

    if ask.chat:
        yield chunk("", first=True)
    try:
        for piece in generation.pieces():
            yield chunk(piece)
    except Exception as err:
        yield _data(_error_body(_status(err), _reason(err)))
        return
    yield chunk(None, generation.finish)
    if ask.usage:
        yield _data({**frame, "choices": [], "usage": _usage(generation)})
    yield b"data: [DONE]\n\n"


def _data(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _foreign(request: Request) -> JSONResponse | None:
    """Refuse pages in a browser that reach for this port under another name."""
    host = request.headers.get("host", "").rsplit(":", 1)[0]
    if host not in HOSTS or request.headers.get("origin", "").rsplit(":", 1)[0] not in (
        "",
        "http://127.0.0.1",
        "http://localhost",
    ):
        return _error(403, "this endpoint answers programs on this machine only")
    return None


async def _json(request: Request) -> Any:
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise BadRequest("send Content-Type: application/json")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            raise BadRequest(f"the body exceeds {MOST_BYTES} bytes")
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as err:
        raise BadRequest("the body is not JSON") from err


def _status(err: Exception) -> int:
    if isinstance(err, Refusal):
        return err.status if err.status in (401, 429, 503) else 502
    return 400 if isinstance(err, (ConfigError, DataError)) else 502 if isinstance(err, HeatError) else 500


def _reason(err: Exception) -> str:
    return str(err) if isinstance(err, HeatError) else "the proxy failed"


def _failure(err: Exception) -> JSONResponse:
    code = "context_length_exceeded" if "context" in str(err) and isinstance(err, ConfigError) else None
    return _error(_status(err), _reason(err), None, code)


def _error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _error(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    return JSONResponse(_error_body(status, message, param, code), status_code=status)

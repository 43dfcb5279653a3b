# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible endpoint on loopback: tokenises, encrypts, forwards, decrypts. Plain text stays on the machine.

A generation always runs for the steps it was asked for: neither a stop string, nor the model's end of text, nor an
output that cannot be read, nor a program that hangs up changes what the server sees. What comes after is dropped here.
With ``cancel_on_disconnect`` a program that hangs up ends its job: the server sees when, and that may depend on words.
"""

from __future__ import annotations

import asyncio
import json
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from heatfhe.client.client import Client
from heatfhe.client.openai import Ask, BadRequest, error_body, failure_body, read_ask, status_of

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
MOST_BYTES = 1 << 20
_POLL, _SAY_WAIT = 0.02, 5.0


class Generation:
    """One generation on a thread of its own, drained to its end whether or not anyone still listens."""

    def __init__(self, client: Client, ask: Ask, line: Line) -> None:
        self._client, self._ask, self._line = client, ask, line
        self._pieces: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()
        self.made: list[int] = []
        self.prompt_tokens = 0
        self.finish = "length"
        self.over, self.cancelled = False, False
        price, words = client.config.price, ask.prompt
        guess = len(words.split()) if isinstance(words, str) else len(words)
        self._left, self._since = guess * price.seconds_per_prompt_token + ask.tokens * price.seconds_per_token, 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        line.join(self)
        self.thread.start()

    def left(self) -> float:
        """Seconds until it is over, by the server's last word or, before it begins, by the plan's price."""
        return max(0.0, self._left - (time.monotonic() - self._since if self._since else 0.0))

    def cancel(self) -> None:
        """End it soon: what the server has not begun is not asked for."""
        self.cancelled = True

    async def pieces(self) -> AsyncIterator[str | float]:
        """Text as it comes, and now and then the seconds to wait for a turn; raises what went wrong."""
        said = 0.0
        while True:
            try:
                piece = self._pieces.get_nowait()
            except queue.Empty:
                if (ahead := self._line.ahead(self)) is not None and time.monotonic() - said > _SAY_WAIT:
                    said = time.monotonic()
                    yield ahead
                await asyncio.sleep(_POLL)
                continue
            if piece is None:
                return
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def _run(self) -> None:
        try:
            with self._line.turn:
                if not self.cancelled:
                    self._since = time.monotonic()
                    self._generate()
        except Exception as err:
            self._pieces.put(err)
        finally:
            self.over = True
            self._line.leave(self)
            self._pieces.put(None)

    def _note(self, event: dict[str, Any]) -> None:
        if isinstance(eta := event.get("eta_s"), (int, float)):
            self._left, self._since = float(eta), time.monotonic()

    def _generate(self) -> None:
        ask, bundle = self._ask, self._client.bundle
        ids = bundle.encode(ask.prompt) if isinstance(ask.prompt, str) else list(ask.prompt)
        self.prompt_tokens = len(ids)
        if ask.echo:
            self._pieces.put(ask.prompt if isinstance(ask.prompt, str) else bundle.decode(ids))
        shown, open_ = "", True
        rng = None if ask.seed is None else np.random.default_rng(ask.seed)  # of the choice, not of the encryption
        options: dict[str, Any] = {"sampler": ask.sampler, "interactive": ask.interactive, "rng": rng}
        for token in self._client.stream(ids, ask.tokens, facts=self._note, stop=lambda: self.cancelled, **options):
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


class Line:
    """Who waits for the server: one generation runs at a time."""

    def __init__(self) -> None:
        self.turn, self._lock = threading.Lock(), threading.Lock()
        self._waiting: list[Generation] = []
        self.served = 0

    def join(self, one: Generation) -> None:
        with self._lock:
            self._waiting.append(one)

    def leave(self, one: Generation) -> None:
        with self._lock:
            self._waiting.remove(one)
            self.served += 1

    def ahead(self, one: Generation) -> float | None:
        """Expected seconds until a generation's turn comes; None for the first."""
        with self._lock:
            before = self._waiting[: self._waiting.index(one)] if one in self._waiting else []
        return sum(g.left() for g in before) if before else None

    def facts(self) -> dict[str, Any]:
        """How many wait or run, for how long by expectation, and how many were served."""
        with self._lock:
            waiting = list(self._waiting)
        seconds = round(sum(g.left() for g in waiting), 1)
        return {"waiting": len(waiting), "expected_wait_s": seconds, "served": self.served}


def _held(text: str, stops: tuple[str, ...]) -> int:
    return max((k for s in stops for k in range(1, len(s)) if text.endswith(s[:k])), default=0)


def create_proxy(client: Client, *, cancel_on_disconnect: bool = False) -> Any:
    """The app. One generation runs at a time; others wait their turn and are told how long by expectation."""
    app = FastAPI(title="heatfhe proxy", docs_url=None, redoc_url=None, openapi_url=None)
    line = Line()

    async def refused(_request: Request, err: Exception) -> Response:
        assert isinstance(err, HTTPException)
        return _error(err.status_code, f"no such resource or method: {str(err.detail).lower()}", "unknown_url")

    async def models(request: Request, name: str | None = None) -> Response:
        if (foreign := _foreign(request)) is not None:
            return foreign
        row = {"id": client.config.model, "object": "model", "created": 0, "owned_by": "heatfhe"}
        if name is None:
            return JSONResponse({"object": "list", "data": [row]})
        if name != row["id"]:
            return _error(404, f"this proxy serves {row['id']}", "model_not_found")
        return JSONResponse(row)

    async def health(request: Request) -> Response:
        return _foreign(request) or JSONResponse({"status": "ok", "model": client.config.model, **line.facts()})

    async def metrics(request: Request) -> Response:
        rows = {k if k != "served" else "served_total": v for k, v in line.facts().items()}
        text = "".join(f"heatfhe_proxy_{name} {value}\n" for name, value in rows.items())
        return _foreign(request) or PlainTextResponse(text)

    async def answer(request: Request, chat: bool) -> Response:
        if (foreign := _foreign(request)) is not None:
            return foreign
        try:
            ask = read_ask(await _json(request), chat=chat, model=client.config.model)
            generation = Generation(client, ask, line)
            if ask.stream:
                body = _stream(client, ask, generation, cancel_on_disconnect)
                return StreamingResponse(body, media_type="text/event-stream")
            text = ""
            watch = asyncio.create_task(_watch(request, generation)) if cancel_on_disconnect else None
            async for piece in generation.pieces():
                text += piece if isinstance(piece, str) else ""
            if watch is not None:
                watch.cancel()
        except Exception as err:
            return JSONResponse(failure_body(err), status_code=status_of(err))
        return JSONResponse(_whole(client, ask, generation, text))

    async def completions(request: Request) -> Response:
        return await answer(request, False)

    async def chat_completions(request: Request) -> Response:
        return await answer(request, True)

    app.add_exception_handler(HTTPException, refused)
    for path, route, method in (
        ("/v1/models", models, "GET"),
        ("/v1/models/{name}", models, "GET"),
        ("/v1/completions", completions, "POST"),
        ("/v1/chat/completions", chat_completions, "POST"),
        ("/health", health, "GET"),
        ("/metrics", metrics, "GET"),
    ):
        app.add_api_route(path, route, methods=[method], response_class=Response)
    return app


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


async def _watch(request: Request, generation: Generation) -> None:
    while not generation.over:
        if await request.is_disconnected():
            generation.cancel()
            return
        await asyncio.sleep(_POLL)


async def _stream(client: Client, ask: Ask, generation: Generation, cancels: bool) -> AsyncIterator[bytes]:
    frame = _frame(client, ask, stream=True)

    def chunk(text: str | None, finish: str | None = None, *, first: bool = False) -> bytes:
        if ask.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            said: dict[str, Any] = {"delta": delta if text is None else {**delta, "content": text}}
        else:
            said = {"text": text or ""}
        choice = {"index": 0, "finish_reason": finish, "logprobs": None, **said}
        return _data({**frame, "choices": [choice]})

    try:
        if ask.chat:
            yield chunk("", first=True)
        async for piece in generation.pieces():
            if isinstance(piece, str):
                yield chunk(piece)
            else:  # a comment of the event stream: programs skip it, people and logs see it
                yield f": waiting for its turn, about {piece:.0f} s\n\n".encode()
        yield chunk(None, generation.finish)
        if ask.usage:
            yield _data({**frame, "choices": [], "usage": _usage(generation)})
        yield b"data: [DONE]\n\n"
    except Exception as err:
        yield _data(failure_body(err))
    finally:
        if cancels and not generation.over:  # whoever listened is gone
            generation.cancel()


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


def _error(status: int, message: str, code: str | None = None) -> JSONResponse:
    return JSONResponse(error_body(status, message, None, code), status_code=status)

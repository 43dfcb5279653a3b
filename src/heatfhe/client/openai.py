# SPDX-License-Identifier: Apache-2.0
"""OpenAI's words: what a request may ask for, and how answers and errors look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from heatfhe.client.sampling import Sampler
from heatfhe.errors import ConfigError, DataError, HeatError
from heatfhe.wire import Refusal

HONOURED = frozenset(
    {"model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "stream"}
    | {"repetition_penalty", "n", "best_of", "stream_options", "echo", "seed"}
)
NO_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""Fields that are about the caller's account, and change no answer."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logprobs": (False,), "top_logprobs": (0,), "suffix": ("",),
    "tools": ([],), "functions": ([],), "logit_bias": ({},), "response_format": ({"type": "text"},),
    "modalities": (["text"],), "parallel_tool_calls": (True, False),
}  # fmt: skip
"""Fields that nothing here can compute, and the values at which they ask for nothing."""


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
    echo: bool
    seed: int | None
    chat: bool


class BadRequest(Exception):
    """A request the endpoint cannot serve, with the parameter that is wrong."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        self.param, self.code = param, code
        super().__init__(message)


def read_ask(body: Any, *, chat: bool, model: str) -> Ask:
    """Read an OpenAI-style body; what cannot be honoured is refused, never ignored in silence."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for name, value in body.items():
        if value is None or name in HONOURED or name in NO_EFFECT:
            continue
        if name not in NEUTRAL:
            raise BadRequest(f"{str(name)[:64]} is not known here; leave it out", str(name)[:64])
        if not any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in NEUTRAL[name]):
            raise BadRequest(f"{name} cannot be computed under encryption here; leave it out", name)
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
    echo, seed = body.get("echo"), body.get("seed")
    if echo is not None and (type(echo) is not bool or chat):
        raise BadRequest("echo is true or false, and of /v1/completions alone", "echo")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
        raise BadRequest("seed must be a whole number of at least 0", "seed")
    return Ask(
        prompt=_chat_prompt(body.get("messages")) if chat else _prompt(body.get("prompt")),
        tokens=tokens,
        sampler=sampler,
        interactive=sampler.needs_logits,
        stop=tuple(stop),
        stream=body.get("stream") is True,
        usage=isinstance(options, dict) and options.get("include_usage") is True,
        chat=chat,
        echo=echo is True,
        seed=seed,
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


def status_of(err: Exception) -> int:
    """The HTTP status that a failure has."""
    if isinstance(err, BadRequest):
        return 404 if err.code == "model_not_found" else 400
    if isinstance(err, Refusal):
        return err.status if err.status in (401, 429, 503) else 502
    return 400 if isinstance(err, (ConfigError, DataError)) else 502 if isinstance(err, HeatError) else 500


def failure_body(err: Exception) -> dict[str, Any]:
    """A failure in OpenAI's shape; what is not an error of ours is not told."""
    known = isinstance(err, (HeatError, BadRequest))
    long = isinstance(err, ConfigError) and "context" in str(err)
    code = "context_length_exceeded" if long else getattr(err, "code", None) if isinstance(err, BadRequest) else None
    return error_body(status_of(err), str(err) if known else "the proxy failed", getattr(err, "param", None), code)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}

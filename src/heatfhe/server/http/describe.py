# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI description's parts: JSON schemas of bodies and answers, and the refusals a route may give."""

from __future__ import annotations

from typing import Any

from heatfhe.wire import MEDIA_TYPE, MODES, STATUS

DIGEST: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
IDENTIFIER: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
NAME: dict[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,60}$"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
NUMBER: dict[str, Any] = {"type": "number", "minimum": 0}
MESSAGE = MEDIA_TYPE.split(";")[0]


def record(properties: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """An object with exactly these fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": not strict,
    }


def listing(name: str, item: dict[str, Any], longest: int | None = None) -> dict[str, Any]:
    """An object with one array."""
    array: dict[str, Any] = {"type": "array", "items": item}
    if longest is not None:
        array["maxItems"] = longest
    return record({name: array})


ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "remedy"],
            "properties": {
                "code": {"type": "string", "enum": sorted(STATUS)},
                "message": {"type": "string"},
                "remedy": {"type": "string"},
                "facts": {"type": "object"},
            },
        }
    },
}
KEY_ENTRY = record({"name": NAME, "size": {"type": "integer", "minimum": 1, "maximum": 1 << 34}, "sha256": DIGEST})
KEY_MANIFEST = record(
    {"config_id": DIGEST, "keys": {"type": "array", "items": KEY_ENTRY, "minItems": 1, "maxItems": 4096}}
)
KEY_STATUS = record(
    {
        "key_set": DIGEST,
        "config_id": DIGEST,
        "size": COUNT,
        "created": COUNT,
        "used": COUNT,
        "complete": {"type": "boolean"},
        "missing": {"type": "array", "items": record({"sha256": DIGEST, "have": COUNT})},
    }
)
SESSION_REQUEST = record({"config_id": DIGEST, "key_set": DIGEST})
SESSION = record(
    {
        "session": IDENTIFIER,
        "model": {"type": "string"},
        "config_id": DIGEST,
        "key_set": DIGEST,
        "created": COUNT,
        "used": COUNT,
        "position": COUNT,
        "pending": {"type": "boolean"},
        "size": COUNT,
    }
)
JOB = record(
    {
        "job": IDENTIFIER,
        "session": IDENTIFIER,
        "mode": {"type": "string", "enum": sorted(set(MODES.values()))},
        "steps": COUNT,
        "inputs": COUNT,
        "units": COUNT,
        "state": {"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]},
        "done": COUNT,
        "outputs": COUNT,
        "created": NUMBER,
        "started": NUMBER,
        "error": {"type": "string"},
        "message": {"type": "string"},
    }
)
CONFIG = record(
    {
        "config_id": DIGEST,
        "config": {"type": "object"},
        "price": {"type": "object"},
        "limits": {"type": "object"},
        "api_versions": {"type": "array", "items": {"type": "integer"}},
    }
)
MODEL_ROW = record({"model": {"type": "string"}, "config_id": DIGEST})
HAVE = record({"have": COUNT})
HEALTH = record({"status": {"type": "string"}})


def answers(
    schema: dict[str, Any] | None, *refusals: int, status: int = 200, media: str = "application/json"
) -> dict[int | str, Any]:
    """The responses of a route: one success, and every refusal with the common body."""
    content = {} if schema is None else {"content": {media: {"schema": schema}}}
    out: dict[int | str, Any] = {status: {"description": "done", **content}}
    for code in (400, 401, 408, 413, 415, 429, *refusals):
        out[code] = {"description": "refused", "content": {"application/json": {"schema": ERROR}}}
    return out


def body(schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    """A required request body."""
    return {"requestBody": {"required": True, "content": {media: {"schema": schema}}}}


BINARY: dict[str, Any] = {"type": "string", "format": "binary"}
EVENTS: dict[str, Any] = {"type": "string"}

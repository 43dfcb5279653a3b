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
TEXT: dict[str, Any] = {"type": "string"}
OBJECT: dict[str, Any] = {"type": "object"}
MESSAGE = MEDIA_TYPE.split(";")[0]


def record(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these fields."""
    required = sorted(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


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
                "message": TEXT,
                "remedy": TEXT,
                "facts": OBJECT,
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
        **dict.fromkeys(("key_set", "config_id"), DIGEST),
        **dict.fromkeys(("size", "created", "used"), COUNT),
        "complete": {"type": "boolean"},
        "missing": {"type": "array", "items": record({"sha256": DIGEST, "have": COUNT})},
    }
)
SESSION_REQUEST = record({"config_id": DIGEST, "key_set": DIGEST})
SESSION = record(
    {
        "session": IDENTIFIER,
        "model": TEXT,
        **dict.fromkeys(("config_id", "key_set"), DIGEST),
        **dict.fromkeys(("created", "used", "position", "size"), COUNT),
        "pending": {"type": "boolean"},
    }
)
JOB = record(
    {
        **dict.fromkeys(("job", "session"), IDENTIFIER),
        "mode": {"type": "string", "enum": sorted(set(MODES.values()))},
        "state": {"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]},
        **dict.fromkeys(("steps", "inputs", "units", "done", "outputs"), COUNT),
        **dict.fromkeys(("created", "started"), NUMBER),
        **dict.fromkeys(("error", "message"), TEXT),
    }
)
CONFIG = record(
    {
        "config_id": DIGEST,
        **dict.fromkeys(("config", "price", "limits"), OBJECT),
        "api_versions": {"type": "array", "items": {"type": "integer"}},
    }
)
MODEL_ROW = record({"model": TEXT, "config_id": DIGEST})
HAVE = record({"have": COUNT})
HEALTH = record({"status": TEXT})


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

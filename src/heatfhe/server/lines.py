# SPDX-License-Identifier: Apache-2.0
"""What a front and a desk in another process say to each other: one line of JSON per question and per answer.

A record is tagged with the name of its class, and only the classes listed here are made again: nothing that a client
sent is ever unpickled, here as on a worker's pipe.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from heatfhe.planning import ProgramName
from heatfhe.server.desk import News
from heatfhe.server.store.jobs import Job
from heatfhe.server.store.keys import KeySetStatus
from heatfhe.server.store.sessions import Session
from heatfhe.wire import JobHead, KeyEntry, KeyManifest, Refusal

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Job, JobHead, KeyEntry, KeyManifest, KeySetStatus, News, Session)
}


def pack(value: Any) -> str:
    """Records, lists, dictionaries and plain values as one line."""
    return json.dumps(_tagged(value))


def unpack(line: str) -> Any:
    """Inverse of pack; lists come back as tuples."""
    return _made(json.loads(line))


def pack_refusal(refusal: Refusal) -> str:
    """A refusal as an answer."""
    told = {"status": refusal.status, "retry_after": refusal.retry_after, "body": refusal.as_json()}
    return json.dumps({"refused": told})


def answer(line: str) -> Any:
    """What an answer holds; a refusal is raised."""
    body = json.loads(line)
    if isinstance(body, dict) and "refused" in body:
        told = body["refused"]
        raise Refusal.from_json(told["status"], told["body"], retry_after=told["retry_after"])
    return _made(body)


def _tagged(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if _KINDS.get(name) is not type(value):
            raise TypeError(f"{name} does not travel between front and desk")
        return {"record": name, "fields": {f.name: _tagged(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, dict):
        return {"items": {key: _tagged(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_tagged(item) for item in value]
    return value


def _made(body: Any) -> Any:
    if isinstance(body, list):
        return tuple(_made(item) for item in body)
    if not isinstance(body, dict):
        return body
    if "items" in body:
        return {key: _made(item) for key, item in body["items"].items()}
    parts = {name: _made(item) for name, item in body["fields"].items()}
    if body["record"] == JobHead.__name__:
        parts["program"] = ProgramName(parts["program"])
    return _KINDS[body["record"]](**parts)

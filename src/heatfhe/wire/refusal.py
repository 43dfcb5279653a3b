# SPDX-License-Identifier: Apache-2.0
"""A refusal both sides share: an HTTP status, a stable code, the cause and the remedy."""

from __future__ import annotations

from typing import Any

from heatfhe.errors import WireError

# Stable codes and the status each one travels with. Adding a code is compatible; changing one is not.
STATUS: dict[str, int] = {
    "bad_message": 400,
    "bad_ciphertext": 400,
    "secret_key": 400,
    "unauthorised": 401,
    "not_found": 404,
    "method": 405,
    "conflict": 409,
    "not_ready": 409,
    "key_set_incomplete": 409,
    "key_mismatch": 409,
    "cancelled": 409,
    "stale_config": 410,
    "length_required": 411,
    "too_large": 413,
    "media_type": 415,
    "quota": 429,
    "rate": 429,
    "queue_full": 429,
    "internal": 500,
    "engine_failed": 500,
    "busy": 503,
    "disk_full": 507,
}


class Refusal(WireError):
    """What the server answers instead of a result, and what the client raises when it reads one.

    ``retry_after`` is in seconds and travels as the Retry-After header; ``facts`` are public numbers a client may act
    on (the offset a partial upload has reached, the position of a session).
    """

    def __init__(
        self,
        code: str,
        message: str,
        remedy: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.code, self.message, self.remedy = code, message, remedy
        self.status = STATUS.get(code, 400) if status is None else status
        self.retry_after = retry_after
        self.facts = dict(facts or {})
        super().__init__(f"{message}; {remedy}" if remedy else message)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the error answer that its facts ask for."""
        return {} if self.retry_after is None else {"retry-after": str(max(1, round(self.retry_after)))}

    def as_json(self) -> dict[str, Any]:
        """The body of the error answer."""
        error: dict[str, Any] = {"code": self.code, "message": self.message, "remedy": self.remedy}
        if self.facts:
            error["facts"] = self.facts
        return {"error": error}

    @classmethod
    def from_json(cls, status: int, body: Any, *, retry_after: float | None = None) -> Refusal:
        """Read an error answer; anything unreadable becomes a plain refusal with its status."""
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            return cls(
                "internal", f"the server answered {status} without a reason", "", status=status, retry_after=retry_after
            )
        facts = error.get("facts")
        return cls(
            str(error.get("code", "internal"))[:64],
            str(error.get("message", ""))[:1000],
            str(error.get("remedy", ""))[:1000],
            status=status,
            retry_after=retry_after,
            facts=facts if isinstance(facts, dict) else None,
        )

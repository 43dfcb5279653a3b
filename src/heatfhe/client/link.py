# SPDX-License-Identifier: Apache-2.0
"""The line to a server: httpx with a token, retries with bounded patience, and refusals as errors."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from heatfhe.errors import ConfigError, WireError
from heatfhe.wire import Refusal

_AGAIN = frozenset({429, 502, 503, 504, 507})
_LARGEST_JSON = 8 << 20


class Link:
    """Sends requests until they are answered or patience ends. A retry sends the same bytes: nothing is re-encrypted.

    ``patience`` is how many seconds in all a request may be retried. Only requests that are safe to repeat go through
    here: reads, deletes, chunks at an offset, and jobs under an idempotency key.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        transport: httpx.BaseTransport | None = None,
        timeout: float = 60.0,
        patience: float = 120.0,
        verify: str | bool = True,
    ) -> None:
        parsed = httpx.URL(url)
        local = parsed.host in ("127.0.0.1", "localhost", "::1") or transport is not None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"{url!r} is not the address of a server; use https://HOST[:PORT]")
        if parsed.scheme == "http" and not local:
            raise ConfigError(
                f"{url}: a token must not travel unencrypted; use https, or a server on this machine (127.0.0.1)"
            )
        headers = {"user-agent": "heatfhe", "accept-encoding": "identity"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        context: Any = verify
        if isinstance(verify, str):
            import ssl

            context = ssl.create_default_context(cafile=verify)
        # Proxies of the environment are not used: they would see who asks and how much.
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=timeout, transport=transport, trust_env=False, verify=context
        )
        self._patience = patience

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """One answer with a success status; a refusal is raised as such once retrying does not help."""
        end, wait = time.monotonic() + self._patience, 0.1
        while True:
            try:
                answer = self._client.request(
                    method, path, params=params, json=body, content=content, headers=dict(headers or {})
                )
            except httpx.TransportError as err:
                if time.monotonic() + wait > end:
                    raise WireError(
                        f"the server does not answer ({type(err).__name__}); check the address, then use --resume"
                    ) from err
            else:
                if answer.is_success:
                    return answer
                refusal = _refusal(answer)
                pause = max(wait, refusal.retry_after or 0.0)
                if answer.status_code not in _AGAIN or refusal.code == "quota" or time.monotonic() + pause > end:
                    raise refusal
                wait = pause
            time.sleep(wait * random.uniform(0.8, 1.2))
            wait = min(wait * 2, 10.0)

    def json(self, method: str, path: str, *, body: Any = None) -> Any:
        """The JSON of an answer."""
        answer = self.ask(method, path, body=body)
        if len(answer.content) > _LARGEST_JSON:
            raise WireError("the server's answer is too large; do not use this server")
        try:
            return json.loads(answer.content) if answer.content else None
        except ValueError as err:
            raise WireError("the server's answer is not JSON; check the address") from err

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Server-sent events as they come. Ends when the stream does; a cut is not an error, the caller asks again."""
        try:
            with self._client.stream("GET", path, headers={"accept": "text/event-stream"}) as answer:
                if not answer.is_success:
                    answer.read()
                    refusal = _refusal(answer)
                    if answer.status_code in _AGAIN:
                        return
                    raise refusal
                for line in answer.iter_lines():
                    if line.startswith("data:") and len(line) < 65_536:
                        event = json.loads(line[5:])
                        if isinstance(event, dict):
                            yield event
        except (httpx.TransportError, ValueError):
            return


def _refusal(answer: httpx.Response) -> Refusal:
    try:
        body = json.loads(answer.content[:65_536])
    except ValueError:
        body = None
    header = answer.headers.get("retry-after", "")
    wait = float(header) if header.replace(".", "", 1).isdigit() else None
    return Refusal.from_json(answer.status_code, body, retry_after=None if wait is None else min(wait, 600.0))

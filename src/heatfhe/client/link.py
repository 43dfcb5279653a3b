# SPDX-License-Identifier: Apache-2.0
"""The line to a server: httpx with a token, bounded patience, bounded answers, and refusals as errors."""

from __future__ import annotations

import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx

from heatfhe.errors import ConfigError, WireError
from heatfhe.wire import Refusal, strict_json

AGAIN = frozenset({429, 502, 503, 504, 507})
_LARGEST_JSON, _LARGEST_REFUSAL, _LARGEST_EVENT = 8 << 20, 65_536, 65_536
NO_TOKEN = (
    "check --token-file, or $HEATFHE_TOKEN (token= in Python); the server's operator makes one with: "
    "heat serve --folder FOLDER --add-client NAME"
)
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


class LostServerError(WireError):
    """The server could not be reached while patience lasted. What it was asked to do may go on there."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer: its status and its bytes as they were sent."""

    status: int
    content: bytes

    def json(self) -> Any:
        """The JSON object of the answer; nothing for an empty one."""
        try:
            return strict_json(self.content, limit=_LARGEST_JSON) if self.content else None
        except WireError as err:
            raise WireError("the server's answer is not the JSON that was expected; check the address") from err


class Link:
    """Sends requests until they are answered or patience ends. A retry sends the same bytes: nothing is re-encrypted.

    ``patience`` is how many seconds in all a request may be retried. Only requests that are safe to repeat go through
    here: reads, deletes, chunks at an offset, and sessions and jobs under an idempotency key. Whoever holds
    ``turn`` sends alone. ``notice`` is told, once a request, that the server does not answer and is tried again.
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
        notice: Callable[[str], None] | None = None,
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
            try:
                context = ssl.create_default_context(cafile=verify)
            except OSError as err:  # an SSLError is one too
                why = err.strerror if isinstance(err, FileNotFoundError) else "it holds no certificate in PEM"
                raise ConfigError(f"{verify}: {why}; give the server's certificate with --ca FILE (verify=)") from err
        # Proxies of the environment are not used: they would see who asks and how much.
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=timeout, transport=transport, trust_env=False, verify=context
        )
        self._patience, self._notice = patience, notice
        self.turn = threading.RLock()

    def close(self) -> None:
        """End the connections, when what is on its way has ended."""
        with self.turn:
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
        most: int = _LARGEST_JSON,
    ) -> Reply:
        """One answer with a success status and at most ``most`` bytes; a refusal is raised once retrying is no help."""
        request = self._client.build_request(
            method, path, params=params, json=body, content=content, headers=dict(headers or {})
        )
        with self.turn:
            return self._ask(request, most)

    def _ask(self, request: httpx.Request, most: int) -> Reply:
        end, wait, told = time.monotonic() + self._patience, 0.1, False
        while True:
            try:
                with closing(self._client.send(request, stream=True)) as answer:
                    if answer.is_success:
                        return Reply(answer.status_code, _body(answer, most))
                    refusal = _refusal(answer)
            except httpx.TransportError as err:
                _check_tls(err, str(self._client.base_url))
                why = f"the server does not answer ({str(err) or type(err).__name__})"
                if time.monotonic() + wait > end:
                    raise LostServerError(f"{why}; check the address, then use --resume") from err
                if self._notice is not None and not told and wait > 0.3:
                    self._notice(f"{why}; trying again for {max(0.0, end - time.monotonic()):.0f} s")
                    told = True
            else:
                pause = max(wait, refusal.retry_after or 0.0)
                if refusal.status not in AGAIN or refusal.code == "quota" or time.monotonic() + pause > end:
                    raise refusal
                wait = pause
            time.sleep(wait * random.uniform(0.8, 1.2))
            wait = min(wait * 2, 10.0)

    def json(self, method: str, path: str, *, body: Any = None) -> Any:
        """The JSON object of an answer."""
        return self.ask(method, path, body=body).json()

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Server-sent events as they come. Ends when the stream does; a cut is not an error, the caller asks again."""
        try:
            with self._client.stream("GET", path, headers={"accept": "text/event-stream"}) as answer:
                if not answer.is_success:
                    refusal = _refusal(answer)
                    if refusal.status in AGAIN:
                        return
                    raise refusal
                for line in _lines(_pieces(answer)):
                    if line.startswith(b"data:") and (event := _object(line[5:])) is not None:
                        yield event
        except httpx.TransportError:
            return


def _check_tls(err: BaseException, url: str) -> None:
    """Raise what no second try mends: a certificate that is not trusted, or a port without TLS."""
    cause: BaseException | None = err
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise WireError(
            f"the certificate of {url} is not trusted ({cause.verify_message}); if the server uses its own, get that "
            "certificate from its operator and give it with --ca FILE (verify= in Python)"
        ) from err
    if isinstance(cause, ssl.SSLError) and cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        raise WireError(f"{url} answers without TLS; check the port, or use http:// on this machine") from err


def _pieces(answer: httpx.Response) -> Iterator[bytes]:
    """The bytes of a body as they came. A compressed one is refused: few bytes of it could fill the memory."""
    encoding = answer.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise WireError("the server compressed its answer although it was asked not to; do not use this server")
    if answer.is_stream_consumed:  # a transport that hands over whole answers, as tests have
        yield answer.content
    else:
        yield from answer.iter_raw()


def _body(answer: httpx.Response, most: int) -> bytes:
    """A body of at most ``most`` bytes."""
    said = answer.headers.get("content-length", "")
    too_large = WireError(f"an answer of the server exceeds {most} bytes; do not use this server")
    if said.isascii() and said.isdigit() and (len(said) > 18 or int(said) > most):
        raise too_large
    data = bytearray()
    for piece in _pieces(answer):
        data += piece
        if len(data) > most:
            raise too_large
    return bytes(data)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Lines of a stream. One that is too long is dropped as it comes."""
    held, dropping = b"", False
    for piece in pieces:
        *ended, held = (held + piece).split(b"\n")
        for line in ended:
            if not dropping and len(line) <= _LARGEST_EVENT:
                yield line.rstrip(b"\r")
            dropping = False
        if dropping or len(held) > _LARGEST_EVENT:
            held, dropping = b"", True


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        return strict_json(data, limit=max(_LARGEST_EVENT, _LARGEST_REFUSAL))
    except WireError:
        return None


def _refusal(answer: httpx.Response) -> Refusal:
    try:
        body = _object(_body(answer, _LARGEST_REFUSAL))
    except WireError:
        body = None  # too large, or compressed: its status is enough
    header = answer.headers.get("retry-after", "")
    wait = min(float(header), 600.0) if _SECONDS.fullmatch(header) else None
    if answer.status_code == 401:
        return Refusal("unauthorised", "the server does not know this token", NO_TOKEN, status=401)
    return Refusal.from_json(answer.status_code, body, retry_after=wait)

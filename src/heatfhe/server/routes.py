# SPDX-License-Identifier: Apache-2.0
"""The HTTP surface: thin handlers that check, call the service, and answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Security
from fastapi import Path as PathParameter
from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer

from heatfhe.server import describe as d
from heatfhe.server.disk import disk_errors
from heatfhe.server.jobs import ENDED, Job
from heatfhe.server.service import Service
from heatfhe.wire import MEDIA_TYPE, Fields, JobHead, KeyManifest, MessageScanner, Refusal, strict_json

_BEARER = HTTPBearer(auto_error=False, description="the token of one client")
Token = Annotated[Any, Security(_BEARER)]
Digest = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{64}$")]
Identifier = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{32}$")]
ModelName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:+=-]{0,127}$")]
StepNumber = Annotated[int, PathParameter(ge=0, le=4096)]
Offset = Annotated[int, Query(ge=0, le=1 << 34)]
ChunkDigest = Annotated[str, Header(pattern=r"^[0-9a-f]{64}$")]
IdempotencyKey = Annotated[str, Header(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
_JSON_BYTES = 2 << 20
_LISTENERS, _BODIES = 16, 8  # of one client at once: event streams, and requests whose bodies are on their way
_BEAT = 15.0


def make_router(service: Service) -> APIRouter:
    """Every route, bound to one service."""
    router = APIRouter()
    listeners: Counter[str] = Counter()
    bodies: Counter[str] = Counter()

    def caller(request: Request, credentials: Any) -> str:
        now = asyncio.get_running_loop().time()
        client = service.book.who(credentials.credentials) if credentials else None
        if client is None:
            address = request.client.host if request.client else "-"
            service.rates.check(f"address:{address}", now)
            raise Refusal("unauthorised", "no valid token", "send Authorization: Bearer TOKEN")
        service.rates.check(client, now)
        return client

    @asynccontextmanager
    async def receiving(client: str) -> AsyncIterator[None]:
        if bodies[client] >= _BODIES:
            raise Refusal("rate", f"{_BODIES} uploads are on their way", "let one end first", retry_after=1)
        bodies[client] += 1
        try:
            yield
        finally:
            bodies[client] -= 1

    async def act(function: Callable[..., Any], *args: Any) -> Any:
        return await run_in_threadpool(function, *args)

    # -- public ------------------------------------------------------------------------------------------------------

    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def metrics() -> PlainTextResponse:
        if not service.settings.open_metrics:
            raise Refusal("not_found", "metrics are switched off", "start the server with metrics")
        return PlainTextResponse(service.metrics.text(service.gauges()), media_type="text/plain; version=0.0.4")

    # -- models ------------------------------------------------------------------------------------------------------

    async def models(request: Request, token: Token) -> JSONResponse:
        caller(request, token)
        rows = [{"model": name, "config_id": m.config.config_id} for name, m in sorted(service.models.items())]
        return JSONResponse({"models": rows})

    async def model(request: Request, model: ModelName, token: Token) -> JSONResponse:
        caller(request, token)
        return JSONResponse(service.model(model).config.as_json())

    async def bundle(request: Request, model: ModelName, token: Token) -> Response:
        caller(request, token)
        return Response(service.model(model).bundle, media_type=MEDIA_TYPE)

    # -- keys --------------------------------------------------------------------------------------------------------

    async def add_keys(request: Request, token: Token) -> JSONResponse:
        client = caller(request, token)
        async with receiving(client):
            manifest = KeyManifest.from_json(strict_json(await _json_body(request), limit=_JSON_BYTES))
        status = await act(service.register_keys, client, manifest)
        return JSONResponse(status.as_json())

    async def list_keys(request: Request, token: Token) -> JSONResponse:
        client = caller(request, token)
        return JSONResponse({"key_sets": [s.as_json() for s in await act(service.keys.all, client)]})

    async def get_keys(request: Request, key_set: Digest, token: Token) -> JSONResponse:
        client = caller(request, token)
        return JSONResponse((await act(service.keys.status, client, key_set)).as_json())

    async def delete_keys(request: Request, key_set: Digest, token: Token) -> Response:
        await act(service.delete_keys, caller(request, token), key_set)
        return Response(status_code=204)

    async def put_chunk(
        request: Request,
        key_set: Digest,
        sha256: Digest,
        offset: Offset,
        x_chunk_sha256: ChunkDigest,
        token: Token,
    ) -> JSONResponse:
        client = caller(request, token)
        async with receiving(client):
            chunk = await _body(request, service.settings.chunk_bytes, "application/octet-stream")
            have = await act(service.keys.append, client, key_set, sha256, offset, chunk, x_chunk_sha256)
        return JSONResponse({"have": have})

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def add_session(request: Request, token: Token) -> JSONResponse:
        client = caller(request, token)
        async with receiving(client):
            fields = Fields(strict_json(await _json_body(request), limit=4096), of="session")
        config_id, key_set = fields.digest("config_id"), fields.digest("key_set")
        fields.done()
        session = await act(service.open_session, client, config_id, key_set)
        return JSONResponse(session.as_json(), status_code=201)

    async def list_sessions(request: Request, token: Token) -> JSONResponse:
        client = caller(request, token)
        return JSONResponse({"sessions": [s.as_json() for s in await act(service.sessions.all, client)]})

    async def get_session(request: Request, session: Identifier, token: Token) -> JSONResponse:
        client = caller(request, token)
        return JSONResponse((await act(service.sessions.get, client, session)).as_json())

    async def delete_session(request: Request, session: Identifier, token: Token) -> Response:
        await act(service.delete_session, caller(request, token), session)
        return Response(status_code=204)

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def add_job(
        request: Request,
        session: Identifier,
        idempotency_key: IdempotencyKey,
        token: Token,
    ) -> JSONResponse:
        client = caller(request, token)
        record = await act(service.sessions.get, client, session)
        length = _length(request, d.MESSAGE)
        scanner = MessageScanner(service.limits(service.by_config(record.config_id)), kinds=("job",), length=length)
        async with receiving(client), contextmanager_in_threadpool(service.incoming(client, length)) as upload:
            head = await _spool(request, scanner, upload, lambda h: service.check_job(client, session, h))
            job, fresh = await act(
                lambda: service.submit(
                    client, session, head, upload=upload, digest=scanner.digest, idempotency=idempotency_key
                )
            )
        return JSONResponse(job.as_json(), status_code=202 if fresh else 200)

    async def list_jobs(request: Request, token: Token) -> JSONResponse:
        client = caller(request, token)
        return JSONResponse({"jobs": [j.as_json() for j in service.jobs.of(client)]})

    async def get_job(request: Request, job: Identifier, token: Token) -> JSONResponse:
        return JSONResponse(service.jobs.get(caller(request, token), job).as_json())

    async def cancel_job(request: Request, job: Identifier, token: Token) -> JSONResponse:
        client = caller(request, token)
        return JSONResponse((await act(service.cancel, client, job)).as_json())

    async def output(
        request: Request,
        job: Identifier,
        step: StepNumber,
        token: Token,
    ) -> Response:
        found = service.jobs.get(caller(request, token), job)
        return Response(await act(service.jobs.output, found, step), media_type=MEDIA_TYPE)

    async def events(request: Request, job: Identifier, token: Token) -> StreamingResponse:
        client = caller(request, token)
        found = service.jobs.get(client, job)
        if listeners[client] >= _LISTENERS:
            raise Refusal("rate", f"{_LISTENERS} event streams are open", "close one first", retry_after=5)

        async def stream() -> AsyncIterator[bytes]:
            if listeners[client] >= _LISTENERS:  # others began between the check above and here
                return
            listeners[client] += 1
            try:
                async for line in _events(service, found, client):
                    yield line
            finally:
                listeners[client] -= 1

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)

    def add(method: str, path: str, handler: Callable[..., Any], responses: dict[int | str, Any], **more: Any) -> None:
        more.setdefault("status_code", min(int(code) for code in responses))
        more.setdefault("response_class", Response)
        router.add_api_route(path, handler, methods=[method], responses=responses, **more)

    message, nothing = d.MESSAGE, d.answers(None, 404, 409, status=204)
    add("GET", "/healthz", health, d.answers(d.HEALTH))
    add("GET", "/metrics", metrics, d.answers(d.EVENTS, 404, media="text/plain"))
    add("GET", "/v1/models", models, d.answers(d.listing("models", d.MODEL_ROW)))
    add("GET", "/v1/models/{model}", model, d.answers(d.CONFIG, 404))
    add("GET", "/v1/models/{model}/bundle", bundle, d.answers(d.BINARY, 404, media=message))
    add("GET", "/v1/keysets", list_keys, d.answers(d.listing("key_sets", d.KEY_STATUS)))
    manifest, session_request = d.body(d.KEY_MANIFEST), d.body(d.SESSION_REQUEST)
    add("POST", "/v1/keysets", add_keys, d.answers(d.KEY_STATUS, 410, 411, 507), openapi_extra=manifest)
    add("GET", "/v1/keysets/{key_set}", get_keys, d.answers(d.KEY_STATUS, 404))
    add("DELETE", "/v1/keysets/{key_set}", delete_keys, nothing)
    chunk, refused = d.body(d.BINARY, "application/octet-stream"), (404, 409, 411, 507)
    add("PUT", "/v1/keysets/{key_set}/blobs/{sha256}", put_chunk, d.answers(d.HAVE, *refused), openapi_extra=chunk)
    add("GET", "/v1/sessions", list_sessions, d.answers(d.listing("sessions", d.SESSION)))
    opened = d.answers(d.SESSION, 404, 409, 410, 411, 507, status=201)
    add("POST", "/v1/sessions", add_session, opened, openapi_extra=session_request)
    add("GET", "/v1/sessions/{session}", get_session, d.answers(d.SESSION, 404))
    add("DELETE", "/v1/sessions/{session}", delete_session, nothing)
    queued = d.answers(d.JOB, 404, 409, 410, 411, 503, 507, status=202)
    queued[200] = queued[202]
    job_body = d.body(d.BINARY, message)
    add("POST", "/v1/sessions/{session}/jobs", add_job, queued, status_code=202, openapi_extra=job_body)
    add("GET", "/v1/jobs", list_jobs, d.answers(d.listing("jobs", d.JOB)))
    add("GET", "/v1/jobs/{job}", get_job, d.answers(d.JOB, 404))
    add("POST", "/v1/jobs/{job}/cancel", cancel_job, d.answers(d.JOB, 404))
    add("GET", "/v1/jobs/{job}/events", events, d.answers(d.EVENTS, 404, media="text/event-stream"))
    add("GET", "/v1/jobs/{job}/outputs/{step}", output, d.answers(d.BINARY, 404, 409, media=message))
    return router


def _length(request: Request, media: str) -> int:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != media:
        raise Refusal("media_type", f"the body must be {media}", f"send Content-Type: {media}")
    length = request.headers.get("content-length")
    if length is None:
        raise Refusal("length_required", "the body's length is missing", "send Content-Length")
    return int(length)


async def _body(request: Request, most: int, media: str) -> bytes:
    length = _length(request, media)
    if length > most:
        raise Refusal("too_large", f"a body of {length} bytes exceeds {most}", "send smaller chunks")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > length:
            raise Refusal("bad_message", "the body is longer than its Content-Length", "send its true length")
    if len(data) != length:
        raise Refusal("bad_message", "the body is shorter than its Content-Length", "send it again")
    return bytes(data)


async def _json_body(request: Request) -> bytes:
    return await _body(request, _JSON_BYTES, "application/json")


async def _spool(request: Request, scanner: MessageScanner, upload: Path, check: Callable[[JobHead], Any]) -> JobHead:
    """Write a message to a file while it is checked; the header is judged before any block is taken."""
    head: JobHead | None = None
    with disk_errors(), upload.open("xb") as f:
        async for chunk in request.stream():
            scanner.feed(chunk)
            if head is None and scanner.header is not None:
                head = JobHead.from_header(scanner.header)
                await run_in_threadpool(check, head)
            await run_in_threadpool(f.write, chunk)
    header = scanner.finish()
    return head if head is not None else JobHead.from_header(header)


async def _events(service: Service, job: Job, client: str) -> AsyncIterator[bytes]:
    """Server-sent events: the state as it is, then every change, a comment as heartbeat, and the end."""
    number = 0
    first: dict[str, Any] = {"state": job.state, "unit": job.done, "units": job.units, "outputs": job.outputs}
    ahead = service.queue.ahead(job.job)
    yield _event(0, first if ahead is None else {**first, "ahead": ahead})
    while True:
        fresh = service.events.since(job.job, number)
        for number, facts in fresh:
            yield _event(number, facts)
        now = service.jobs.get(client, job.job)
        if now.state in ENDED and not service.events.since(job.job, number):
            facts = {"state": now.state, "unit": now.done, "units": now.units, "outputs": now.outputs}
            yield _event(number + 1, facts if not now.error else {**facts, "error": now.error})
            return
        if not fresh:
            yield b": waiting\n\n"
        await service.events.wait(job.job, number, _BEAT)


def _event(number: int, facts: dict[str, Any]) -> bytes:
    return f"id: {number}\ndata: {json.dumps(facts, sort_keys=True)}\n\n".encode()

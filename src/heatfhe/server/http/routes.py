# SPDX-License-Identifier: Apache-2.0
"""The HTTP surface: thin handlers that check, ask the desk, and answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Security
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer

from heatfhe.server.desk import Desk
from heatfhe.server.http import describe as d
from heatfhe.server.http.downloads import Download
from heatfhe.server.http.front import Front
from heatfhe.server.http.gate import Gate
from heatfhe.server.http.uploads import body_length, read_body, spool
from heatfhe.server.store.jobs import Job
from heatfhe.wire import Fields, KeyManifest, MessageScanner, Refusal

_BEARER = HTTPBearer(auto_error=False, description="the token of one client")
Token = Annotated[Any, Security(_BEARER)]
Digest = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{64}$")]
Identifier = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{32}$")]
ModelName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:+=-]{0,127}$")]
StepNumber = Annotated[int, PathParameter(ge=0, le=4096)]
Offset = Annotated[int, Query(ge=0, le=1 << 34)]
PageSize = Annotated[int, Query(ge=1, le=100)]
Before = Annotated[str | None, Query(pattern=r"^[0-9a-f]{32}$")]
ChunkDigest = Annotated[str, Header(pattern=r"^[0-9a-f]{64}$")]
IdempotencyKey = Annotated[str, Header(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
OptionalKey = Annotated[str | None, Header(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
_MANIFEST_BYTES, _MANIFEST_ITEMS = 2 << 20, 3 * 4096 + 8  # 4096 keys of three fields each
_SESSION_BYTES, _SESSION_ITEMS = 4096, 16
_BEAT, _PAGE = 15.0, 100


def make_router(front: Front) -> APIRouter:
    """Every route, bound to one front."""
    router, gate = APIRouter(), Gate(front)

    def add(method: str, path: str, handler: Callable[..., Any], responses: dict[int | str, Any], **more: Any) -> None:
        more.setdefault("status_code", min(int(code) for code in responses))
        more.setdefault("response_class", Response)
        router.add_api_route(path, handler, methods=[method], responses=responses, **more)

    for routes in (_public, _models, _keys, _sessions, _jobs, _results):
        routes(gate, front, add)
    return router


def _public(_gate: Gate, front: Front, add: Callable[..., None]) -> None:
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def metrics() -> PlainTextResponse:
        if not front.settings.open_metrics:
            raise Refusal("not_found", "metrics are switched off", "start the server with metrics")
        return PlainTextResponse(await front.desk.metrics(), media_type="text/plain; version=0.0.4")

    add("GET", "/healthz", health, d.answers(d.HEALTH))
    add("GET", "/metrics", metrics, d.answers(d.TEXT, 404, media="text/plain"))


def _models(gate: Gate, front: Front, add: Callable[..., None]) -> None:
    async def models(request: Request, token: Token) -> JSONResponse:
        await gate.caller(request, token)
        rows = [{"model": name, "config_id": m.config.config_id} for name, m in sorted(front.catalogue.models.items())]
        return JSONResponse({"models": rows})

    async def model(request: Request, model: ModelName, token: Token) -> JSONResponse:
        await gate.caller(request, token)
        return JSONResponse(front.catalogue.model(model).config.as_json())

    async def bundle(request: Request, model: ModelName, token: Token) -> Response:
        client = await gate.caller(request, token)
        return Download(front.catalogue.model(model).bundle, gate.downloads, client)

    add("GET", "/v1/models", models, d.answers(d.listing("models", d.MODEL_ROW)))
    add("GET", "/v1/models/{model}", model, d.answers(d.CONFIG, 404))
    add("GET", "/v1/models/{model}/bundle", bundle, d.answers(d.BINARY, 404, media=d.MESSAGE))


def _keys(gate: Gate, front: Front, add: Callable[..., None]) -> None:
    async def add_keys(request: Request, token: Token) -> JSONResponse:
        client = await gate.caller(request, token)
        manifest = await gate.json(request, client, _MANIFEST_BYTES, _MANIFEST_ITEMS, KeyManifest.from_json)
        return JSONResponse((await front.desk.register_keys(client, manifest)).as_json())

    async def list_keys(request: Request, token: Token) -> JSONResponse:
        client = await gate.caller(request, token)
        return JSONResponse({"key_sets": [s.as_json() for s in await front.desk.key_sets(client)]})

    async def get_keys(request: Request, key_set: Digest, token: Token) -> JSONResponse:
        client = await gate.caller(request, token)
        return JSONResponse((await front.desk.key_set(client, key_set)).as_json())

    async def delete_keys(request: Request, key_set: Digest, token: Token) -> Response:
        client = await gate.caller(request, token)
        await front.desk.delete_keys(client, key_set)
        return Response(status_code=204)

    async def put_chunk(
        request: Request,
        key_set: Digest,
        sha256: Digest,
        offset: Offset,
        x_chunk_sha256: ChunkDigest,
        token: Token,
    ) -> JSONResponse:
        client = await gate.caller(request, token)
        with gate.bodies.taken(client):
            chunk = await read_body(request, front.settings.chunk_bytes, "application/octet-stream")
            have = await front.desk.append_key(client, key_set, sha256, offset, chunk, x_chunk_sha256)
        return JSONResponse({"have": have})

    nothing = d.answers(None, 404, 409, status=204)
    add("GET", "/v1/keysets", list_keys, d.answers(d.listing("key_sets", d.KEY_STATUS)))
    manifest_body = d.body(d.KEY_MANIFEST)
    add("POST", "/v1/keysets", add_keys, d.answers(d.KEY_STATUS, 410, 411, 507), openapi_extra=manifest_body)
    add("GET", "/v1/keysets/{key_set}", get_keys, d.answers(d.KEY_STATUS, 404))
    add("DELETE", "/v1/keysets/{key_set}", delete_keys, nothing)
    chunk_body, refused = d.body(d.BINARY, "application/octet-stream"), (404, 409, 411, 507)
    path = "/v1/keysets/{key_set}/blobs/{sha256}"
    add("PUT", path, put_chunk, d.answers(d.HAVE, *refused), openapi_extra=chunk_body)


def _sessions(gate: Gate, front: Front, add: Callable[..., None]) -> None:
    async def add_session(request: Request, token: Token, idempotency_key: OptionalKey = None) -> JSONResponse:
        client = await gate.caller(request, token)
        asked = await gate.json(request, client, _SESSION_BYTES, _SESSION_ITEMS, _session_request)
        session, fresh = await front.desk.open_session(client, *asked, idempotency_key or "")
        return JSONResponse(session.as_json(), status_code=201 if fresh else 200)

    async def list_sessions(request: Request, token: Token) -> JSONResponse:
        client = await gate.caller(request, token)
        return JSONResponse({"sessions": [s.as_json() for s in await front.desk.sessions(client)]})

    async def get_session(request: Request, session: Identifier, token: Token) -> JSONResponse:
        client = await gate.caller(request, token)
        return JSONResponse((await front.desk.session(client, session)).as_json())

    async def delete_session(request: Request, session: Identifier, token: Token) -> Response:
        client = await gate.caller(request, token)
        await front.desk.delete_session(client, session)
        return Response(status_code=204)

    add("GET", "/v1/sessions", list_sessions, d.answers(d.listing("sessions", d.SESSION)))
    opened = d.answers(d.SESSION, 404, 409, 410, 411, 507, status=201)
    opened[200] = opened[201]
    request_body = d.body(d.SESSION_REQUEST)
    add("POST", "/v1/sessions", add_session, opened, status_code=201, openapi_extra=request_body)
    add("GET", "/v1/sessions/{session}", get_session, d.answers(d.SESSION, 404))
    add("DELETE", "/v1/sessions/{session}", delete_session, d.answers(None, 404, 409, status=204))


def _jobs(gate: Gate, front: Front, add: Callable[..., None]) -> None:
    async def add_job(
        request: Request,
        session: Identifier,
        idempotency_key: IdempotencyKey,
        token: Token,
    ) -> JSONResponse:
        client = await gate.caller(request, token)
        record, shop = await front.desk.session(client, session), front.catalogue
        length = body_length(request, d.MESSAGE)
        scanner = MessageScanner(shop.limits(shop.by_config(record.config_id)), kinds=("job",), length=length)
        with gate.bodies.taken(client):
            async with front.desk.incoming(client, length) as upload:
                head = await spool(request, scanner, upload, lambda h: shop.check_job(record, h))
                job, fresh = await front.desk.submit(client, session, head, upload, scanner.digest, idempotency_key)
        return JSONResponse(job.as_json(), status_code=202 if fresh else 200)

    async def list_jobs(request: Request, token: Token, before: Before = None, limit: PageSize = _PAGE) -> JSONResponse:
        client = await gate.caller(request, token)
        return JSONResponse({"jobs": [j.as_json() for j in await front.desk.jobs(client, before, limit)]})

    async def get_job(request: Request, job: Identifier, token: Token) -> JSONResponse:
        client = await gate.caller(request, token)
        return JSONResponse((await front.desk.job(client, job)).as_json())

    async def cancel_job(request: Request, job: Identifier, token: Token) -> JSONResponse:
        client = await gate.caller(request, token)
        return JSONResponse((await front.desk.cancel(client, job)).as_json())

    queued = d.answers(d.JOB, 404, 409, 410, 411, 503, 507, status=202)
    queued[200] = queued[202]
    job_body = d.body(d.BINARY, d.MESSAGE)
    add("POST", "/v1/sessions/{session}/jobs", add_job, queued, status_code=202, openapi_extra=job_body)
    add("GET", "/v1/jobs", list_jobs, d.answers(d.listing("jobs", d.JOB, _PAGE), 404))
    add("GET", "/v1/jobs/{job}", get_job, d.answers(d.JOB, 404))
    add("POST", "/v1/jobs/{job}/cancel", cancel_job, d.answers(d.JOB, 404))


def _results(gate: Gate, front: Front, add: Callable[..., None]) -> None:
    async def events(request: Request, job: Identifier, token: Token) -> StreamingResponse:
        client = await gate.caller(request, token)
        found = await front.desk.job(client, job)
        gate.listeners.check(client)

        async def stream() -> AsyncIterator[bytes]:
            try:
                with gate.listeners.taken(client):
                    async for line in _events(front.desk, found, client):
                        yield line
            except Refusal:  # others began since the check above, or the job was removed: the stream ends
                return

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)

    async def output(
        request: Request,
        job: Identifier,
        step: StepNumber,
        token: Token,
    ) -> Response:
        client = await gate.caller(request, token)
        gate.downloads.check(client)
        return Download(await front.desk.open_output(client, job, step), gate.downloads, client)

    add("GET", "/v1/jobs/{job}/events", events, d.answers(d.TEXT, 404, media="text/event-stream"))
    add("GET", "/v1/jobs/{job}/outputs/{step}", output, d.answers(d.BINARY, 404, 409, media=d.MESSAGE))


def _session_request(body: Any) -> tuple[str, str]:
    fields = Fields(body, of="session")
    config_id, key_set = fields.digest("config_id"), fields.digest("key_set")
    fields.done()
    return config_id, key_set


async def _events(desk: Desk, job: Job, client: str) -> AsyncIterator[bytes]:
    """Server-sent events: the state as it is, then every change, a comment as heartbeat, and the end.

    The stream ends early where another desk answers: events have new numbers there. Whoever listens asks again.
    """
    number, news = 0, await desk.news(client, job.job, 0, 0.0)
    source = news.source
    yield _event(0, _state(job) if news.ahead is None else {**_state(job), "ahead": news.ahead})
    while news.source == source:
        for number, facts in news.events:
            yield _event(number, facts)
        if news.over:
            now = news.job
            yield _event(number + 1, _state(now) if not now.error else {**_state(now), "error": now.error})
            return
        if not news.events:
            yield b": waiting\n\n"
        news = await desk.news(client, job.job, number, _BEAT)


def _state(job: Job) -> dict[str, Any]:
    return {"state": job.state, "unit": job.done, "units": job.units, "outputs": job.outputs}


def _event(number: int, facts: dict[str, Any]) -> bytes:
    return f"id: {number}\ndata: {json.dumps(facts, sort_keys=True)}\n\n".encode()

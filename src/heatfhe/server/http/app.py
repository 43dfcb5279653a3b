# SPDX-License-Identifier: Apache-2.0
"""The application: settings in, an ASGI app out, with the secret wall closed first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from heatfhe.errors import HeatError, WireError
from heatfhe.server.catalogue import Catalogue
from heatfhe.server.desk import HereDesk
from heatfhe.server.faults import as_refusal, log_fault
from heatfhe.server.http.front import Front
from heatfhe.server.http.middleware import INTERNAL, Guard
from heatfhe.server.http.routes import make_router
from heatfhe.server.metrics import Metrics
from heatfhe.server.models import ServedModel
from heatfhe.server.service import Service
from heatfhe.server.settings import Settings
from heatfhe.server.store.auth import ClientBook
from heatfhe.server.store.hold import FolderLock
from heatfhe.server.wall import close_wall
from heatfhe.server.work.crew import reach_desk
from heatfhe.wire import API_VERSIONS, STATUS, Refusal

logger = logging.getLogger(__name__)
_RATE_PAUSE = 0.25


def create_app(
    settings: Settings, models: Mapping[str, ServedModel] | None = None, *, lock: FolderLock | None = None
) -> Any:
    """An ASGI application for these settings; ``models`` are loaded from them unless given.

    Front and desk are this one process. It takes the folder's lock when it starts, unless the caller holds it already
    and hands it over.

    Refuses to exist in a process that has secret-key code loaded, and blocks its import from then on.
    """
    service = Service(settings, _loaded(settings, models), lock=lock)
    front = Front(
        settings=settings,
        catalogue=service.catalogue,
        book=service.book,
        desk=HereDesk(service),
        metrics=service.metrics,
    )

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        sys.setswitchinterval(0.001)  # a thread that parses gives way to the event loop five times as soon
        service.start()
        try:
            yield
        finally:
            service.close()

    app = _application(front, lifespan)
    app.state.service = service
    return app


def create_front(settings: Settings, models: Mapping[str, ServedModel] | None = None, *, address: str = "") -> Any:
    """The same application where the desk is an actor on the Ray cluster at an address: one of many, without state.

    The desk of the settings' folder must have been started, with the same settings.
    """
    metrics, catalogue = Metrics(), Catalogue(settings, _loaded(settings, models))
    desk = reach_desk(settings, metrics, address)
    book = ClientBook(settings.folder / "clients.json")
    front = Front(settings=settings, catalogue=catalogue, book=book, desk=desk, metrics=metrics)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        sys.setswitchinterval(0.001)
        reports = asyncio.create_task(desk.reporting())
        try:
            yield
        finally:
            reports.cancel()
            with contextlib.suppress(Refusal):
                await desk.report()

    return _application(front, lifespan)


def _loaded(settings: Settings, models: Mapping[str, ServedModel] | None) -> Mapping[str, ServedModel]:
    """What is served, in a process that can hold no secret key."""
    if not settings.joined:
        close_wall()
    if models is not None:
        return models
    from heatfhe.server.work.program import load_models

    return load_models(settings)


def _application(front: Front, lifespan: Any) -> Any:
    app = FastAPI(
        title="heatfhe server",
        version=str(max(API_VERSIONS)),
        description="Generation on encrypted prompts. The server cannot read what it computes.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    router = make_router(front)
    app.state.routes = router.routes
    app.include_router(router)
    for kind, handler in (
        (Refusal, _refusal),
        (WireError, _wire),
        (HeatError, _internal),
        (Exception, _internal),
        (ClientDisconnect, _gone),
        (RequestValidationError, _validation),
        (HTTPException, _http),
    ):
        app.add_exception_handler(kind, handler)
    _drop_422(app)
    _enclose(app, front)
    return app


def _enclose(app: Any, front: Front) -> None:
    """Put the guard around everything: Starlette's own answer to unexpected errors lies outside of added middleware."""
    inner, settings = app.build_middleware_stack, front.settings
    most = max(settings.request_bytes, settings.chunk_bytes)

    def build() -> Guard:
        return Guard(inner(), metrics=front.metrics, most_bytes=most, body_seconds=settings.body_seconds)

    app.build_middleware_stack = build


def _answer(refusal: Refusal, extra: Mapping[str, str] | None = None) -> Any:
    headers = {**(extra or {}), **refusal.headers}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(refusal.as_json(), status_code=refusal.status, headers=headers)


async def _refusal(_request: Request, err: Exception) -> Any:
    assert isinstance(err, Refusal)
    if err.code == "rate":  # whoever asks too often waits for the answer: asking again at once costs us more than them
        await asyncio.sleep(min(_RATE_PAUSE, err.retry_after or 0.0))
    return _answer(err)


async def _wire(_request: Request, err: Exception) -> Any:
    assert isinstance(err, WireError)
    return _answer(as_refusal(err))


async def _internal(_request: Request, err: Exception) -> Any:
    log_fault(logger, "a request failed", err)
    return _answer(INTERNAL)


async def _gone(_request: Request, _err: Exception) -> Any:
    return Response(status_code=499)  # for the count and the log: the caller left before its body was whole


async def _validation(_request: Request, err: Exception) -> Any:
    assert isinstance(err, RequestValidationError)
    where = sorted({".".join(str(p) for p in e["loc"])[:80] for e in err.errors()})
    return _answer(Refusal("bad_message", f"not valid: {', '.join(where)}", "see docs/formats.md"))


async def _http(request: Request, err: Exception) -> Any:
    assert isinstance(err, HTTPException)
    headers = dict(err.headers or {})
    if err.status_code == 405:  # one resource is several routes: name the methods of all of them
        here = [r for r in request.app.state.routes if r.matches(request.scope)[0] != Match.NONE]
        headers["allow"] = ", ".join(sorted({m for r in here for m in r.methods}))
    code = {404: "not_found", 405: "method"}.get(err.status_code, "bad_message")
    refusal = Refusal(code, "no such thing here", "see /openapi.json", status=max(err.status_code, STATUS[code]))
    return _answer(refusal, headers)


def _drop_422(app: Any) -> None:
    """Validation errors answer 400 like every malformed message; the description must say so."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        schema: dict[str, Any] = original()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        return schema

    app.openapi = openapi

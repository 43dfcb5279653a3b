# SPDX-License-Identifier: Apache-2.0
"""The object stores that tests run over: a folder, a dictionary, and an S3 server spoken to over HTTP."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from heatfhe.server.store.memory_objects import MemoryObjects
from heatfhe.server.store.objects import Objects, open_objects

BUCKET = "heatfhe-test"


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3 server on a free port of this machine and the URL of a bucket on it; skipped without its packages.

    It answers one request after the other. moto looks whether an object exists and then writes it, in two steps: only
    so are they one, as they are at S3.
    """
    pytest.importorskip("s3fs", reason="needs the extra s3")
    pytest.importorskip("flask", reason="needs moto[server]")
    application = pytest.importorskip("moto.moto_server.werkzeug_app", reason="needs moto[server]")
    import boto3
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_args: Any, **_options: Any) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        app = application.DomainDispatcherApplication(application.create_backend_app)
        server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)
        facts = {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ACCESS_KEY_ID": "k"}
        for name, value in {**facts, "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(f"AWS_{name}", value)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield f"s3://{BUCKET}"
        finally:
            server.shutdown()
            server.server_close()


Reach = Callable[[], Objects]
"""One more client of the same store."""


@contextmanager
def reached(kind: str, folder: Path) -> Iterator[Reach]:
    """A store of a kind: folder, memory or s3."""
    if kind == "folder":
        yield lambda: open_objects(folder)
    elif kind == "memory":
        held = MemoryObjects()
        yield lambda: held
    else:
        with s3_server() as url:
            place = secrets.token_hex(8)  # moto keeps what it has as long as the process lives
            yield lambda: open_objects(f"{url}/{place}")

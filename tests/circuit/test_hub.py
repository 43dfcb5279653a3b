# SPDX-License-Identifier: Apache-2.0
"""A circuit goes to the Hugging Face hub and comes back: a hub on loopback with the few calls the library makes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError
from tests.tiny import tiny_circuit

pytest.importorskip("huggingface_hub", reason="the hub's library comes with the train extra")
ROOT, COMMIT = Path(__file__).resolve().parents[2], "1" * 40


class Hub(BaseHTTPRequestHandler):
    """One model repository, in memory."""

    files: dict[str, bytes]

    def log_message(self, *_args: Any) -> None:
        return

    def _send(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), "x-repo-commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        data = self.rfile.read(size)
        url = f"http://{self.headers['host']}/me/tiny"
        if self.path.endswith("/repos/create"):
            self._send({"url": url, "name": "me/tiny"})
        elif "/preupload/" in self.path:
            names = [f["path"] for f in json.loads(data)["files"]]
            self._send({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif "/commit/" in self.path:
            for line in map(json.loads, data.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._send({"commitUrl": f"{url}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})
        else:
            self._send({"valid": True})

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            if not self.files or "me/tiny" not in self.path:
                self._send({"error": "Repository not found"}, 404, **{"x-error-code": "RepoNotFound"})
                return
            names = [
                {"rfilename": n, "path": n, "type": "file", "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in self.files.items()
            ]
            listing = {"id": "me/tiny", "sha": COMMIT, "siblings": names, "private": False, "tags": [], "downloads": 0}
            self._send(names if "/tree/" in self.path else listing)
            return
        data = self.files.get(self.path.split("?")[0].partition("/resolve/")[2].partition("/")[2])
        if data is None:
            self._send(b"", 404, **{"x-error-code": "EntryNotFound"})
        else:
            self._send(data, etag=f'"{hashlib.sha256(data).hexdigest()}"')

    do_HEAD = do_GET


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, bytes]]]:
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Hub,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", files
    server.shutdown()
    server.server_close()


def python(code: str, url: str, home: Path, *arguments: str) -> str:
    """The library reads its endpoint when it is imported: a process of its own."""
    own = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **own}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def test_a_circuit_is_pushed_and_comes_back(hub: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    url, files = hub
    circuit = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
    circuit.save(tmp_path / "circuit")
    push = (
        "import sys; from heatfhe import Circuit; print(Circuit.load(sys.argv[1]).push_to_hub('me/tiny', token='hf_x'))"
    )
    assert python(push, url, tmp_path / "home", str(tmp_path / "circuit")).endswith("me/tiny")
    assert {"circuit.json", "calibration.json", "weights.safetensors"} <= set(files)
    load = "from heatfhe import Circuit; print(Circuit.from_pretrained('me/tiny').digest)"
    assert python(load, url, tmp_path / "home") == circuit.digest
    files.clear()  # the hub is gone: the cache does
    assert python(load, url, tmp_path / "home") == circuit.digest


def test_a_prepared_checkpoint_is_pushed_and_comes_back_with_its_counts(
    hub: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """To others it is a plain checkpoint with its tokenizer; to us it has its calibration and counts too."""
    pytest.importorskip("torch", reason="checkpoints need the train extra")
    url, files = hub
    setup = (
        "import sys; from pathlib import Path; import numpy as np, torch\n"
        "import heatfhe; from heatfhe.sites import Prepared; from tests.cli.test_own_model import own_model\n"
    )
    push = setup + (
        "place = own_model(Path(sys.argv[1]), 64); p = heatfhe.prepare(str(place / 'my-gpt2'))\n"
        "rows = torch.from_numpy(np.random.default_rng(0).integers(0, 60, (4, 16)))\n"
        "p.adopt(heatfhe.calibrate(p, rows, 1e-2)); p.push_to_hub('me/tiny', token='hf_x')\n"
        "print(p.fingerprint(), sorted(p.calibration.counts().items()))"
    )
    pushed = python(push, url, tmp_path / "home", str(tmp_path))
    assert {"config.json", "model.safetensors", "tokenizer.json", "heat.json"} <= set(files)
    load = setup + (
        "p = Prepared.from_pretrained('me/tiny'); print(p.fingerprint(), sorted(p.calibration.counts().items()))\n"
    )
    assert python(load, url, tmp_path / "home") == pushed
    plain = (
        "from transformers import AutoTokenizer as T; print(len(T.from_pretrained('me/tiny')('the cat')['input_ids']))"
    )
    assert int(python(plain, url, tmp_path / "home")) >= 2


def test_a_name_nobody_has_is_one_clear_error(hub: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    code = (
        "from heatfhe import Circuit; from heatfhe.errors import ConfigError\n"
        "try: Circuit.from_pretrained('me/nothing')\nexcept ConfigError as err: print(err)"
    )
    assert "me/nothing: neither a directory here nor a circuit of the hub" in python(code, hub[0], tmp_path)


def test_a_hub_that_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuses(*_args: Any, **_options: Any) -> None:
        raise OSError("401 Unauthorized")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuses)
    with pytest.raises(ConfigError, match=r"me/tiny: the hub does not take it \(401 Unauthorized\); log in"):
        Circuit.push_to_hub(tiny_circuit(layers=1, width=16, vocabulary=32, context=16), "me/tiny")

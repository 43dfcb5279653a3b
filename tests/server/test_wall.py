# SPDX-License-Identifier: Apache-2.0
"""The secret wall: a server process cannot load, or be handed, what holds a secret key; toy sets need to be allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from heatfhe.errors import ConfigError
from heatfhe.server import ModelSource, Settings, create_app
from heatfhe.server.models import admit
from heatfhe.server.wall import is_forbidden
from heatfhe.server.work.program import load_models
from tests.server.serving import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)


def serve(source: ModelSource, folder: Path, before: str, options: str) -> subprocess.CompletedProcess[str]:
    code = f"""
from pathlib import Path
{before}
from heatfhe.server import ModelSource, Settings, create_app
source = ModelSource(name="tiny", plan=Path({str(source.plan)!r}), circuit=Path({str(source.circuit)!r}))
create_app(Settings(folder=Path({str(folder)!r}), models=(source,), {options}))
import sys
bad = [m for m in sys.modules if m.startswith(("heatfhe.client", "heatfhe.ckks.secret"))]
assert not bad, bad
for name in ("heatfhe.client", "heatfhe.client.keyring_clear", "heatfhe.ckks.secret", "heatfhe.Client"):
    try:
        if name == "heatfhe.Client":
            import heatfhe
            heatfhe.Client
        else:
            __import__(name)
    except ImportError as err:
        assert "cannot be imported in a server process" in str(err), err
    else:
        raise SystemExit(name + " was imported")
print("walled")
"""
    return python(code)


def test_the_whole_app_loads_nothing_secret_and_blocks_it(source: ModelSource, tmp_path: Path) -> None:
    done = serve(source, tmp_path, "", "simulate=True")
    assert done.stdout.strip() == "walled", done.stderr


def test_a_process_with_client_code_cannot_become_a_server(source: ModelSource, tmp_path: Path) -> None:
    done = serve(source, tmp_path, "import heatfhe.client", "simulate=True")
    assert "ConfigError: heatfhe.client is loaded in this process" in done.stderr


def test_a_worker_holds_the_wall_too() -> None:
    code = (
        "import sys, heatfhe.server.work.worker, heatfhe.server.work.program; "
        "bad = [m for m in sys.modules if m.startswith(('heatfhe.client', 'heatfhe.ckks.secret'))]; assert not bad, bad"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_names_behind_the_wall() -> None:
    assert is_forbidden("heatfhe.client")
    assert is_forbidden("heatfhe.ckks.secret.keys")
    assert not is_forbidden("heatfhe.clientele")
    assert not is_forbidden("heatfhe.ckks.params")


def test_no_source_of_the_server_names_a_secret_reader() -> None:
    """No code path that deserialises a secret key: nothing in the rooms a server loads names one."""
    for room in ("server", "wire"):
        for path in (ROOT / "src" / "heatfhe" / room).glob("*.py"):
            text = path.read_text()
            for word in ("DeserializePrivateKey", "decrypt(", "keyring_", "load_keyring"):
                assert word not in text, f"{path.name} names {word}"


def test_toy_parameters_and_simulation_must_be_allowed(source: ModelSource, tmp_path: Path) -> None:
    done = serve(source, tmp_path, "", "")
    assert "ConfigError: tiny: insecure-serving has NO SECURITY" in done.stderr
    assert "--insecure" in done.stderr
    settings = Settings(folder=tmp_path, models=(source,), simulate=True, joined=True)
    with pytest.raises(ConfigError, match="only with simulate"):
        replace(settings, simulate=False)
    models = load_models(settings)
    strict = Settings(folder=tmp_path, models=(source,), insecure=True)
    with pytest.raises(ConfigError, match="encrypts nothing"):
        admit(models["tiny"], strict)


def test_settings_that_cannot_work_are_refused(source: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one model"):
        Settings(folder=tmp_path, models=())
    with pytest.raises(ConfigError, match="share a name"):
        Settings(folder=tmp_path, models=(source, source))
    with pytest.raises(ConfigError, match="queue_jobs must be positive"):
        Settings(folder=tmp_path, models=(source,), queue_jobs=0)
    with pytest.raises(ConfigError, match="model name"):
        replace(source, name="a/b")


def test_two_servers_do_not_share_a_folder(source: ModelSource, tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path, models=(source,), simulate=True, joined=True)
    first, second = (create_app(settings).state.service for _ in range(2))
    first.start()
    try:
        with pytest.raises(ConfigError, match="another server uses this folder"):
            second.start()
    finally:
        first.close()

# SPDX-License-Identifier: Apache-2.0
"""A model by its name on the Hugging Face hub: taken from the cache, fetched when online, refused clearly when not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from heatfhe.cli import main
from heatfhe.cli.model_source import model_folder
from heatfhe.errors import ConfigError
from tests.gpt2_tiny import tiny_gpt2

hub = pytest.importorskip("huggingface_hub", reason="hub names need the train extra")
constants = pytest.importorskip("huggingface_hub.constants")
NAME, COMMIT = "somebody/tiny-gpt2", "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network: whoever asks for one is told so at once."""

    def offline(*_args: Any, **_options: Any) -> Any:
        raise OSError("no route to the hub")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.HfApi, "repo_info", offline)
    return tmp_path / "cache"


def put(cache: Path, *, weights: bool = True) -> Path:
    """A model in a cache, as the hub's library lays it out."""
    folder = cache / f"models--{NAME.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    tiny_gpt2(0).save_pretrained(snapshot)
    if not weights:
        (snapshot / "model.safetensors").unlink()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_a_cached_model_is_found_by_its_name(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = put(cache)
    assert model_folder(NAME) == snapshot
    assert main(["prepare", NAME, "-o", str(tmp_path / "prepared"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["sites"]) == 14
    assert (tmp_path / "prepared" / "heat.json").is_file()


@pytest.mark.parametrize("command", ["prepare", "calibrate", "train"])
def test_offline_and_not_cached_is_one_clear_line(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    out = tmp_path / "out"
    assert main([command, NAME, "-o", str(out)]) == 1
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert f"{NAME}: neither a folder here, nor in the Hugging Face cache, nor to be had from the hub" in error
    assert "give a folder" in error
    assert not out.exists()


def test_a_cache_without_weights_is_not_enough(cache: Path) -> None:
    put(cache, weights=False)
    with pytest.raises(ConfigError, match="nor to be had from the hub"):
        model_folder(NAME)


def test_online_the_missing_files_are_fetched(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        if options["local_files_only"]:
            raise FileNotFoundError("not in the cache")
        return str(put(cache))

    monkeypatch.setattr(hub, "snapshot_download", download)
    folder = model_folder(NAME)
    assert (folder / "config.json").is_file()
    assert [row["local_files_only"] for row in asked] == [True, False]
    assert all(row["name"] == NAME and "*.safetensors" in row["allow_patterns"] for row in asked)
    assert not any(p.endswith((".bin", ".py")) for p in asked[1]["allow_patterns"])  # no pickles, no code


def test_a_folder_comes_before_a_name_and_paths_are_no_names(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(put(cache), tmp_path / NAME)
    assert model_folder(NAME) == Path(NAME)
    (tmp_path / "empty").mkdir()
    for wrong in ("empty", "/nowhere/at/all", "../up", "a/b/c", "./here"):
        with pytest.raises(ConfigError, match=r"no checkpoint there \(config.json is missing\)"):
            model_folder(wrong)

# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING's table says where changes go: every path in it exists, and so does every table it sends people to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heatfhe.ckks.kernels import load_kernels
from heatfhe.errors import ConfigError

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "heatfhe"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = dict(re.findall(r"^\| (an? [^|]+?) \| (.+) \|$", TEXT, flags=re.M))
PATH = r"[\w./<>-]*(?:/[\w.<>-]*|\.(?:py|toml|cu|json|md))"


def found(path: str) -> list[Path]:
    """What a path of the table stands for; a name in angle brackets stands for any."""
    top = ROOT if path.split("/")[0] in ("tests", "docs", "runs", "pyproject.toml") else SOURCE
    return sorted(top.glob(re.sub(r"<\w+>", "*", path).rstrip("/")))


def test_the_table_has_a_row_for_everything_that_is_added() -> None:
    kinds = {
        "a kernel device",
        "a parameter set",
        "a recipe",
        "a wire version",
        "an option of `heat serve`",
        "a metric",
    }
    assert kinds | {"a model architecture", "a stage that no architecture has yet", "a fixture"} <= set(ROWS)
    assert len(ROWS) >= 17


@pytest.mark.parametrize("what", ROWS)
def test_every_path_of_a_row_exists(what: str) -> None:
    paths = re.findall(rf"`({PATH})`", ROWS[what])
    assert paths, f"{what}: no path"
    for path in paths:
        assert found(path), f"{what}: {path} does not exist"


@pytest.mark.parametrize(("table", "path"), re.findall(rf"`([A-Z_]+)` of `({PATH})`", TEXT))
def test_every_table_is_where_the_row_says(table: str, path: str) -> None:
    (file,) = found(path)
    assert re.search(rf"^{table}(?::[^=]+)? = ", file.read_text(), flags=re.M), f"{path} has no {table}"


def test_what_is_said_of_functions_holds() -> None:
    """A device without a branch is refused; a stage without a layout is, in tests/planning and tests/circuit."""
    with pytest.raises(ConfigError, match="unknown device 'tpu'"):
        load_kernels("tpu", 16, (97,))

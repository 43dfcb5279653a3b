# SPDX-License-Identifier: Apache-2.0
"""Python as people write it: names instead of objects, short reprs, examples that run, the hub."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import heatfhe
from heatfhe.errors import ConfigError, DataError, FileFormatError
from heatfhe.planning import Plan
from tests.server.serving import served_circuit
from tests.test_docs import script


def test_names_do_for_folders_and_parameter_sets(tmp_path: Path) -> None:
    served_circuit().save(str(tmp_path / "circuit"))
    circuit = heatfhe.Circuit.load(str(tmp_path / "circuit"))
    made = heatfhe.plan(str(tmp_path / "circuit"), "insecure-native-11", placement="greedy")
    assert made.circuit == circuit.digest == heatfhe.Circuit.from_pretrained(str(tmp_path / "circuit")).digest
    assert made.params == heatfhe.preset("insecure-native-11") == heatfhe.presets()["insecure-native-11"]
    assert isinstance(made.params, heatfhe.Params)
    made.save(str(tmp_path / "mine.plan"))
    assert Plan.load(str(tmp_path / "mine.plan")).digest == made.digest
    with pytest.raises(ConfigError, match="unknown parameter set 'native-99'"):
        heatfhe.plan(circuit, "native-99")
    with pytest.raises(FileFormatError, match="no such circuit directory"):
        heatfhe.plan(str(tmp_path / "gone"), "insecure-native-11")


def test_generate_gives_text_in_the_clear_and_under_encryption() -> None:
    pytest.importorskip("numba", reason="the native engine needs numba")
    circuit = served_circuit()
    words = circuit.decode(circuit.generate([1, 2], 2).tokens)
    assert heatfhe.generate(circuit, "w1 w2", 2) == words
    assert heatfhe.generate(circuit, "w1 w2", 2, params="insecure-native-11", threads=1) == words
    with pytest.raises(ConfigError, match="positions, the circuit's context is"):
        heatfhe.generate(circuit, "w1 w2", circuit.shape.context)
    with pytest.raises(ConfigError, match="got 0 and 3"):
        heatfhe.generate(circuit, "", 3)


def test_reprs_are_short_and_say_what_matters() -> None:
    circuit = heatfhe.Circuit.from_pretrained("default")
    total = sum(circuit.calibration.iterations().values())
    made = heatfhe.plan(circuit, "insecure-native-12", context=8, placement="greedy")
    for thing, facts in (
        (circuit, ("default-heat", "layers 4", "context 128", f"iterations {total}", circuit.digest[:12])),
        (made, ("insecure-native-12", "security none", "context 8", "bootstraps", made.digest[:12])),
        (made.program("generate"), ("generate", "bootstraps")),
        (circuit.calibration, ("iterations", "context 128")),
    ):
        assert len(repr(thing)) < 400
        assert "\n" not in repr(thing)
        assert all(fact in repr(thing) for fact in facts), repr(thing)
    assert circuit._repr_html_().count("<tr>") == len(circuit.facts())
    assert "<td>none</td>" in made._repr_html_()


def test_the_example_of_run_runs() -> None:
    """``heatfhe.run`` cannot be guessed: its docstring shows a whole call, which is executed here."""
    (example,) = doctest.DocTestFinder(recurse=False).find(heatfhe.run, "run")
    assert len(example.examples) >= 8
    assert doctest.DocTestRunner().run(example).failed == 0


def test_every_public_name_is_on_the_api_page() -> None:
    own = script("api_page").pages()["api/index.md"]
    for name in heatfhe.__all__:
        assert re.search(rf"^### (?:class )?`{name}\b", own, flags=re.M), f"heatfhe.{name} is on no page of the API"


def test_a_circuit_without_tokenizer_says_so(tmp_path: Path) -> None:
    from dataclasses import replace

    bare = replace(served_circuit(), tokenizer={})
    with pytest.raises(DataError, match="has no tokenizer; give token ids"):
        heatfhe.generate(bare, "w1")

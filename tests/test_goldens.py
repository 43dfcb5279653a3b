# SPDX-License-Identifier: Apache-2.0
"""Formats and numbers stay as they were: files, wire messages, digests and residues, byte for byte.

A failure here means that users' files, keys or answers would change. If that is meant, give the format a new version
and a reader for the old one, rewrite the golden with ``PYTHONPATH=src python -m tests.golden.make NAME`` and say why in
the commit. Nothing rewrites a golden on its own.
"""

from __future__ import annotations

import json
import lzma
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from heatfhe.assets import default_circuit, default_parent
from heatfhe.circuit import Circuit
from heatfhe.files import canonical_json
from heatfhe.planning import Plan
from heatfhe.wire import JobHead, JobOutput, KeyManifest, Limits, MessageScanner, ModelConfig, Refusal, parse
from tests.golden import digests, numbers, wire
from tests.golden.make import COMMAND, HERE, MAKERS, main, plan_file, stored, tiny
from tests.tiny import tiny_circuit

QUICK_TINY = (
    "insecure-native-11",
    "insecure-openfhe-12, every program",
    "paper-16",
    "clear-32, two levels a pair",
    "clear-64, MLP B",
    "clear-64, greedy, unit prices",
    "clear-64, shortest-path, unit prices",
    "clear-64, narrow window",
    "clear-64, not contracted",
    "clear-64, not halved",
    "clear-64, sample alone",
)
QUICK_EMBEDDED = ("heat, insecure-native-12-r40",)


def same(found: Any, name: str, *keys: str) -> None:
    """A value equals what is stored under these keys of a golden file, entry by entry."""
    wanted = stored(name)
    for key in keys:
        wanted = wanted[key]
    if isinstance(found, dict) and isinstance(wanted, dict):
        changed = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
        assert not changed, f"{name}, {', '.join(keys)}: changed {changed}; if this is meant: {COMMAND} {name}"
    assert found == wanted, f"{name}, {', '.join(keys)} changed; if this is meant: {COMMAND} {name}"


@lru_cache(maxsize=1)
def circuit() -> Circuit:
    return tiny()


# -- parameters and circuits -------------------------------------------------------------------------------------------


def test_parameter_sets() -> None:
    same({name: p.digest for name, p in digests.presets().items()}, "digests", "params")
    sets = {name: digests.native_set(p) for name, p in digests.native_presets().items()}
    same({name: s.older[1].hex() for name, s in sets.items()}, "digests", "native sets")
    same({name: s.hash.hex() for name, s in sets.items()}, "digests", "native sets, version 2")


@pytest.mark.parametrize("kind", ["tiny", *digests.EMBEDDED])
def test_circuits_are_read_and_written_as_they_were(kind: str, tmp_path: Path) -> None:
    folder = HERE / "tiny" if kind == "tiny" else default_circuit(kind)
    same(digests.circuit_files(folder), "digests", "files", kind)
    found = Circuit.load(folder)
    same(found.digest, "digests", "circuits", kind)
    found.save(tmp_path / "again")
    same(digests.circuit_files(tmp_path / "again"), "digests", "files", kind)


def test_the_tests_own_circuit_is_the_stored_one_up_to_measured_numbers(tmp_path: Path) -> None:
    tiny_circuit().save(tmp_path / "new")
    new, old = (json.loads((f / "circuit.json").read_text())["body"] for f in (tmp_path / "new", HERE / "tiny"))
    assert set(new.pop("files")) == set(old.pop("files"))
    assert new == old


def test_exporting_the_embedded_parent_gives_the_embedded_circuit(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="export needs torch")
    transformers = pytest.importorskip("transformers", reason="export needs transformers")
    from heatfhe.lowering import export
    from heatfhe.sites import prepare

    wanted = Circuit.load(default_circuit("calibrated"))
    model = transformers.AutoModelForCausalLM.from_pretrained(default_parent(), torch_dtype="auto")
    export(
        prepare(model), wanted.calibration, tmp_path / "new", tokenizer=dict(wanted.tokenizer), name=wanted.name,
        notes=wanted.notes,
    )  # fmt: skip
    same(digests.circuit_files(tmp_path / "new"), "digests", "files", "calibrated")


def test_the_embedded_circuits_tell_the_same_tokens() -> None:
    found = {k: digests.embedded(k).generate(digests.PROMPT, digests.COUNT).tokens for k in digests.EMBEDDED}
    same(found, "digests", "tokens")


# -- plans -------------------------------------------------------------------------------------------------------------


def test_the_plan_file_is_written_as_it_was_and_read_again(tmp_path: Path) -> None:
    wanted, found = lzma.decompress((HERE / "tiny.plan.xz").read_bytes()), plan_file()
    differing = [(a, b) for a, b in zip(wanted.splitlines(), found.splitlines()) if a != b][:3]
    assert found == wanted, f"first lines that differ: {differing}; if this is meant: {COMMAND} plan"
    (tmp_path / "old.plan").write_bytes(wanted)
    assert Plan.load(tmp_path / "old.plan") == digests.whole_plan(circuit())


def _plans(section: str, quick: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in stored("digests")[section]]


@pytest.mark.parametrize("name", _plans("plans of tiny", QUICK_TINY))
def test_plans_of_the_tiny_circuit(name: str) -> None:
    same(digests.plans_of_tiny(circuit())[name]().digest, "digests", "plans of tiny", name)


@pytest.mark.parametrize("name", _plans("plans of embedded", QUICK_EMBEDDED))
def test_plans_of_the_embedded_circuits(name: str) -> None:
    same(digests.plans_of_embedded()[name]().digest, "digests", "plans of embedded", name)


def test_every_plan_has_its_golden() -> None:
    for section, makers in (
        ("plans of tiny", digests.plans_of_tiny(circuit())),
        ("plans of embedded", digests.plans_of_embedded()),
    ):
        assert set(makers) == set(stored("digests")[section])
    assert {*QUICK_TINY, *QUICK_EMBEDDED} <= {*digests.plans_of_tiny(circuit()), *digests.plans_of_embedded()}


def test_counts_and_prices() -> None:
    same(digests.tallies(digests.whole_plan(circuit())), "digests", "tallies")


def test_what_a_server_tells_clients() -> None:
    same(digests.configuration(circuit(), HERE / "tiny"), "digests", "configuration")


# -- the wire ----------------------------------------------------------------------------------------------------------


def test_messages_are_packed_as_they_were() -> None:
    for part, found in wire.everything().items():
        same(found, "wire", part)


def test_old_messages_are_read() -> None:
    packed = {name: bytes.fromhex(text) for name, text in stored("wire")["packed"].items()}
    for name, request in (("job free", wire.FREE), ("job noise", wire.NOISY), ("job logits", wire.LOGITS)):
        scanner = MessageScanner(Limits(), kinds=("job",))
        scanner.feed(packed[name])
        assert JobHead.from_header(scanner.finish()) == request.head
        assert tuple(parse(packed[name], Limits(), kinds=("job",)).blocks.values()) == request.inputs + request.noise
    assert JobOutput.from_message(parse(packed["output"], Limits(), kinds=("output",))) == wire.OUTPUT
    for name, message in (("bundle", wire.BUNDLE), ("bare", wire.BARE)):
        assert parse(packed[name], Limits(), kinds=(message.kind,)) == message
    bodies = {name: json.loads(text) for name, text in stored("wire")["bodies"].items()}
    assert ModelConfig.from_json(bodies["model configuration"]) == wire.CONFIG
    assert KeyManifest.from_json(bodies["key manifest"]) == wire.MANIFEST
    for name, refusal in wire.REFUSALS.items():
        assert (
            canonical_json(Refusal.from_json(refusal.status, bodies[name]).as_json()).decode()
            == canonical_json(refusal.as_json()).decode()
        )


def test_no_kind_of_message_is_forgotten() -> None:
    """Every class of the wire with a wire form has a golden: add one here with the class."""
    from heatfhe.wire import frame, messages

    known = {type(m).__name__ for m in wire.PACKED.values()} | {"ModelConfig", "KeyManifest", "Price"}
    for module in (frame, messages):
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                assert name in known or not (hasattr(kind, "pack") or hasattr(kind, "as_json")), name


# -- the native engine -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def native() -> numbers.Numbers:
    pytest.importorskip("numba", reason="compiled kernels need numba")
    return numbers.Numbers((numbers.SLOTS, 16, 1))


def test_every_operation_gives_the_same_residues() -> None:
    same(numbers.exact(native()), "numbers", "exact")


def test_refreshes_and_dense_maps_give_the_same_residues() -> None:
    n = native()
    if numbers.arithmetic() != stored("numbers")["arithmetic"]:
        pytest.skip("numpy rounds roots of unity differently on this processor than where the golden was made")
    same(numbers.rounded(n), "numbers", "rounded")


# -- their own rules ---------------------------------------------------------------------------------------------------


def test_goldens_are_small_and_rewritten_by_name_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(p.stat().st_size for p in HERE.rglob("*") if p.suffix != ".pyc" and p.is_file()) < 300_000
    before = {p: p.stat().st_mtime_ns for p in HERE.rglob("*.json")}
    assert main([]) == main(["everything"]) == 2
    usage = capsys.readouterr().err
    assert all(name in usage for name in MAKERS)
    assert {p: p.stat().st_mtime_ns for p in HERE.rglob("*.json")} == before

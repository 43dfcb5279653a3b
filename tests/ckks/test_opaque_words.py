# SPDX-License-Identifier: Apache-2.0
"""Words belong to the kernels: everything above runs on words it cannot look into, and gives the same bits."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heatfhe
from heatfhe.ckks.archive import Archive
from heatfhe.ckks.bootstrapping import BootstrapSpec
from heatfhe.ckks.kernels import Kernels, ReferenceKernels, load_kernels
from heatfhe.ckks.keys import GALOIS, KeyId, galois_element
from heatfhe.ckks.linear import apply_map, encode_map, encode_matrices
from heatfhe.engine import KeyRequest, MemoryKeys, Vector
from heatfhe.planning import preset
from tests.ckks.kernel_shapes import slot_matrix
from tests.ckks.sealed import Sealed, SealedKernels
from tests.ckks.seeded import HASH, Scheme, SeededSource, small_chain, times_constant, times_plain
from tests.engine.maps import linear_map

N = 64
FIRST = BootstrapSpec(stc_levels=2, ratio_bits=14.0)
SOURCE = Path(heatfhe.__file__).parent


def everything(kernels: Kernels) -> dict[str, str]:
    """Every operation of the scheme on these kernels, as digests of wire forms."""
    chain = small_chain(N, end=49)
    s = Scheme(chain, kernels=kernels, rotations=(1, 2, 3, 5, 8, 16), periods=(32, 4), spec=FIRST, seed=3)
    e, archive, rng = s.evaluator, Archive(chain, kernels, HASH), np.random.default_rng(7)
    x, y = rng.uniform(-1, 1, (2, N // 2))
    a, b = s.encrypt(x, 4), archive.parse(archive.dump_fresh(s.maker.encrypt(y, 4)))
    level, scale = 4, e.plain_scale(4)
    giants = {g: {k: (lambda by=g + k: np.roll(x, by)) for k in (0, 1, 2)} for g in (0, 1, 2, 3, 5, 8, 16)}
    matrices = [slot_matrix(rng, N // 2, 0.5), slot_matrix(rng, N // 2, -0.5j, ahead=4)]
    low = s.encrypt(x[:4], 3)
    pair = s.bootstrapper.bootstrap_pair(low, low, period=4, bound=3.0)
    values = {
        "fresh": a, "parsed": b, "add": e.add(a, b), "sub": e.sub(a, b), "negate": e.negate(a), "times i": e.times_i(a),
        "times": e.times_integer(a, -3), "constant": e.add_constant(a, 0.3), "multiply": e.multiply(a, b),
        "sum": e.multiply_sum([(a, b), (b, b)], [(a, 3)]), "multiply constant": times_constant(e, a, 0.7),
        "complex": times_plain(e, [(a, np.array([0.6 - 0.5j]))]),
        "plains": times_plain(e, [(a, y), (b, y)]),
        "polynomial": e.add_polynomial(a, s.ring.kernels.encode(y, a.scale, s.ring.rows(level))), "drop": e.drop(a, 2),
        "rotate": e.rotate(a, 5), "hoisted": e.rotate_many(a, [1, 0, 3])[2], "conjugate": e.conjugate(a),
        "rotations": e.add_rotations(a, [1, 2]), "map": apply_map(e, a, encode_map(s.ring, giants, level, scale)),
        "matrices": apply_map(e, a, encode_matrices(s.ring, matrices, (0, 1, 2), (0, 3, 16), level, scale)),
        "bootstrap": s.bootstrapper.bootstrap_real(a, period=32), "pair": pair[0], "pair, second": pair[1],
        "complex bootstrap": s.bootstrapper.bootstrap(b, period=32),
    }  # fmt: skip
    assert np.abs(s.error(values["multiply"], x * y)).max() < 1e-6
    assert np.abs(s.error(values["bootstrap"], x)).max() < 1e-4
    assert s.table.memory > 0
    assert s.bootstrapper.memory > 0
    out = {name: hashlib.sha256(archive.dump(value)).hexdigest() for name, value in values.items()}
    key = KeyId(kind=GALOIS, element=galois_element(3, N), cap=3)
    blob = archive.dump_key(s.maker.switch_key(key))
    assert archive.dump_key(archive.parse_key(blob, key)) == blob
    return {**out, "key": hashlib.sha256(blob).hexdigest()}


def test_the_scheme_never_looks_into_words() -> None:
    """And what it makes of sealed words is what it makes of open ones."""
    chain = small_chain(N, end=49)
    sealed = SealedKernels(ReferenceKernels(N, chain.moduli))
    assert everything(sealed) == everything(ReferenceKernels(N, chain.moduli))
    methods = {name for name, _ in inspect.getmembers(Kernels, inspect.isfunction) if not name.startswith("_")}
    assert methods - sealed.called == {"synchronize", "mark", "elapsed"}  # no method is there for nobody


def test_whole_refreshes_run_under_names_of_their_own() -> None:
    chain = small_chain(N, end=49)
    sealed = SealedKernels(ReferenceKernels(N, chain.moduli))
    s = Scheme(chain, kernels=sealed, rotations=(1,), periods=(4,), spec=FIRST)
    m = encode_map(s.ring, {0: {0: lambda: np.ones(4)}}, 4, s.evaluator.plain_scale(4), name="ones")
    sealed.replayed.clear()
    s.bootstrapper.bootstrap_real(s.encrypt(np.ones(4), 4), period=4)
    s.bootstrapper.bootstrap_pair(s.encrypt(np.ones(4), 4), s.encrypt(np.ones(4), 4), period=4, bound=3.0)
    assert [name for name in sealed.replayed if name is not None] == [
        ("bootstrap", 4, 0, False),
        ("bootstrap", 4, 2, True),
    ]
    apply_map(s.evaluator, s.encrypt(np.ones(4), 4), m)
    assert sealed.replayed[-1] == "ones"


def test_engine_and_keyring_never_look_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="the native engine needs numba")
    from heatfhe.client import keyring_native
    from heatfhe.engine import native

    def loaded(seal: Callable[[Kernels], Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: seal(load_kernels(*args, **kwargs))

    def run(seal: Callable[[Kernels], Any]) -> list[bytes]:
        source = SeededSource(5)
        monkeypatch.setattr(keyring_native, "OsSource", lambda: source)
        for module in (keyring_native, native):
            monkeypatch.setattr(module, "load_kernels", loaded(seal))
        params = preset("insecure-native-tiny")
        request = KeyRequest(params=params, rotations=(1, 2), bootstrap_periods=(16,))
        ring = keyring_native.NativeKeyring(request)
        engine = native.NativeEngine(request, MemoryKeys(dict(ring.evaluation_keys())))
        x = np.linspace(-1, 1, 16)
        a = engine.parse(ring.encrypt(x, level=3))
        v, m = (
            Vector("x", lambda: x),
            linear_map("m", {g: dict.fromkeys((0, 1), x) for g in (0, 2)}),
        )
        values = [
            engine.add_plain(a, v), engine.add_plain(a, 0.5), engine.add_plain(a, 0.5j), engine.times(a, 3),
            engine.multiply_plain(a, 0.5), engine.multiply_plain_sum([(a, v), (a, 0.5), (a, 1j)]), engine.rotate(a, 1),
            engine.linear(a, m), engine.linear(a, m), engine.drop(a, 1), engine.multiply(a, a), engine.conjugate(a),
            engine.bootstrap(a, period=16, bound=1.0), *engine.bootstrap_pair(a, a, period=16, bound=2.0),
        ]  # fmt: skip
        engine.synchronize()
        assert engine.memory["encodings"] > 0
        assert np.abs(ring.decrypt(engine.dump(values[-1])) - np.tile(x, params.slots // 16)).max() < 1e-4
        return [engine.dump(value) for value in values]

    assert run(SealedKernels) == run(lambda kernels: kernels)


def test_sealed_words_refuse() -> None:
    """The wall has no door: what a careless caller would do fails."""
    k: Any = SealedKernels(ReferenceKernels(N, small_chain(N).moduli))
    natural = np.ones((2, 1, N), dtype=np.uint32)
    x = k.upload(natural)
    assert type(x) is Sealed
    for careless in (
        lambda: np.stack([x, x]), lambda: x[0], lambda: x.shape, lambda: np.asarray(x), lambda: x + x, lambda: x.copy(),
        lambda: x == x, lambda: len(x), lambda: k.negate(natural, np.array([0])),
    ):  # fmt: skip
        with pytest.raises((AssertionError, AttributeError, TypeError)):
            careless()


def subscripted(tree: ast.AST) -> list[int]:
    """Lines that index ``something.data`` or ``something.words``, or ask for their shape or bytes."""
    out = []
    for node in ast.walk(tree):
        inner = node.value if isinstance(node, (ast.Subscript, ast.Attribute)) else None
        if isinstance(inner, ast.Attribute) and inner.attr in ("data", "words"):
            out.append(node.lineno)
    return out


def test_only_the_kernels_know_the_order_of_evaluations() -> None:
    """No other room imports the order, or indexes a ciphertext's words."""
    order = {"natural_order", "exponents", "bit_reversed_positions", "galois_permutation", "split"}
    rooms = [*(SOURCE / "ckks").rglob("*.py"), SOURCE / "engine/native.py", SOURCE / "client/keyring_native.py"]
    seen = 0
    for path in rooms:
        if (SOURCE / "ckks/kernels") in path.parents:
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert not order & {alias.name for alias in node.names}, path
        assert not subscripted(tree), path
        seen += 1
    assert seen > 20
    assert subscripted(ast.parse("a.data[0]\nb.data.shape\nf(a.data)")) == [1, 2]

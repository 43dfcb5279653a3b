# SPDX-License-Identifier: Apache-2.0
"""The clear engine: the meaning of every instruction, and everything it refuses."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.engine import BootstrapNoise, ClearEngine, KeyRequest, MemoryKeys, Vector, load_engine
from heatfhe.engine.clear import MAGIC, ClearValue
from heatfhe.errors import (
    ConfigError,
    EngineError,
    FileFormatError,
    MissingKeyError,
    OutOfLevelsError,
    WireError,
)
from tests.engine.maps import linear_map
from tests.planning.clear_run import clear_params

PARAMS = clear_params(16, levels=5)
N = PARAMS.slots


def engine(**options: object) -> ClearEngine:
    return ClearEngine(PARAMS, **options)  # type: ignore[arg-type]


def row(seed: int, batch: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*batch, N))


@given(st.integers(0, 2**32 - 1), st.integers(-40, 40), st.booleans())
@settings(max_examples=50, deadline=None)
def test_instructions_mean_what_they_say(seed: int, by: int, batched: bool) -> None:
    e = engine()
    x, y = row(seed, (3,) if batched else ()), row(seed + 1)
    a, b = e.value(x), e.value(y)
    assert np.array_equal(e.add(a, b).slots, x + y)
    assert np.array_equal(e.sub(a, b).slots, x - y)
    assert np.array_equal(e.negate(a).slots, -x)
    assert np.array_equal(e.times(a, 3).slots, 3 * x)
    turned = e.rotate(a, by).slots
    assert all(np.array_equal(turned[..., s], x[..., (s + by) % N]) for s in range(N))
    assert np.array_equal(e.times_i(a).slots, 1j * x)
    assert np.array_equal(e.conjugate(e.times_i(a)).slots, -1j * x)
    product = e.multiply(a, b)
    assert np.array_equal(product.slots, x * y)
    assert product.level == PARAMS.levels - 1
    both = e.multiply_sum([(a, b), (b, b)])
    assert np.allclose(both.slots, x * y + y * y)
    assert both.level == PARAMS.levels - 1
    vector = Vector("v", lambda: np.arange(N))
    plain = e.multiply_plain_sum([(a, vector), (b, 0.5)])
    assert np.allclose(plain.slots, x * np.arange(N) + 0.5 * y)
    assert plain.level == PARAMS.levels - 1
    assert np.allclose(e.add_plain(a, vector).slots, x + np.arange(N))


def test_a_linear_map_is_baby_and_giant_steps() -> None:
    e, x = engine(), row(1)
    parts = {(g, b): row(10 + 3 * g + b) for g in (0, 4) for b in (0, 1, 2)}
    m = linear_map("m", {g: {b: parts[g, b] for b in (0, 1, 2)} for g in (0, 4)})
    inner = {g: sum(parts[g, b] * np.roll(x, -b) for b in (0, 1, 2)) for g in (0, 4)}
    found = e.linear(e.value(x), m)
    assert np.allclose(found.slots, inner[0] + np.roll(inner[4], -4))
    assert found.level == PARAMS.levels - 1


def test_levels_are_spent_and_enforced() -> None:
    e = engine()
    a = e.value(row(0), 1)
    low = e.multiply(a, a)
    spends = (
        lambda: e.multiply(low, low),
        lambda: e.multiply_plain(low, 0.5),
        lambda: e.multiply_sum([(low, low)]),
    )
    for spend in spends:
        with pytest.raises(OutOfLevelsError, match="needs 1 level, has 0"):
            spend()
    with pytest.raises(EngineError, match=r"operands at levels \[0, 1\]"):
        e.add(a, low)
    with pytest.raises(OutOfLevelsError, match="cannot be dropped"):
        e.drop(low, 1)
    assert e.level(e.drop(a, 0)) == 0
    with pytest.raises(EngineError, match=r"outside 0\.\.5"):
        e.value(row(0), 6)
    with pytest.raises(EngineError, match="16 slots"):
        e.value(np.zeros(8))


def test_a_bootstrap_refuses_what_a_real_one_would_destroy() -> None:
    e = engine()
    x = np.tile(row(3)[:4], 4)
    fresh = e.bootstrap(e.value(x, 0), period=4, bound=4.0)
    assert fresh.level == PARAMS.levels
    assert np.array_equal(fresh.slots, x)
    with pytest.raises(EngineError, match=r"up to 0\.1 met"):
        e.bootstrap(e.value(x, 0), period=4, bound=0.1)
    with pytest.raises(EngineError, match="does not repeat with period 2"):
        e.bootstrap(e.value(x, 0), period=2, bound=4.0)
    with pytest.raises(EngineError, match="not real"):
        e.bootstrap(e.times_i(e.value(x, 0)), period=4, bound=4.0)
    with pytest.raises(EngineError, match="outside the bootstrap's reach 16"):
        e.bootstrap(e.value(x, 0), period=4, bound=17.0)
    with pytest.raises(EngineError, match="divides the slots"):
        e.bootstrap(e.value(x, 0), period=3, bound=4.0)
    loose = ClearEngine(PARAMS, strict=False)
    assert loose.bootstrap(loose.value(x, 0), period=4, bound=0.1).level == PARAMS.levels


def test_a_lenient_engine_counts_what_is_above_its_plan_and_refuses_what_is_out_of_reach() -> None:
    e, reach = engine(lenient=True), PARAMS.reach
    assert e.bootstrap(e.value(np.full(N, 2.0)), period=1, bound=2.0).level == PARAMS.levels
    assert (e.exceeded, e.furthest) == (0, 1.0)
    for size in (3.0, 2.5):
        got = e.bootstrap(e.value(np.full(N, size)), period=1, bound=2.0)
        assert np.array_equal(got.slots, np.full(N, size))
    assert (e.exceeded, e.furthest) == (2, 1.5)
    for wrong in (reach * 1.01, np.inf):
        with pytest.raises(EngineError, match="planned for magnitudes up to 2"):
            e.bootstrap(e.value(np.full(N, wrong)), period=1, bound=2.0)
    assert e.exceeded == 2
    simulated = load_engine("clear")(KeyRequest(params=PARAMS, rotations=()), MemoryKeys({}))
    simulated.bootstrap(simulated.value(np.full(N, 3.0)), period=1, bound=2.0)
    assert simulated.exceeded == 1


def test_pairs_lose_the_levels_the_parameters_say() -> None:
    params = clear_params(16, levels=5, pair_levels=2)
    e = ClearEngine(params)
    a, b = e.bootstrap_pair(e.value(row(1), 0), e.value(row(2), 1), period=16, bound=5.0)
    assert (a.level, b.level) == (3, 3)
    assert np.array_equal(b.slots, row(2))


def test_noise_has_the_stated_size_and_keeps_the_period() -> None:
    noise = BootstrapNoise(sigma=1e-3)
    e = ClearEngine(clear_params(1 << 14), noise=noise, rng=np.random.default_rng(0))
    x = np.zeros(1 << 14)
    added = e.bootstrap(e.value(x, 0), period=1 << 14, bound=2.0).slots
    assert added.std() == pytest.approx(1e-3, rel=0.05)
    added = e.bootstrap(e.value(x, 0), period=8, bound=2.0).slots
    assert np.array_equal(added, np.tile(added[:8], 1 << 11))
    assert added.any()
    assert BootstrapNoise(sigma=1e-6, floor=1e-4).deviation(2.0) == 2e-4
    with pytest.raises(ConfigError, match="needs a generator"):
        ClearEngine(PARAMS, noise=noise)
    with pytest.raises(ConfigError, match="cannot be negative"):
        BootstrapNoise(sigma=-1.0)


def test_only_requested_keys_may_be_used() -> None:
    request = KeyRequest(params=PARAMS, rotations=(1, 4), conjugation=False)
    e = load_engine("clear")(request, MemoryKeys())
    a = e.value(row(0))
    e.rotate(a, 1)
    e.rotate(a, 0)
    with pytest.raises(MissingKeyError, match="rotation by 2"):
        e.rotate_many(a, [1, 2])
    with pytest.raises(MissingKeyError, match="conjugation"):
        e.conjugate(a)
    with pytest.raises(MissingKeyError, match="rotation by 3"):
        e.linear(a, linear_map("m", {0: {3: np.ones(N)}}))


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.booleans())
@settings(max_examples=30, deadline=None)
def test_values_travel_unchanged(seed: int, level: int, complex_: bool) -> None:
    e, x = engine(), row(seed, (2,))
    a = e.value(x * 1j if complex_ else x, level)
    back = e.parse(e.dump(a))
    assert np.array_equal(back.slots, a.slots)
    assert back.level == level


def test_hostile_bytes_are_refused() -> None:
    e = engine()
    good = e.dump(e.value(row(0)))
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    bad = [
        b"", b"x" * 100, good[:-5], good[:20], MAGIC + b"\xff\xff" + good[len(MAGIC) + 2 :],
        MAGIC + b"\x01\x00" + buffer.getvalue(), e.dump(ClearValue(np.full(N, np.nan), 1)),
        e.dump(ClearValue(np.zeros(4), 1)),
    ]  # fmt: skip
    for blob in bad:
        with pytest.raises(WireError):
            e.parse(blob)


def npy(header: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A value whose array has any header, with its length right."""
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return MAGIC + b"\x01\x00" + b"\x93NUMPY" + version + size + header + data


def test_other_files_of_numpy_are_refused_by_their_first_bytes() -> None:
    """Archives, headers that are no dictionary, claims of terabytes: each is a WireError and allocates nothing."""
    archive, row64 = io.BytesIO(), np.zeros(N).tobytes()
    np.savez(archive, a=np.zeros(N))
    start = b"{'descr': '<f8', 'fortran_order': False, 'shape': "
    bad = [
        MAGIC + b"\x01\x00" + archive.getvalue(),
        npy(start + b"(%d,), }\n" % N, row64, version=b"\x02\x00"),
        npy(start + b"(%d,), }\n" % N, row64 + b"x"),
        npy(start + b"(999999999, 999999999, %d), }\n" % N, row64),
        npy(start + b"(0, %d), }\n" % N),
        npy(start + b"(-1, %d), }\n" % N, row64),
        npy(start + b"(), }\n", row64[:8]),
        npy(start + b"(" * 500 + b")" * 500 + b", }\n", row64),
        npy(b"{'descr': '<c4', 'fortran_order': False, 'shape': (%d,), }\n" % N, row64),
        npy(b"{'descr': '>f8', 'fortran_order': False, 'shape': (%d,), }\n" % N, row64),
        npy(b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (%d,), }\n" % N, row64),
        npy(b"\xff" * 64 + b"\n", row64), npy(b"[1][0\n", row64), npy(b"x" * 60_000 + b"\n"), npy(b""),
    ]  # fmt: skip
    e = engine()
    for blob in bad:
        with pytest.raises(WireError):
            e.parse(blob)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_value_is_refused_or_still_a_value(data: st.DataObject) -> None:
    """Over changes of any bytes before the numbers: a WireError, or finite numbers in all slots. Nothing else."""
    e = engine()
    blob = bytearray(e.dump(e.value(row(1))))
    for _ in range(data.draw(st.integers(1, 6))):
        blob[data.draw(st.integers(len(MAGIC), len(MAGIC) + 130))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        value = e.parse(bytes(blob))
        assert value.slots.shape[-1] == N
        assert np.isfinite(value.slots).all()
        assert value.level <= PARAMS.levels


def test_the_clear_keyring_rehearses_a_real_one(tmp_path) -> None:  # type: ignore[no-untyped-def]
    request = KeyRequest(params=PARAMS, rotations=(1, 3))
    ring = ClearKeyring(request)
    x = row(5)
    assert np.array_equal(ring.decrypt(ring.encrypt(x, level=3)), x)
    names = [name for name, _ in ring.evaluation_keys()]
    assert names == ["relinearisation", "conjugation", "rotation-1", "rotation-3"]
    ring.save(tmp_path / "ring")
    assert ClearKeyring(request, tmp_path / "ring").request == request
    with pytest.raises(FileFormatError, match="other parameters"):
        ClearKeyring(KeyRequest(params=clear_params(32), rotations=()), tmp_path / "ring")


def test_engines_are_found_by_name() -> None:
    with pytest.raises(ConfigError, match="unknown engine 'abacus'"):
        load_engine("abacus")
    assert load_engine("clear")(KeyRequest(params=PARAMS, rotations=()), MemoryKeys()).params == PARAMS

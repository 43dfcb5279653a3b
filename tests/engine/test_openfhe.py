# SPDX-License-Identifier: Apache-2.0
"""The OpenFHE engine passes the conformance suite, and every known trap of the library has a guard."""

from __future__ import annotations

import copy
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heatfhe.client.keyring_openfhe import PUBLIC_FILE, SECRET_FILE, OpenFHEKeyring, self_test
from heatfhe.engine import Engine, KeyRequest, Keyring, MemoryKeys, Slots, Vector
from heatfhe.engine.openfhe import OpenFHEEngine
from heatfhe.engine.openfhe.context import load_openfhe
from heatfhe.engine.openfhe.keys import ProcessKeys, load_keys
from heatfhe.engine.openfhe.wire import CIPHERTEXT, KEY, Header, residue_arrays, seal, unseal
from heatfhe.errors import ConfigError, EngineError, FileFormatError, HeatError, MissingKeyError, WireError
from heatfhe.planning import preset
from heatfhe.wire import looks_secret
from tests.engine.conformance import EngineConformance, Pair, bits
from tests.engine.maps import linear_map

try:
    load_openfhe()
except HeatError as err:
    pytest.skip(str(err), allow_module_level=True)

pytestmark = pytest.mark.openfhe
TOY = preset("insecure-openfhe-11")


def open_openfhe(request: KeyRequest, **options: Any) -> tuple[Keyring, Engine[Any]]:
    ring = OpenFHEKeyring(request)
    return ring, OpenFHEEngine(request, MemoryKeys(dict(ring.evaluation_keys())), **options)


class TestOpenFHE(EngineConformance):
    params = TOY
    level_bits = 40.0
    periods = (8, TOY.slots)

    @staticmethod
    def open(request: KeyRequest) -> tuple[Keyring, Engine[Any]]:
        return open_openfhe(request)


@pytest.mark.slow
class TestOpenFHE12(EngineConformance):
    params = preset("insecure-openfhe-12")
    level_bits = 39.0
    periods = (64, 2048)

    @staticmethod
    def open(request: KeyRequest) -> tuple[Keyring, Engine[Any]]:
        return open_openfhe(request, threads=2)


# ----- without bootstraps: quick to open -----

LEVELLED = KeyRequest(params=TOY, rotations=(1, 2, 3))


@dataclass(frozen=True)
class Made:
    """A pair, and the key blobs between its halves."""

    pair: Pair
    keys: dict[str, bytes]


@pytest.fixture(scope="module")
def made() -> Made:
    ring = OpenFHEKeyring(LEVELLED)
    keys = dict(ring.evaluation_keys())
    return Made(Pair(ring, OpenFHEEngine(LEVELLED, MemoryKeys(keys))), keys)


def test_a_value_of_scale_degree_two_is_refused(made: Made) -> None:
    e = made.pair.engine
    a = made.pair.put(made.pair.real(0), 2)
    raw = e._cc.EvalMult(a, a)  # type: ignore[attr-defined]
    for step in (e.add, e.sub, e.multiply):
        with pytest.raises(EngineError, match="scale degree 2"):
            step(raw, a)
        with pytest.raises(EngineError, match="scale degree 2"):
            step(a, raw)


def test_a_value_labelled_with_other_slots_is_refused(made: Made) -> None:
    a = made.pair.put(made.pair.real(1), 2)
    sparse = a.Clone()
    sparse.SetSlots(8)
    with pytest.raises(EngineError, match="8 slots"):
        made.pair.engine.add(a, sparse)


def test_large_values_do_not_wrap_at_the_last_level(made: Made) -> None:
    x = np.linspace(-(2.0**40), 2.0**40, TOY.slots)
    e = made.pair.engine
    got = e.multiply(made.pair.put(x, 1), made.pair.put(np.full(TOY.slots, 1 / 1024), 1))
    assert e.level(got) == 0
    assert bits(made.pair.get(got) / 2.0**30, x / 2.0**40) >= 30


def test_drop_really_drops_limbs(made: Made) -> None:
    e, a = made.pair.engine, made.pair.put(made.pair.real(2), 5)
    low = e.drop(a, 1)
    assert len(e.dump(a)) - len(e.dump(low)) == 4 * 16 * TOY.ring_dimension
    assert int(low.GetLevel()) - int(a.GetLevel()) == 4


def test_scales_are_canonical_and_spread_less_than_the_drop_bound(made: Made) -> None:
    e, x = made.pair.engine, made.pair.real(3)
    context = e._context  # type: ignore[attr-defined]
    assert max(abs(s / context.scales[0] - 1) for s in context.scales) < 2.0**-30
    for value in (e.multiply(made.pair.put(x, 4), made.pair.put(x, 4)), e.drop(made.pair.put(x, 8), 3)):
        assert value.GetScalingFactor() == context.scale(3)
        assert value.GetNoiseScaleDeg() == 1


def test_wire_size_is_sixteen_bytes_per_coefficient_and_limb(made: Made) -> None:
    for level in (0, 8):
        blob = made.pair.ring.encrypt(made.pair.real(4), level=level)
        assert len(blob) == 132 + 16 * TOY.ring_dimension * (level + 2)


def test_a_residue_not_below_its_prime_is_refused_even_with_a_right_digest(made: Made) -> None:
    blob = made.pair.ring.encrypt(made.pair.real(5), level=0)
    payload = bytearray(blob[132:])
    payload[0:8] = b"\xff" * 8
    tag = blob[44:60].hex()
    bad = seal(Header(magic=CIPHERTEXT, level=0, params_digest=TOY.digest, tag=tag), bytes(payload))
    with pytest.raises(WireError, match="below its prime"):
        made.pair.engine.parse(bad)


def test_a_level_and_a_size_that_disagree_are_refused(made: Made) -> None:
    blob = made.pair.ring.encrypt(made.pair.real(6), level=0)
    for level, words in ((1, "3 limbs"), (9, "levels 0 to 8"), (65535, "levels 0 to 8")):
        header = Header(magic=CIPHERTEXT, level=level, params_digest=TOY.digest, tag=blob[44:60].hex())
        with pytest.raises(WireError, match=words):
            made.pair.engine.parse(seal(header, blob[132:]))


def test_another_clients_ciphertext_and_another_set_are_refused(made: Made) -> None:
    other = OpenFHEKeyring(LEVELLED)
    with pytest.raises(WireError, match="another key"):
        made.pair.engine.parse(other.encrypt(made.pair.real(7), level=0))
    with pytest.raises(WireError, match="another key"):
        made.pair.ring.decrypt(other.encrypt(made.pair.real(7), level=0))
    blob = bytearray(made.pair.ring.encrypt(made.pair.real(7), level=0))
    blob[12:44] = hashlib.sha256(b"another set").digest()
    with pytest.raises(WireError, match="parameter set"):
        made.pair.engine.parse(bytes(blob))


def test_encryption_levels_shapes_and_values_are_checked(made: Made) -> None:
    with pytest.raises(ConfigError, match="levels 0 to 8"):
        made.pair.ring.encrypt(made.pair.real(8), level=9)
    with pytest.raises(EngineError, match="shape"):
        made.pair.ring.encrypt(np.ones(7), level=1)
    with pytest.raises(EngineError, match="not finite"):
        made.pair.ring.encrypt(np.full(TOY.slots, np.nan), level=1)
    with pytest.raises(EngineError, match="not finite"):
        made.pair.engine.multiply_plain(made.pair.put(made.pair.real(8), 1), float("inf"))
    with pytest.raises(EngineError, match="integer"):
        made.pair.engine.times(made.pair.put(made.pair.real(8), 1), 0.5)  # type: ignore[arg-type]


def test_keys_are_exactly_those_asked_for(made: Made) -> None:
    context = made.pair.engine._context  # type: ignore[attr-defined]
    indices = context.cc.GetExistingEvalAutomorphismKeyIndices(made.pair.engine._tag)  # type: ignore[attr-defined]
    assert sorted(indices) == sorted([*(context.rotation_index(r) for r in (1, 2, 3)), 2 * TOY.ring_dimension - 1])


def test_missing_altered_and_foreign_keys_are_refused(made: Made) -> None:
    name = "automorphisms/0000"
    for absent in made.keys:
        with pytest.raises(MissingKeyError, match=absent):
            OpenFHEEngine(LEVELLED, MemoryKeys({n: b for n, b in made.keys.items() if n != absent}))
    altered = bytearray(made.keys[name])
    altered[-100] ^= 1
    with pytest.raises(WireError, match="altered"):
        OpenFHEEngine(LEVELLED, MemoryKeys({**made.keys, name: bytes(altered)}))
    with pytest.raises(WireError, match="not the key called"):
        OpenFHEEngine(LEVELLED, MemoryKeys({**made.keys, name: made.keys["relinearisation"]}))
    more = KeyRequest(params=TOY, rotations=(1, 2, 3, 4))
    with pytest.raises(MissingKeyError, match="rotation by 4"):
        OpenFHEEngine(more, MemoryKeys(made.keys))
    other = dict(OpenFHEKeyring(LEVELLED).evaluation_keys())
    with pytest.raises(WireError, match="another key"):
        OpenFHEEngine(LEVELLED, MemoryKeys({**made.keys, name: other[name]}))


@pytest.mark.parametrize("name", ["relinearisation", "automorphisms/0000"])
def test_hostile_keys_with_right_digests_never_reach_openfhes_parser(made: Made, name: str) -> None:
    """A registered client can seal what it likes; OpenFHE's own parser trusts lengths and types it reads."""

    def refuse(*_: Any) -> None:
        raise AssertionError("OpenFHE was given the bytes")

    tag = made.pair.engine._tag  # type: ignore[attr-defined]
    _, body = unseal(made.keys[name], KEY, TOY.digest, name=name)
    good, n = bytes(body), TOY.ring_dimension

    def hostile() -> Iterator[bytes]:
        yield from (b"", b"\0" * 100, os.urandom(1 << 16), good + bytes(8 * n), good[: -8 * n])
        offset, prime = next(residue_arrays(good, n))
        yield good[:offset] + prime.to_bytes(8, "little") + good[offset + 8 :]

    for bad in hostile():
        header = Header(magic=KEY, level=0, params_digest=TOY.digest, tag=tag, name=name)
        keys = MemoryKeys({**made.keys, name: seal(header, bad)})
        context = made.pair.engine._context  # type: ignore[attr-defined]
        guarded = copy.copy(context)
        guarded.openfhe = SimpleNamespace(
            BINARY=None, Serialize=context.openfhe.Serialize, DeserializeEvalMultKeyString=refuse
        )
        guarded.cc = SimpleNamespace(
            GetAllEvalMultKeys=lambda: {tag: None} if name != "relinearisation" else {},
            DeserializeEvalAutomorphismKey=refuse,
            EvalSub=context.cc.EvalSub,
        )
        with pytest.raises(WireError, match=f"key {name.split('/')[0]}|empty"):
            load_keys(guarded, LEVELLED, keys)


def test_evaluation_keys_repeat_and_hold_no_secret(made: Made) -> None:
    ring = made.pair.ring
    again = dict(ring.evaluation_keys())
    assert again == made.keys
    o = ring._context.openfhe  # type: ignore[attr-defined]
    secret = o.Serialize(ring._secret, o.BINARY)  # type: ignore[attr-defined]
    middle = secret[len(secret) // 2 : len(secret) // 2 + 64]
    for blob in (*again.values(), ring.encrypt(made.pair.real(9), level=8)):
        assert middle not in blob


def test_a_saved_keyring_decrypts_what_the_first_encrypted(made: Made, tmp_path: Path) -> None:
    x = made.pair.real(10)
    blob = made.pair.ring.encrypt(x, level=1)
    made.pair.ring.save(tmp_path / "ring")
    for name in (SECRET_FILE, PUBLIC_FILE):
        assert stat.S_IMODE((tmp_path / "ring" / name).stat().st_mode) == 0o600
    assert looks_secret((tmp_path / "ring" / SECRET_FILE).read_bytes())
    assert not any(looks_secret(key) for key in made.keys.values())
    again = OpenFHEKeyring(LEVELLED, tmp_path / "ring")
    assert bits(again.decrypt(blob), x) > 40
    assert bits(made.pair.ring.decrypt(again.encrypt(x, level=0)), x) > 40
    altered = bytearray((tmp_path / "ring" / SECRET_FILE).read_bytes())
    altered[-1] ^= 1
    (tmp_path / "ring" / SECRET_FILE).write_bytes(bytes(altered))
    with pytest.raises(FileFormatError, match="altered"):
        OpenFHEKeyring(LEVELLED, tmp_path / "ring")
    with pytest.raises(FileFormatError, match="no such key file"):
        OpenFHEKeyring(LEVELLED, tmp_path / "nowhere")


def test_encodings_stay_within_their_budget_and_are_made_once(made: Made) -> None:
    one = 8 * TOY.ring_dimension * 5  # a plaintext at level 2: four limbs and the values
    engine = OpenFHEEngine(LEVELLED, MemoryKeys(made.keys), cache_bytes=2 * one)
    a = made.pair.put(made.pair.real(11), 2)
    calls: list[str] = []

    def counted(name: str, keep: bool = True) -> Vector:
        def make() -> Slots:
            calls.append(name)
            return np.ones(TOY.slots)

        return Vector(name, make, keep)

    for name in ("p", "p", "q", "p", "r", "p", "q", "r"):
        engine.multiply_plain(a, counted(name))
        assert engine._encodings.used <= 2 * one
    assert calls == ["p", "q", "r", "r"]  # what fits stays, r is made each time
    engine.multiply_plain(a, counted("position", keep=False))
    engine.multiply_plain(a, counted("position", keep=False))
    assert calls[-2:] == ["position", "position"]
    engine.multiply_plain(engine.drop(a, 1), counted("p"))
    assert calls[-1] == "p"  # another level, another encoding


def test_threads_change_nothing_but_time(made: Made) -> None:
    x = made.pair.real(12)
    a = made.pair.put(x, 3)
    two = OpenFHEEngine(LEVELLED, MemoryKeys(made.keys), threads=2)
    m = linear_map("threads", {g: {b: np.cos(x * (g + b)) for b in (0, 1, 2)} for g in (0, 2, 3)})
    one = made.pair.engine
    assert one.dump(one.linear(a, m)) == two.dump(two.linear(a, m))
    assert [one.dump(v) for v in one.rotate_many(a, [1, 2, 3])] == [two.dump(v) for v in two.rotate_many(a, [1, 2, 3])]
    pairs = [(a, a)] * 5
    assert one.dump(one.multiply_sum(pairs)) == two.dump(two.multiply_sum(pairs))


def test_options_and_periods_are_checked(made: Made) -> None:
    with pytest.raises(ConfigError, match="threads"):
        OpenFHEEngine(LEVELLED, MemoryKeys(made.keys), threads=0)
    with pytest.raises(ConfigError, match="power of two"):
        OpenFHEKeyring(KeyRequest(params=TOY, rotations=(), bootstrap_periods=(48,)))
    with pytest.raises(MissingKeyError):
        OpenFHEEngine(LEVELLED, ProcessKeys(tag="0" * 32))


# ----- with bootstraps, in a second process -----


SERVER = """
import sys
from pathlib import Path
from heatfhe.engine import KeyRequest, MemoryKeys
from heatfhe.engine.openfhe import OpenFHEEngine
from heatfhe.planning import preset
from heatfhe.errors import MissingKeyError

folder = Path(sys.argv[1])
request = KeyRequest(params=preset("insecure-openfhe-11"), rotations=(1,), bootstrap_periods=(16,))
keys = MemoryKeys({p.name.replace("_", "/"): p.read_bytes() for p in (folder / "keys").iterdir()})
engine = OpenFHEEngine(request, keys)
assert not [m for m in sys.modules if m.startswith("heatfhe.client")]
a = engine.parse((folder / "in").read_bytes())
# A bootstrap nobody set up must be an error, never a segmentation fault; a key made for bootstraps is no rotation key.
for step in (
    lambda: engine.bootstrap(a, period=8, bound=1.0),
    lambda: engine.bootstrap_pair(a, a, period=1024, bound=1.0),
    lambda: engine.rotate(a, 3),
):
    try:
        step()
    except MissingKeyError:
        continue
    sys.exit("a step without keys was not refused")
out = engine.rotate(engine.bootstrap(a, period=16, bound=2.0), 1)
(folder / "out").write_bytes(engine.dump(engine.multiply(out, out)))
"""


def test_a_second_process_computes_from_public_things_alone(tmp_path: Path) -> None:
    request = KeyRequest(params=TOY, rotations=(1,), bootstrap_periods=(16,))
    ring = OpenFHEKeyring(request)
    (tmp_path / "keys").mkdir()
    for name, blob in ring.evaluation_keys():
        (tmp_path / "keys" / name.replace("/", "_")).write_bytes(blob)
    x = np.tile(np.random.default_rng(13).uniform(-2, 2, 16), TOY.slots // 16)
    (tmp_path / "in").write_bytes(ring.encrypt(x, level=0))
    done = subprocess.run([sys.executable, "-c", SERVER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bits(ring.decrypt((tmp_path / "out").read_bytes()), np.roll(x, -1) ** 2) > TOY.promised_bits - 3


def test_a_fresh_value_comes_back_refreshed_at_the_planned_level_and_no_higher() -> None:
    request = KeyRequest(params=TOY, rotations=(), bootstrap_periods=(1, 8))
    ring = OpenFHEKeyring(request)
    pair = Pair(ring, OpenFHEEngine(request, ring.process_keys()))
    constant = pair.engine.bootstrap(pair.put(np.full(TOY.slots, 0.6), 0), period=1, bound=1.0)
    assert bits(pair.get(constant), np.full(TOY.slots, 0.6)) > TOY.promised_bits + 4  # one slot: a finer correction
    x = pair.periodic(14, 8)
    got = pair.engine.bootstrap(pair.put(x, TOY.levels), period=8, bound=1.0)
    error = np.abs(pair.get(got) - x).max()
    assert pair.engine.level(got) == TOY.levels
    assert 2.0**-34 < error < 2.0**-TOY.promised_bits  # noisier than a fresh value: it did go through a bootstrap
    for bound in (0.01, 1.3):  # precision is relative to the bound, whole or not
        got = pair.engine.bootstrap(pair.put(bound * x, 0), period=8, bound=bound)
        assert bits(pair.get(got) / bound, x) > TOY.promised_bits + 2  # few slots: finer than the promise
    with pytest.raises(MissingKeyError):  # its key exists, for the bootstrap; the plan does not list it
        pair.engine.rotate(got, 1)
    for bound in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(EngineError, match="bound"):
            pair.engine.bootstrap(got, period=8, bound=bound)


def test_the_self_test_meets_the_promise() -> None:
    assert self_test() >= TOY.promised_bits

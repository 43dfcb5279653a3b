# SPDX-License-Identifier: Apache-2.0
"""What the engine and the keyring of OpenFHE share: the library, a context made from Params, levels, wire form.

OpenFHE counts levels spent, we count levels left; the conversion is here and nowhere else. Evaluation keys and contexts
are global to a process there: one tenant per worker process.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.engine.openfhe.wire import CIPHERTEXT, Header, Layout, seal, unseal
from heatfhe.engine.protocol import KeyRequest, Slots
from heatfhe.errors import ConfigError, EngineError, MissingExtraError, WireError
from heatfhe.planning import bootstrap_budget

Ciphertext = Any  # openfhe.Ciphertext: the binding has no type stubs

# Mirror of state that OpenFHE itself keeps per process: equal parameters give the same context object, and setting a
# bootstrap up without tables would take them from an engine that has them. (params digest, period) -> tables are there.
_SET_UP: dict[tuple[str, int], bool] = {}
_SET_UP_LOCK = threading.Lock()

# The part of the correction that OpenFHE applies itself. It is global to a context (the last set-up wins), so it is the
# same small number for every period, at least first - scale bits; the engine folds the rest into its own scaling.
BASE_CORRECTION = 2

HOW_TO_LOAD = (
    "the openfhe wheel holds one extension only: version 1.6.1.0.22.4 loads on Python 3.10 (glibc 2.34 or later), "
    "1.6.1.0.24.4 on Python 3.12 (glibc 2.38 or later); any other Python needs a build from source"
)


def load_openfhe() -> Any:
    """The openfhe module; MissingExtraError if absent, EngineError with the way out if installed and unable to load."""
    try:
        module = importlib.import_module("openfhe")
    except ModuleNotFoundError as err:
        if err.name == "openfhe":
            raise MissingExtraError("openfhe", needed_by="the openfhe engine") from err
        raise EngineError(f"openfhe is installed but has no extension for this Python ({err}); {HOW_TO_LOAD}") from err
    except (ImportError, OSError) as err:
        raise EngineError(f"openfhe is installed but cannot load ({err}); {HOW_TO_LOAD}") from err
    if module.get_native_int() != 64:
        raise EngineError("this build of openfhe has no 64-bit words; install the wheel of openfhe 1.6.x")
    # Contexts inside serialised objects are only compared with the one we made: their tables are not needed.
    module.DisablePrecomputeCRTTablesAfterDeserializaton()
    return module


def set_openmp_threads(module: Any, threads: int) -> None:
    """OpenMP threads of OpenFHE for regions started by the calling thread. Best effort: the wheel's own libgomp."""
    library = Path(module.__file__).parent / "lib" / "libgomp.so"
    if library.exists():
        ctypes.CDLL(str(library)).omp_set_num_threads(int(threads))


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn what OpenFHE throws into an EngineError that names the step."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as err:
        reason = str(err).strip().splitlines()[0].rsplit("():", 1)[-1].strip() if str(err) else type(err).__name__
        raise EngineError(f"openfhe refused to {what}: {reason}") from err


def _chain(o: Any, params: Params) -> tuple[Any, dict[str, Any]]:
    """What OpenFHE makes a context of: a set's secret and chain; and the set's literal."""
    if params.engine != "openfhe":
        raise ConfigError(f"{params.name} is a set of the {params.engine} engine; give OpenFHE one of its own")
    literal = dict(params.literal)
    p = o.CCParamsCKKSRNS()
    p.SetSecretKeyDist(o.SPARSE_ENCAPSULATED if literal["encapsulated"] else o.SPARSE_TERNARY)
    p.SetScalingModSize(int(literal["scale_bits"]))
    p.SetFirstModSize(int(literal["first_bits"]))
    p.SetScalingTechnique(o.FLEXIBLEAUTO)
    p.SetMultiplicativeDepth(int(literal["depth"]))
    p.SetNumLargeDigits(int(literal["digits"]))
    return p, literal


def ring_dimension_asked(params: Params) -> int:
    """The smallest ring OpenFHE itself takes for a set's chain and secret at its level HEStd_128_classic.

    It needs the openfhe extra, makes no keys, and takes about as long as opening the engine.
    """
    o = load_openfhe()
    p, _ = _chain(o, params)
    p.SetSecurityLevel(o.HEStd_128_classic)
    with refusals(f"judge {params.name}"):
        return int(o.GenCryptoContext(p).GetRingDimension())


class Context:
    """An OpenFHE context for one parameter set, with our level convention and wire form."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.openfhe = o = load_openfhe()
        p, literal = _chain(o, params)
        self.depth = int(literal["depth"])
        self.slots = params.slots
        budget = int(literal["budget"])
        needed = int(o.CryptoContext.GetBootstrapDepth([budget, budget], p.GetSecretKeyDist()))
        if needed != int(literal["bootstrap_depth"]):
            raise EngineError(
                f"{params.name}: this OpenFHE spends {needed} levels in a bootstrap, the set counts on "
                f"{literal['bootstrap_depth']}; install openfhe 1.6.x"
            )
        # OpenFHE's own table is asked as well where a set claims anything; it knows no attack on sparse secrets.
        p.SetSecurityLevel(o.HEStd_128_classic if params.security_bits else o.HEStd_NotSet)
        p.SetRingDim(params.ring_dimension)
        p.SetBatchSize(self.slots)
        p.SetCKKSDataType(o.COMPLEX)
        with refusals(f"make a context for {params.name}"):
            self.cc = o.GenCryptoContext(p)
            for feature in (o.PKE, o.KEYSWITCH, o.LEVELEDSHE, o.ADVANCEDSHE, o.FHE):
                self.cc.Enable(feature)
        self.scales = [float(self.cc.GetScalingFactorReal(spent)) for spent in range(self.depth)]
        self._zeros: dict[int, tuple[Ciphertext, Layout]] = {}
        self._throwaway: Any = None

    # ----- levels -----

    def spent(self, level: int) -> int:
        """OpenFHE's level for ours."""
        return self.depth - 1 - level

    def limbs(self, level: int) -> int:
        """Primes under a value at this level."""
        return level + 2

    def level(self, a: Ciphertext) -> int:
        """Our level of a value in canonical form."""
        return self.depth - 1 - int(a.GetLevel())

    def scale(self, level: int) -> float:
        """Canonical scaling factor at a level."""
        return self.scales[self.spent(level)]

    # ----- plaintexts, rotations, bootstraps -----

    def encode(self, values: Slots | complex, level: int) -> Any:
        """A plaintext at this level: a full vector, or one number in every slot."""
        array = np.asarray(values)
        if array.ndim == 0:
            array = np.full(self.slots, array)
        if array.shape != (self.slots,):
            raise EngineError(f"a slot vector has shape ({self.slots},), got {array.shape}; tile it to full slots")
        array = np.ascontiguousarray(array, dtype=np.complex128)
        if not np.isfinite(array).all():
            raise EngineError(
                "a plaintext holds a value that is not finite; look for a division by zero where it is made"
            )
        with refusals("encode a plaintext"):
            plain = self.cc.MakeCKKSPackedPlaintext(array, 1, self.spent(level), None, self.slots)
            plain.SetFormat(self.openfhe.EVALUATION)  # now, not at first use: threads share it
        return plain

    def rotation(self, by: int) -> int:
        """A rotation as the non-negative number below slots that it is."""
        return by % self.slots

    def rotation_index(self, by: int) -> int:
        """The Galois element of a rotation."""
        return pow(5, self.rotation(by), 2 * self.params.ring_dimension)

    @property
    def conjugation_index(self) -> int:
        """The Galois element of the conjugation."""
        return 2 * self.params.ring_dimension - 1

    def check_request(self, request: KeyRequest) -> None:
        """Refuse periods no bootstrap can have."""
        for period in request.bootstrap_periods:
            if period < 1 or period > self.slots or period & (period - 1):
                raise ConfigError(
                    f"a bootstrap period is a power of two from 1 to {self.slots}, got {period}; round it up"
                )

    def bootstrap_slots(self, period: int) -> int:
        """Slots of the bootstrap of a period: OpenFHE's smallest has two."""
        return max(2, period)

    def set_up_bootstrap(self, period: int, *, tables: bool) -> None:
        """Prepare bootstraps of a period; an engine needs their tables, a keyring does not.

        Tables do not travel with keys, and a bootstrap that lacks them ends the process with a segmentation fault.
        """
        slots = self.bootstrap_slots(period)
        key = self.params.digest, slots
        with _SET_UP_LOCK:
            if _SET_UP.get(key, False) or (key in _SET_UP and not tables):
                return
            budget = bootstrap_budget(self.params, slots)
            with refusals(f"set up a bootstrap of {slots} slots"):
                self.cc.EvalBootstrapSetup([budget, budget], [0, 0], slots, BASE_CORRECTION, tables, False)
            _SET_UP[key] = tables

    # ----- wire -----

    def _zero(self, level: int, tag: str) -> tuple[Ciphertext, Layout]:
        """A ciphertext of zeros in this process's own context, and where its residues stand."""
        if level not in self._zeros:
            # A pair made to be thrown away: nothing is ever encrypted under it but this zero, nor decrypted.
            if self._throwaway is None:
                self._throwaway = self.cc.KeyGen().publicKey
            fresh = self.cc.Encrypt(self._throwaway, self.encode(0.0, level))
            zero = self.cc.EvalSub(fresh, fresh)
            layout = Layout.learn(
                self.openfhe.Serialize(zero, self.openfhe.BINARY), self.params.ring_dimension, self.limbs(level)
            )
            self._zeros[level] = zero, layout
        zero, layout = self._zeros[level]
        if zero.GetKeyTag() != tag:
            zero.SetKeyTag(tag)
        return zero, layout

    def moduli(self, tag: str) -> NDArray[np.uint64]:
        """Every prime of a full ciphertext, the special ones of key switching apart."""
        _, layout = self._zero(self.depth - 1, tag)
        return layout.moduli[: layout.limbs]

    def dump(self, a: Ciphertext) -> bytes:
        """Wire form of a value in canonical form."""
        level, tag = self.level(a), str(a.GetKeyTag())
        _, layout = self._zero(level, tag)
        payload = layout.take(self.openfhe.Serialize(a, self.openfhe.BINARY))
        header = Header(magic=CIPHERTEXT, level=level, params_digest=self.params.digest, tag=tag)
        return seal(header, payload)

    def parse(self, blob: bytes, tag: str) -> Ciphertext:
        """Inverse of dump for values under this key."""
        header, payload = unseal(blob, CIPHERTEXT, self.params.digest, tag=tag)
        if header.level > self.params.levels:
            raise WireError(
                f"a ciphertext at level {header.level}; this parameter set has levels 0 to {self.params.levels}"
            )
        zero, layout = self._zero(header.level, tag)
        serialised = layout.put(payload, self.openfhe.Serialize(zero, self.openfhe.BINARY))
        with refusals("read a ciphertext"):
            parsed = self.openfhe.DeserializeCiphertextString(serialised, self.openfhe.BINARY)
            # A parsed ciphertext holds parameters of its own and is thirty times slower to copy; a sum holds ours.
            value = self.cc.EvalAdd(zero, parsed)
        self.check_canonical(value, "parse")
        return value

    def check_canonical(self, a: Ciphertext, step: str) -> int:
        """The level of a value, after making sure it is one of ours: degree one, two parts, full slots."""
        level = self.level(a)
        degree, parts, slots = int(a.GetNoiseScaleDeg()), int(a.NumberCiphertextElements()), int(a.GetSlots())
        if degree != 1 or parts != 2 or slots != self.slots or not 0 <= level < self.depth:
            raise EngineError(
                f"{step}: a value of scale degree {degree}, {parts} parts, {slots} slots at level {level} was not made "
                f"by this engine, whose values have degree 1, 2 parts and {self.slots} slots"
            )
        return level

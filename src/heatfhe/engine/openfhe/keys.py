# SPDX-License-Identifier: Apache-2.0
"""Evaluation keys of the OpenFHE engine: sealed blobs, checked, then read into this process by OpenFHE itself; each
requested one is accounted for."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from heatfhe.engine.openfhe.context import Context, refusals
from heatfhe.engine.openfhe.wire import KEY, check_keys, unseal
from heatfhe.engine.protocol import KeyRequest, KeySource
from heatfhe.errors import EngineError, MissingKeyError, WireError

SPARSE_ARRAYS = 8  # at most, of the one key of another shape: that under the sparse secret of bootstrapping


@dataclass(frozen=True, slots=True)
class ProcessKeys:
    """Evaluation keys a keyring made in this very process: OpenFHE's key maps are global, so the tag is enough."""

    tag: str

    def names(self) -> Iterable[str]:
        """Nothing to read."""
        return ()

    def read(self, name: str) -> bytes:
        """Nothing to read."""
        raise MissingKeyError(f"keys of this process are not read by name, asked for {name!r}")


def needs_automorphisms(request: KeyRequest) -> bool:
    """Whether a request has any key but the relinearisation key."""
    return bool(request.rotations or request.conjugation or request.bootstrap_periods)


def load_keys(context: Context, request: KeyRequest, keys: KeySource) -> str:
    """Read the requested keys into this process; returns their tag."""
    if isinstance(keys, ProcessKeys):
        _check_present(context, request, keys.tag)
        return keys.tag
    have = set(keys.names())
    pieces = sorted(have - {"relinearisation"})
    expected = [f"automorphisms/{i:04d}" for i in range(max(len(pieces), int(needs_automorphisms(request))))]
    missing = sorted(({"relinearisation"} | set(expected)) - have)
    if missing:
        raise MissingKeyError(f"the key set lacks {', '.join(missing)}; make and upload all keys of this plan")
    o, cc = context.openfhe, context.cc
    tag, body = _open(context, keys, "relinearisation", None)
    ring, moduli = context.params.ring_dimension, context.moduli(tag)
    literal = dict(context.params.literal)
    each = check_keys(body, ring, moduli, "relinearisation", digits=int(literal["digits"]))
    sparse = SPARSE_ARRAYS if request.bootstrap_periods and literal["encapsulated"] else 0
    if tag not in cc.GetAllEvalMultKeys():  # there already if the keyring or an earlier engine lives here
        with refusals("load the relinearisation key"):
            o.DeserializeEvalMultKeyString(body, o.BINARY)
    if expected:
        with tempfile.TemporaryDirectory(prefix="heatfhe-") as folder:
            path = Path(folder) / "keys"
            with path.open("wb") as f:
                for name in expected:
                    f.write(_open(context, keys, name, tag)[1])
            if path.stat().st_size == 0:
                raise WireError("the automorphism keys are empty; make and upload all keys of this plan")
            with path.open("rb") as r, mmap.mmap(r.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                count = check_keys(whole, ring, moduli, "automorphisms")
            if count < each or count % each > sparse:
                raise WireError(f"key automorphisms: {count} residue arrays are no whole number of keys of {each}")
            with refusals("load the automorphism keys"):
                if not cc.DeserializeEvalAutomorphismKey(str(path), o.BINARY):
                    raise EngineError("the automorphism keys do not load; make them again")
    _check_present(context, request, tag)
    return tag


def _check_present(context: Context, request: KeyRequest, tag: str) -> None:
    """Every key of the request is in this process, under this tag."""
    cc = context.cc
    if tag not in cc.GetAllEvalMultKeys():
        raise MissingKeyError("the relinearisation key belongs to another key pair; make the keys again")
    turns = sorted({context.rotation(r) for r in request.rotations})
    wanted = {f"rotation by {r}": context.rotation_index(r) for r in turns}
    if request.conjugation or request.bootstrap_periods:
        wanted["conjugation"] = context.conjugation_index
    if not wanted:
        return
    with refusals("find the automorphism keys"):
        present = set(cc.GetExistingEvalAutomorphismKeyIndices(tag))
    lacking = [name for name, index in wanted.items() if index not in present]
    if lacking:
        raise MissingKeyError(f"the key set lacks {', '.join(lacking)}; make and upload all keys of this plan")


def _open(context: Context, keys: KeySource, name: str, tag: str | None) -> tuple[str, bytes]:
    header, body = unseal(keys.read(name), KEY, context.params.digest, tag=tag, name=name)
    return header.tag, bytes(body)

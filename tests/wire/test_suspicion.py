# SPDX-License-Identifier: Apache-2.0
"""The guard against secret keys in uploads: every plain form of a ternary secret is caught, real keys pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.wire import looks_secret, name_is_secret

Q = 2147352577


def ternary(seed: int, n: int = 2048) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, 2, size=n)


def two_bits(s: np.ndarray) -> bytes:
    codes = (s + 1).astype(np.uint8).reshape(-1, 4)
    return (codes[:, 0] | codes[:, 1] << 2 | codes[:, 2] << 4 | codes[:, 3] << 6).astype(np.uint8).tobytes()


FORMS = {
    "int8": lambda s: s.astype(np.int8).tobytes(),
    "int32": lambda s: s.astype("<i4").tobytes(),
    "int64": lambda s: s.astype("<i8").tobytes(),
    "float64": lambda s: s.astype("<f8").tobytes(),
    "modulo": lambda s: (s % Q).astype("<u4").tobytes(),
    "modulo64": lambda s: (s % Q).astype("<u8").tobytes(),
    "packed": two_bits,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(5))
def test_a_ternary_secret_is_caught_in_every_plain_form(form: str, seed: int) -> None:
    data = FORMS[form](ternary(seed))
    assert looks_secret(data)
    if form != "packed":
        assert looks_secret(b"HEADER.." * 4 + data)


@given(seed=st.integers(0, 2**32), size=st.integers(300, 5000))
def test_uniform_bytes_pass(seed: int, size: int) -> None:
    assert not looks_secret(np.random.default_rng(seed).bytes(size))


def test_uniform_residues_with_a_header_pass() -> None:
    rng = np.random.default_rng(5)
    body = rng.integers(0, Q, size=8192).astype("<u4").tobytes()
    assert not looks_secret(body)
    assert not looks_secret(b'{"kind": "rotation", "galois": 25}' + body)
    assert not looks_secret(b"clear")


@pytest.mark.parametrize("mark", [b"HEATFHE-SECRET", b"-----BEGIN PRIVATE KEY-----", b"lbcrypto::PrivateKeyImpl"])
def test_marks_of_secret_files_are_caught(mark: bytes) -> None:
    assert looks_secret(mark + np.random.default_rng(1).bytes(1000))


@pytest.mark.parametrize("name", ["secret", "sk", "my-secret-key", "private_key", "Secret.key", "eval/sk", "privkey"])
def test_names_of_secrets_are_caught(name: str) -> None:
    assert name_is_secret(name)


@pytest.mark.parametrize("name", ["rotation-3", "relinearisation", "conjugation", "task", "mask-1", "sparse-to-dense"])
def test_names_of_evaluation_keys_pass(name: str) -> None:
    assert not name_is_secret(name)

# SPDX-License-Identifier: Apache-2.0
"""The client's side of the wall: secret randomness, secret keys, key generation, encryption, decryption."""

from heatfhe.ckks.archive import SECRET, seal, unseal
from heatfhe.ckks.secret.keygen import KeepsSecret, KeyMaker, SecretKey, make_secret
from heatfhe.ckks.secret.source import OsSource, SecretSource

__all__ = [
    "SECRET",
    "KeepsSecret",
    "KeyMaker",
    "OsSource",
    "SecretKey",
    "SecretSource",
    "make_secret",
    "seal",
    "unseal",
]

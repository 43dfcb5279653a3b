# SPDX-License-Identifier: Apache-2.0
"""Blobs of the native engine in format version 1, as released: the goldens are of it, and it must stay readable."""

from __future__ import annotations

import hashlib

from heatfhe.ckks.archive import DIGEST, HEADER, MAGIC


def as_version_1(blob: bytes, params_hash: bytes) -> bytes:
    """The same body in the container of format version 1."""
    _, _, kind, zero, _, length = HEADER.unpack_from(blob)
    whole = HEADER.pack(MAGIC, 1, kind, zero, params_hash, length) + blob[HEADER.size : -DIGEST]
    return whole + hashlib.sha256(whole).digest()

# SPDX-License-Identifier: Apache-2.0
"""Does an upload look like a secret key? A guard against accidents: a server wants no bytes it must not have.

It knows the forms a secret takes when a client errs: our own secret files, named or serialised private keys of other
tools, and ternary polynomials in any plain encoding. It cannot know a secret in evaluation form, which looks random;
that the client never sends one is the client's own test.
"""

from __future__ import annotations

import re

import numpy as np

_NAMES = re.compile(r"(?:^|[^a-z])(?:secret|private|sk|privkey|secretkey|privatekey)(?:$|[^a-z])", re.IGNORECASE)
_MARKS = (
    b"HEATCK32\x01\x00\x04\x00",
    b"HEATFHE-SECRET",
    b"heatfhe-secret",
    b"PrivateKey",
    b"SecretKey",
    b"secret_key",
    b"PRIVATE KEY-----",
)
_SAMPLE = 1 << 16
_LEAST = 256


def name_is_secret(name: str) -> bool:
    """Whether a key's name says that it is a secret."""
    return _NAMES.search(name) is not None


def looks_secret(data: bytes) -> bool:
    """Whether bytes look like a secret key: a mark of a known format, or a polynomial with coefficients -1, 0, 1."""
    head = data[:_SAMPLE]
    if any(mark in head for mark in _MARKS):
        return True
    # A ternary polynomial may follow a short header: look at the end of the sample as well as at its start.
    return any(_is_ternary(part) for part in (head, head[-(len(head) // 2 // 8 * 8) :]) if len(part) >= _LEAST)


def _is_ternary(data: bytes) -> bool:
    if len(set(data)) == 1:
        return True  # one byte repeated: an all-zero polynomial, which is no key at all
    for dtype in ("<u1", "<u4", "<u8", "<f4", "<f8"):
        words = np.frombuffer(data[: len(data) // 8 * 8], dtype)
        if words.size < _LEAST // 8:
            continue
        values = np.unique(words[:4096])
        if values.size <= 3 and words.size >= 64 and (dtype == "<u1" or 0 in values):
            return True
    # Two bits per coefficient: one of the four codes never occurs, which chance gives 4 * 0.75^1024 at this length.
    octets = np.frombuffer(data, np.uint8)
    codes = np.stack([(octets >> shift) & 3 for shift in (0, 2, 4, 6)])
    return bool(np.unique(codes).size <= 3)

# SPDX-License-Identifier: Apache-2.0
"""Where secret randomness comes from: the operating system, stretched by SHAKE256, and nowhere else."""

from __future__ import annotations

import hashlib
import os
from typing import Protocol, final

TAG = b"heatfhe/ckks32/v1/secret"


class SecretSource(Protocol):
    """Unpredictable bytes. The library has one implementation, backed by the operating system."""

    def take(self, count: int) -> bytes:
        """Fresh bytes, never the same twice."""


@final
class OsSource:
    """Each call draws a new 32-byte seed from the operating system and returns SHAKE256(tag, seed). No state."""

    __slots__ = ()

    def take(self, count: int) -> bytes:
        return hashlib.shake_256(TAG + os.urandom(32)).digest(count)

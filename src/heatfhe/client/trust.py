# SPDX-License-Identifier: Apache-2.0
"""What a client checks before it makes keys: the server's parameters against its own security table."""

from __future__ import annotations

import math
from typing import Any

from heatfhe.ckks import Params
from heatfhe.engine import key_request
from heatfhe.errors import ConfigError
from heatfhe.planning import presets
from heatfhe.wire import ModelConfig

ENGINES = ("clear", "native", "openfhe")


def check_config(config: ModelConfig, *, insecure: bool = False, simulate: bool = False) -> None:
    """Refuse a configuration that would not protect the prompt.

    The table is this installation's own (ckks/params.py), never the server's word; a keyring computes log2 QP of the
    primes it really uses and checks that again.
    """
    if config.engine not in ENGINES:
        raise ConfigError(
            f"{config.model}: unknown engine {config.engine!r}; upgrade heatfhe, have {', '.join(ENGINES)}"
        )
    if config.engine == "clear" and not simulate:
        raise ConfigError(
            f"{config.model}: this server only simulates; your prompt would NOT be encrypted. Use another server, or "
            "allow it for a trial with --simulate"
        )
    if config.params.security_bits < 128 and not (insecure or simulate):
        short = "less than the 128 bits wanted" if config.params.security_bits else "your prompt would not be safe"
        raise ConfigError(
            f"{config.model}: {config.params.name}: {config.params.security_claim}; {short}. "
            "Use another server, or allow it for a trial with --insecure"
        )
    key_request(config)  # refuses keys for levels that the set does not have


def trusted_bits(params: Params) -> float:
    """Bits of a decrypted number that the client uses: the smaller of the server's promise and its own for that set.

    A set is ours when everything a key or a ciphertext depends on is equal; its name proves nothing. One that is not
    ours is trusted with the least that any of ours of its engine promises. Rounding to more bits than are true would
    keep noise, which depends on the secret key.
    """
    known, wanted = presets().values(), _binding(params)
    same = [p.promised_bits for p in known if _binding(p) == wanted]
    near = [p.promised_bits for p in known if p.engine == params.engine]
    own = min(same or near or [p.promised_bits for p in known])
    claimed = params.promised_bits
    finite = isinstance(claimed, (int, float)) and abs(claimed) < math.inf
    return max(0.0, min(own, claimed)) if finite else own


def _binding(params: Params) -> dict[str, Any]:
    """A set without its name and its measured figures."""
    return {k: v for k, v in params.as_json().items() if k not in ("name", "noise", "promised_bits", "window")}

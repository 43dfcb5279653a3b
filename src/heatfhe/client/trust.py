# SPDX-License-Identifier: Apache-2.0
"""What a client checks before it makes keys: the server's parameters against its own security table."""

from __future__ import annotations

from heatfhe.engine import KeyRequest
from heatfhe.errors import ConfigError
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
        raise ConfigError(
            f"{config.model}: {config.params.name}: {config.params.security_claim}; your prompt would not be safe. "
            "Use another server, or allow it for a trial with --insecure"
        )


def key_request(config: ModelConfig) -> KeyRequest:
    """Exactly the keys the plan needs."""
    return KeyRequest(
        params=config.params,
        rotations=config.rotations,
        conjugation=config.conjugation,
        bootstrap_periods=config.bootstrap_periods,
    )

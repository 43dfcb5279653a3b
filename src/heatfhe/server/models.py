# SPDX-License-Identifier: Apache-2.0
"""A served model: its public configuration, the bundle a client needs, and the files its workers open."""

from __future__ import annotations

from dataclasses import dataclass

from heatfhe.errors import ConfigError
from heatfhe.server.settings import ModelSource, Settings
from heatfhe.wire import ModelConfig

ENGINES = ("clear", "native", "openfhe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What is served: ``source`` is for its workers, the rest for clients."""

    config: ModelConfig
    bundle: bytes
    source: ModelSource

    @property
    def parts(self) -> int:
        """Ciphertexts that hold one number per word."""
        return int(self.config.layout["vocabulary"]["parts"])

    @property
    def image(self) -> int:
        """Ciphertexts that the rows of an image come in; 0 of a model of text."""
        return int(self.config.layout.get("image", {"blocks": 0})["blocks"])

    @property
    def prefill(self) -> tuple[int, int]:
        """The most tokens that a prompt may bring at once, and the ciphertexts they come in."""
        packed = self.config.layout.get("prefill", {"tokens": 0, "blocks": 0})
        places = packed["tokens"] * packed["blocks"] - packed.get("first", 0)
        return min(self.config.context, places), packed["blocks"]


def admit(model: ServedModel, settings: Settings) -> None:
    """Refuse what this server was not told to serve: toy parameters, or an engine that encrypts nothing."""
    config = model.config
    if config.engine not in ENGINES:
        raise ConfigError(
            f"{config.model}: {config.params.name} is for {config.engine}, which this release cannot run; "
            f"plan for one of {', '.join(ENGINES)}"
        )
    if config.engine == "clear" and not settings.simulate:
        raise ConfigError(f"{config.model}: the clear engine encrypts nothing; serve it only with --simulate")
    if config.params.security_bits < 128 and not (settings.insecure or settings.simulate):
        raise ConfigError(
            f"{config.model}: {config.params.name} has {config.params.security_claim}; "
            "plan with a 128-bit set, or pass --insecure for a demonstration"
        )

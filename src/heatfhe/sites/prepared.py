# SPDX-License-Identifier: Apache-2.0
"""A prepared model: the user's own model with its nonlinearities swapped for sites, their counts and distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from heatfhe.errors import ConfigError, DataError, SiteError
from heatfhe.halting import GAMMA, HaltingTable
from heatfhe.models import Architecture, fingerprint, model_folder
from heatfhe.records import FAMILIES, Calibration, Site
from heatfhe.sites.activation import ActivationSite
from heatfhe.sites.attention import AttentionSite
from heatfhe.sites.guards import RangeBounds
from heatfhe.sites.norm import NormSite
from heatfhe.sites.switch import Mode, Switch, Tap
from heatfhe.stages import Activation, Grid, Patches, sites

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """Options of ``prepare``.

    ``max_counts``  largest count by family, where the family's own is too small (it is never lowered). Adopting a
                    calibration raises it further, to one above the largest calibrated count of the family.
    ``gamma``       slope of the ramp the halting logits start on.
    ``prefix``      public tokens in front of every sequence. Their own positions are computed exactly, in no domain.
    """

    max_counts: Mapping[str, int] = field(default_factory=dict)
    gamma: float = GAMMA
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for family, top in self.max_counts.items():
            if family not in FAMILIES:
                raise ConfigError(f"unknown family {family!r}; have {', '.join(FAMILIES)}")
            if top < FAMILIES[family].floor:
                raise ConfigError(f"{family}: max_count {top} lies below its floor {FAMILIES[family].floor}")
        if not self.gamma > 0.0:
            raise ConfigError(f"gamma must be above 0, got {self.gamma:g}")


class Prepared(nn.Module):
    """Owns a model whose norms, attentions and activations are sites. Made by ``prepare``, undone by ``restore``.

    Modes. ``exact``: the original nonlinearities, watched or bounded if asked. ``training``: analytic activation and
    exponential, solvers at soft (expected) or hard counts, guards on. ``deployed``: fitted polynomials, hard counts, no
    guards; what a Circuit computes. The last two need a calibration (``adopt``).
    """

    def __init__(self, model: nn.Module, architecture: Architecture, config: PrepareConfig) -> None:
        super().__init__()
        self.model, self.architecture, self.config = model, architecture, config
        self.calibration: Calibration | None = None
        self.switch = Switch()
        self.halting = HaltingTable(sites(architecture.stages, config.max_counts), gamma=config.gamma)
        self.halting.to(next(model.parameters()).device)
        # Where the sites look the table up: a list of one, so that a new table reaches them and none of them owns it.
        self._table = [self.halting]
        shape = architecture.shape
        if len(config.prefix) >= shape.context or any(not 0 <= token < shape.vocabulary for token in config.prefix):
            raise ConfigError(
                f"prefix: {len(config.prefix)} public tokens, of a vocabulary of {shape.vocabulary}, must leave room "
                f"in a context of {shape.context}; shorten it, or use the model's own tokenizer"
            )
        if config.prefix and self.grid is not None:
            raise ConfigError(f"prefix: an image has no public tokens in front, got {len(config.prefix)}; leave it out")
        front = torch.tensor(config.prefix, dtype=torch.long, device=next(model.parameters()).device)
        self.register_buffer("front", front, persistent=False)

    def __repr__(self) -> str:
        counts = (
            "not calibrated"
            if self.calibration is None
            else f"{sum(self.calibration.iterations().values())} iterations"
        )
        return f"Prepared({self.architecture.kind}, {len(self.sites)} sites, {counts}, mode {self.mode})"

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Prepared:
        """A checkpoint that was saved prepared, with its counts and domains: its folder, or its name on the hub.

        >>> Prepared.from_pretrained("somebody/stories-heat-checkpoint")          # doctest: +SKIP
        """
        from heatfhe.sites.sidefile import load_prepared

        return load_prepared(model_folder(name))

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None, tokenizer: Any = None) -> str:
        """Publish the checkpoint, its tokenizer and its side file as a model of the Hugging Face hub, made if need be.

        Anyone loads it as the plain checkpoint that it is; ``from_pretrained`` with its counts and domains too.

        >>> prepared.push_to_hub("somebody/stories-heat-checkpoint", private=True)     # doctest: +SKIP
        """
        from heatfhe.sites.sidefile import push_prepared

        return push_prepared(self, name, private=private, token=token, tokenizer=tokenizer)

    @property
    def grid(self) -> Grid | None:
        """How images are cut, where the model classifies images; None of one that reads text."""
        start = self.architecture.stages[0]
        return start.grid if isinstance(start, Patches) else None

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site, in depth order."""
        return self.halting.sites

    @property
    def mode(self) -> Mode:
        """The mode in force."""
        return self.switch.mode

    def set_mode(
        self,
        mode: Mode,
        *,
        halting: Literal["soft", "hard"] = "soft",
        guards: bool | None = None,
        bounds: RangeBounds | None = None,
        push: float = 1e-4,
    ) -> None:
        """Turn the model to a mode. Guards default to on while training; ``bounds`` turns the range terms on."""
        if mode not in ("exact", "training", "deployed"):
            raise ConfigError(f"unknown mode {mode!r}; have: exact, training, deployed")
        if mode != "exact" and self.calibration is None:
            raise ConfigError(f"mode {mode!r} needs fitted constants; calibrate, then adopt the result")
        if mode == "deployed" and (guards or bounds is not None):
            raise ConfigError("a deployed model has no guards and no range terms: an encrypted circuit cannot compare")
        self.switch.mode = mode
        self.switch.soft = halting == "soft" and mode == "training"
        self.switch.guards = mode == "training" if guards is None else guards
        self.switch.bounds, self.switch.push = bounds, push

    def adopt(
        self, calibration: Calibration, *, keep_logits: bool = False, max_counts: Mapping[str, int] | None = None
    ) -> None:
        """Take over a calibration's constants and counts, and start the halting logits on their ramp.

        The largest count of a family becomes one above its largest calibrated count where that is more. ``keep_logits``
        keeps the distributions (a re-fit after training): the counts must then fit their supports. ``max_counts`` by
        site stand instead: those of a saved table, or a site's own where a family's would start it too far up.
        """
        missing = {site.name for site in self.sites} - set(calibration.counts())
        activations = [stage.name for stage in self.architecture.of(Activation)]
        if missing or set(calibration.activations) != set(activations):
            name = sorted(missing)[0] if missing else sorted({*activations} ^ {*calibration.activations})[0]
            raise SiteError(name, "is not in this calibration; it belongs to another model")
        if calibration.prefix != self.config.prefix:
            raise ConfigError(
                f"this calibration was made behind a prefix of {len(calibration.prefix)} tokens, the model is prepared "
                f"with {len(self.config.prefix)} others; calibrate again"
            )
        if not keep_logits:
            tops = dict(self.config.max_counts)
            for site in self.sites:
                tops[site.family] = max(tops.get(site.family, 0), calibration.counts()[site.name] + 1)
            found = sites(self.architecture.stages, tops)
            if max_counts is not None:
                found = tuple(replace(site, max_count=max_counts[site.name]) for site in found)
            device = next(self.model.parameters()).device
            self.halting = HaltingTable(found, gamma=self.config.gamma).to(device)
            self._table[0] = self.halting
        self.calibration = calibration
        for module in self.model.modules():
            if isinstance(module, NormSite):
                module.calibration = calibration.norms[module.stage.name]
            elif isinstance(module, AttentionSite):
                module.calibration = calibration.softmaxes[module.stage.name]
            elif isinstance(module, ActivationSite):
                module.calibration = calibration.activations[module.stage.name]
        self.set_counts(calibration.counts())

    def counts(self) -> dict[str, int]:
        """The hard count of every site."""
        return {site.name: self.switch.count(site.name) for site in self.sites}

    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Set hard counts by site name; each must lie within its site's bounds."""
        known = {site.name: site for site in self.sites}
        for name, count in counts.items():
            if name not in known:
                raise ConfigError(f"no such site: {name}; sites look like {self.sites[0].name}")
            self.switch.counts[name] = known[name].checked(count)

    def modes(self) -> dict[str, int]:
        """The mode of every site's learned distribution: the count it would be frozen at."""
        return self.halting.modes()

    def freeze(self) -> dict[str, int]:
        """Set every hard count to its distribution's mode, and return them."""
        self.set_counts(self.modes())
        return self.counts()

    def iterations(self, counts: Mapping[str, int] | None = None) -> dict[str, int]:
        """Solver iterations per forward, by family; a refinement count runs once per pass."""
        counts = self.counts() if counts is None else counts
        total = dict.fromkeys(FAMILIES, 0)
        for site in self.sites:
            passes = 1
            if site.family == "softmax_refine" and self.calibration is not None:
                passes = self.calibration.softmaxes[site.name.rsplit("/", 1)[0]].fit.passes
            total[site.family] += passes * counts[site.name]
        return total

    def total_count(self, counts: Mapping[str, int] | None = None) -> int:
        """Solver iterations per forward."""
        return sum(self.iterations(counts).values())

    def weights(self) -> Iterator[nn.Parameter]:
        """The model's own parameters."""
        return self.model.parameters()

    def key_biases(self) -> dict[str, tuple[nn.Parameter, slice]]:
        """Of every attention whose keys have one: the parameter that holds it, and where in it."""
        found = {m.stage.name: m.key_bias() for m in self.model.modules() if isinstance(m, AttentionSite)}
        return {name: bias for name, bias in found.items() if bias is not None}

    def halting_logits(self) -> Iterator[nn.Parameter]:
        """The halting logits: one tensor for all sites."""
        return self.halting.parameters()

    def range_terms(self) -> dict[str, Tensor]:
        """The range terms of the last forward: squared excess per token by name, over all sites."""
        return dict(self.switch.terms)

    def fingerprint(self) -> str:
        """Identifies the weights as they are now."""
        return fingerprint(self.model, self.architecture)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, vocabulary) of tokens (B, T), with gradient, in the mode in force.

        Of images, flat (B, pixels) or (B, channels, height, width), there is one row of logits: (B, 1, labels).
        """
        return self.behind_prefix(tokens, self.model)

    def behind_prefix(self, tokens: Tensor, model: Callable[..., Any]) -> Tensor:
        """Logits of images, or of tokens (B, T) behind the public prefix, by this model, its teacher or a copy."""
        if self.grid is not None:
            row: Tensor = model(pixel_values=tokens.reshape(-1, *self.grid.image)).logits
            return row[:, None]
        public = len(self.config.prefix)
        if not public:
            out: Tensor = model(input_ids=tokens, use_cache=False).logits
            return out
        front: Tensor = self.front
        self.switch.public = public
        try:
            out = model(input_ids=torch.cat([front.expand(len(tokens), -1), tokens], dim=1), use_cache=False).logits
        finally:
            self.switch.public = 0
        return out[:, public:]

    @torch.no_grad()
    def logits(self, tokens: Any, dtype: str | None = None, *, mode: Mode | None = "deployed") -> Tensor:
        """Logits without gradient or dropout, deployed unless told otherwise (``mode=None``: as the switch stands).

        ``dtype`` runs on a copy of the weights in that precision. One sequence (T,) gives (T, vocabulary), one image
        (channels, height, width) gives (1, labels).
        """
        if dtype is not None and dtype not in _DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}; have: {', '.join(_DTYPES)}")
        device = next(self.model.parameters()).device
        ids = torch.as_tensor(tokens, dtype=torch.long if self.grid is None else None, device=device)
        single = ids.ndim == (1 if self.grid is None else 3)
        batch = ids[None] if single else ids
        if batch.numel() == 0:
            raise DataError("logits need at least one token, or one image")
        with self._turned(mode):
            if dtype is None:
                out = self.behind_prefix(batch, self.model)
            else:
                cast = {
                    name: value.to(_DTYPES[dtype])
                    for name, value in (*self.model.named_parameters(), *self.model.named_buffers())
                    if value.is_floating_point()
                }

                def wide(**given: Any) -> Any:
                    return torch.func.functional_call(self.model, cast, (), given, tie_weights=True)

                out = self.behind_prefix(batch, wide)
        return out[0] if single else out

    @contextmanager
    def tapped(self, tap: Tap) -> Iterator[None]:
        """Run a block with a tap that sees, and may replace, named values."""
        before, self.switch.tap = self.switch.tap, tap
        try:
            yield
        finally:
            self.switch.tap = before

    @contextmanager
    def _turned(self, mode: Mode | None) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            with self.switch.kept():
                if mode is not None and mode != self.mode:
                    self.set_mode(mode)
                yield
        finally:
            self.model.train(was_training)

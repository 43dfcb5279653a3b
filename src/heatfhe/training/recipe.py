# SPDX-License-Identifier: Apache-2.0
"""A Recipe: every number of a HEAT run, one frozen record. The defaults are the paper's for GPT-2 small."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from heatfhe.approx import MOST_SETTLE
from heatfhe.errors import ConfigError
from heatfhe.files import json_digest, plain, remade
from heatfhe.odd import KINDS, check_kinds, check_share

HALTING = ("none", "soft", "hard")
SOLVERS = ("plain", "relaxed")
MOST_STAIRS = 16  # iterations
COUNTS = ("learned", "calibrated", "fixed")
SUPPORTS = ("family", "site")
PRECISIONS = ("bf16", "float32")
Solver = Literal["plain", "relaxed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a run.

    ``updates``           changes of the weights; 0 leaves the phase out.
    ``tokens_per_update`` tokens behind one update, over all processes and micro-batches.
    ``lr``                the weights' learning rate at the start of the phase.
    ``final_lr``          and at its end, reached by cosine; equal to ``lr`` for a constant rate.
    ``logit_lr``          the halting logits' learning rate; 0 where they do not learn.
    ``lambda_range``      weight of the range loss.
    ``lambda_iter``       weight of the iteration loss, after its ramp.
    ``score_bound``       squeeze bound on |score|.
    ``halting``           ``none`` (exact nonlinearities), ``soft`` (expected solvers) or ``hard`` (fixed counts).
    ``distil``            learn from the parent's own predictions instead of the text.
    ``warm_up``           updates over which the weights' learning rate rises from zero (ours; the paper gives none).
    """

    updates: int
    tokens_per_update: int
    lr: float
    final_lr: float
    logit_lr: float = 0.0
    lambda_range: float = 0.3
    lambda_iter: float = 0.0
    score_bound: float = 14.0
    halting: Literal["none", "soft", "hard"] = "none"
    distil: bool = False
    warm_up: int = 0

    def __post_init__(self) -> None:
        if self.updates < 0 or self.tokens_per_update < 1:
            raise ConfigError(
                f"a phase needs updates >= 0 and tokens_per_update >= 1, got {self.updates}, {self.tokens_per_update}"
            )
        for name in ("lr", "final_lr", "logit_lr", "lambda_range", "lambda_iter"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"a phase's {name} must be a number of at least 0, got {value!r}")
        if not self.score_bound > 0:
            raise ConfigError(f"a phase's score_bound must be above 0, got {self.score_bound!r}")
        if self.halting not in HALTING:
            raise ConfigError(f"unknown halting {self.halting!r}; have: {', '.join(HALTING)}")

    def rate(self, update: int) -> float:
        """The weights' learning rate at an update of this phase."""
        share = update / max(1, self.updates)
        rise = min(1.0, (update + 1) / (self.warm_up + 1))
        return rise * (self.final_lr + 0.5 * (self.lr - self.final_lr) * (1 + math.cos(math.pi * share)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Every number of a run; the paper's values unless a field's line says otherwise.

    ``context``           window length in tokens.
    ``squeeze, heat, cooldown``  the three phases.
    ``iter_ramp``         updates over which lambda_iter ramps in at the start of phase two.
    ``prior_start, prior_end``   the prior's p, annealed linearly over phase two.
    ``patience, gap``     back-off: micro-batches on target before it is lowered; updates between two lowerings.
    ``least_init, least_refine``  where the targets of a softmax's first and second reciprocals end (ours: a mixture
                          with one relaxed iteration looks better than it deploys).
    ``enough``            share of the calibrated iterations at which nothing is pulled further down (ours).
    ``geometric_at_zero`` the prior at target 0 is the geometric distribution, as in the paper's text, not its formula.
    ``betas, eps, weight_decay, clip``  AdamW, and the largest gradient norm.
    ``activation_bound, denominator_bound, variance_bound``  where the range loss begins (``sites.RangeBounds``).
    ``variance_spread``   how far from a norm's median the variance of a row may lie in a squeeze, as a factor, before
                          it is pulled back; 0: any distance (ours: one iteration is exact enough on narrow domains).
    ``push``              weight of the guards' push-back, per token (ours; the paper gives none).
    ``slack``             how far below the ends of their domains a softmax row's sums are held while training, as a
                          factor (ours: text that was not trained on goes further).
    ``tolerance, rule, calibration_windows``  the calibration that seeds phase two.
    ``activation_tolerance``  largest error of an activation's polynomial.
    ``settle``            settling rounds of the argmax, each of which doubles its sharpening (ours).
    ``margin``            how much wider than seen a domain is where leaving it is fatal (ours; the paper gives none).
    ``centre``            before a squeeze and before phase two keys are shifted so that a softmax's rows sum to about
                          the same, which changes no probability (``ranges.centre``; ours).
    ``narrow``            when counts are frozen, a softmax's domains end where sums ask for it: nearer by an iteration
                          less for every halving, further by one more for every doubling (``constants.narrowed``; ours).
    ``ends_apart``        a norm's domain that was left at one end keeps the other, whenever constants are fitted again
                          (ours: weights learn a shallow solver's errors, which both ends decide).
    ``refit_at``          share of the cooldown after which constants are fitted again, as they are at its end, so that
                          the weights have learned them by then (ours); 0: at the end alone.
    ``delta_2``           the softmax's second factor in phases two and three: 2 is one refinement pass (None: the
                          calibration's own choice).
    ``solver``            ``plain`` Goldschmidt (the paper's) or ``relaxed`` (ours).
    ``train_weights``     False freezes them: the depth-only ablation.
    ``support``           where a site's distribution begins: one above its family's largest calibrated count, at least
                          the paper's (``family``), or one above its own (``site``, ours: less to descend).
    ``counts``            ``learned``; ``calibrated`` keeps the calibration's; ``fixed`` cuts them evenly, by hand.
    ``fixed_share``       the share of the calibrated iterations that fixed counts keep.
    ``fixed_total``       or the iterations per forward they add up to, where it is above 0.
    ``odd_share, odd_kinds``  windows no text looks like (``heatfhe.odd``), as a share of all, spread evenly among
                          the text's; every phase and every calibration sees them. They teach through the parent's
                          predictions and the range loss, not through their tokens (ours; the paper has none).
    ``odd_calibration``   odd windows that every calibration sees beside ``calibration_windows`` of the text, so that no
                          domain ends below what they reach.
    ``odd_without``       tokens that no odd window holds: those that no domain can take in, such as an end of text
                          that is a thousand times as large as any other token (ours).
    ``price_share``       how far the iteration loss goes by what an iteration costs at each site
                          (``train(prices=...)``): 0 counts them alike, as in the paper; 1 by price alone (ours).
    ``price_every``       updates of phase two after which the prices are taken again, at the counts of that moment.
    ``stairs``            by how many iterations a softmax's counts may change when counts are frozen, so that the plan
                          is cheapest at no fewer iterations in all (``train(prices=...)``; ours). 0 leaves them.
    ``noise``             standard deviation added at every site's input and output in phases two and three, as a plan
                          carries them (``train(carried=...)``; ours).
    ``micro_tokens``      tokens of one forward pass in one process.
    ``recompute``         keep a block's input alone and compute the rest again on the way back: less memory, the same
                          gradients, so that a run may go on with or without it.
    ``precision``         ``bf16`` autocast with float32 solvers, or ``float32``.
    ``validate_every, validate_batches``  held-out loss; a batch holds micro_tokens tokens.
    ``checkpoint_every``  updates between two checkpoints.
    ``seed``              order of the windows, and the noise.
    """

    name: str = "gpt2-small"
    context: int = 1024
    squeeze: Phase = Phase(
        updates=500,
        tokens_per_update=32768,
        lr=1e-4,
        final_lr=1e-4,
        lambda_range=3e-2,
        score_bound=10.0,
        distil=True,
        warm_up=20,
    )
    heat: Phase = Phase(
        updates=3500,
        tokens_per_update=4096,
        lr=2.5e-4,
        final_lr=3e-5,
        logit_lr=2e-3,
        lambda_iter=0.6,
        halting="soft",
        warm_up=100,
    )
    cooldown: Phase = Phase(updates=1000, tokens_per_update=4096, lr=3e-5, final_lr=3e-5, halting="hard")
    iter_ramp: int = 500
    prior_start: float = 0.6
    prior_end: float = 0.9
    patience: int = 75
    gap: int = 150
    least_init: int = 1
    least_refine: int = 1
    enough: float = 0.0
    geometric_at_zero: bool = True
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-10
    weight_decay: float = 0.1
    clip: float = 1.0
    activation_bound: float = 32.0
    denominator_bound: float = 7.0
    variance_bound: float = 16.0
    variance_spread: float = 0.0
    push: float = 1.0
    slack: float = 1.0
    tolerance: float = 1e-4
    rule: str = "per-site"
    calibration_windows: int = 128
    activation_tolerance: float = 1e-3
    settle: int = 0
    margin: float = 1.2
    centre: bool = False
    narrow: bool = False
    ends_apart: bool = False
    refit_at: float = 0.0
    delta_2: int | None = 2
    solver: Solver = "plain"
    train_weights: bool = True
    support: Literal["family", "site"] = "family"
    counts: Literal["learned", "calibrated", "fixed"] = "learned"
    fixed_share: float = 0.55
    fixed_total: int = 0
    odd_share: float = 0.05
    odd_kinds: tuple[str, ...] = KINDS
    odd_calibration: int = 192
    odd_without: tuple[int, ...] = ()
    price_share: float = 0.0
    price_every: int = 400
    stairs: int = 0
    noise: float = 0.0
    micro_tokens: int = 4096
    recompute: bool = False
    precision: Literal["bf16", "float32"] = "bf16"
    validate_every: int = 250
    validate_batches: int = 32
    checkpoint_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ConfigError(f"a recipe's context must be at least 2 tokens, got {self.context}")
        if self.micro_tokens < self.context:
            raise ConfigError(f"micro_tokens {self.micro_tokens} holds no whole window of {self.context}; raise it")
        if not (0 < self.prior_start < 1 and 0 < self.prior_end < 1):
            raise ConfigError(f"the prior's p runs between 0 and 1, got {self.prior_start} to {self.prior_end}")
        if not (self.noise >= 0 and self.push >= 0):
            raise ConfigError(f"noise and push must be at least 0, got {self.noise} and {self.push}")
        if not (0 < self.fixed_share <= 1 and self.fixed_total >= 0):
            raise ConfigError(
                f"fixed_share in (0, 1] and fixed_total of at least 0, got {self.fixed_share} and {self.fixed_total}"
            )
        if self.recompute and self.noise:
            raise ConfigError(
                "noise is drawn as values go by: what is computed again would meet another; leave out recompute, and "
                "lower micro_tokens if memory runs out"
            )
        if not 0 <= self.price_share <= 1:
            raise ConfigError(f"a recipe's price_share lies in [0, 1], got {self.price_share}")
        if not 0 <= self.stairs <= MOST_STAIRS:
            raise ConfigError(f"a recipe's stairs are iterations from 0 to {MOST_STAIRS}, got {self.stairs}")
        if self.stairs and self.heat.halting != "soft":
            raise ConfigError("stairs move counts that were learned: phase two must be soft; leave stairs out")
        check_share(self.odd_share, "a recipe's odd_share")
        check_kinds(self.odd_kinds)
        if self.odd_calibration < 0:
            raise ConfigError(f"a recipe's odd_calibration is a number of windows, got {self.odd_calibration}")
        if any(token < 0 for token in self.odd_without):
            raise ConfigError(f"a recipe's odd_without holds numbers of tokens, got {min(self.odd_without)}")
        if not 0 <= self.refit_at < 1:
            raise ConfigError(f"a recipe's refit_at is a share of the cooldown in [0, 1), got {self.refit_at}")
        if not 0 <= self.enough < 1:
            raise ConfigError(f"a recipe's enough is a share of iterations in [0, 1), got {self.enough}")
        if not (0 < self.tolerance < 1 and self.clip > 0):
            raise ConfigError(f"tolerance lies in (0, 1) and clip above 0, got {self.tolerance} and {self.clip}")
        if not 0 < self.activation_tolerance < 1:
            raise ConfigError(f"activation_tolerance lies in (0, 1), got {self.activation_tolerance}")
        if self.variance_spread and not 1 < self.variance_spread <= 100:
            raise ConfigError(f"a recipe's variance_spread is 0 or lies in (1, 100], got {self.variance_spread}")
        if not 0 <= self.settle <= MOST_SETTLE:
            raise ConfigError(f"a recipe's settle is a number of rounds from 0 to {MOST_SETTLE}, got {self.settle}")
        if not 1 <= self.slack <= 100:
            raise ConfigError(f"a recipe's slack lies in [1, 100], got {self.slack}")
        if not 1 < self.margin <= 10:
            raise ConfigError(f"a recipe's margin lies in (1, 10], got {self.margin}")
        for name, known in (("solver", SOLVERS), ("counts", COUNTS), ("support", SUPPORTS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"unknown {name} {getattr(self, name)!r}; have: {', '.join(known)}")
        at_least_one = ("patience", "least_init", "least_refine", "calibration_windows", "validate_every")
        for name in (*at_least_one, "validate_batches", "checkpoint_every", "price_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a recipe's {name} must be at least 1, got {getattr(self, name)}")
        self._check_phases()

    def _check_phases(self) -> None:
        for phase in (self.squeeze, self.heat, self.cooldown):
            if phase.updates and phase.tokens_per_update % self.context:
                raise ConfigError(
                    f"tokens_per_update {phase.tokens_per_update} is not a multiple of the context {self.context}"
                )
        if self.squeeze.updates and self.squeeze.halting != "none":
            raise ConfigError("the squeeze comes before any calibration: its halting must be none")
        if self.cooldown.updates and self.cooldown.halting == "soft":
            raise ConfigError("the cooldown runs on frozen counts: its halting must be hard or none")
        calibrated = self.heat.updates and self.heat.halting != "none"
        if self.cooldown.updates and self.cooldown.halting == "hard" and not calibrated:
            raise ConfigError("a cooldown on hard counts follows a phase that found them; leave it out too")
        if not self.train_weights and (self.squeeze.updates or self.cooldown.updates or self.heat.halting != "soft"):
            raise ConfigError("with frozen weights only a soft phase two learns anything; set the others' updates to 0")

    @property
    def phases(self) -> dict[str, Phase]:
        """The three phases by name, in order."""
        return {"squeeze": self.squeeze, "heat": self.heat, "cooldown": self.cooldown}

    def prior(self, update: int) -> float:
        """The prior's p at an update of phase two."""
        return self.prior_start + (self.prior_end - self.prior_start) * update / max(1, self.heat.updates)

    def lambda_iter(self, update: int) -> float:
        """The iteration loss's weight at an update of phase two."""
        return self.heat.lambda_iter * min(1.0, (update + 1) / max(1, self.iter_ramp))

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return plain(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Recipe:
        """Inverse of as_json. A recipe written before there were odd windows has none."""
        try:
            return remade(cls, {"odd_share": 0.0, "odd_calibration": 0, **body})
        except (AttributeError, TypeError, ValueError) as err:
            raise ConfigError(f"not a recipe: {err}") from err

    @property
    def digest(self) -> str:
        """Identifies what a recipe computes; without odd windows, prices or centred rows it is that from before."""
        body = self.as_json()
        del body["recompute"]
        if self.activation_tolerance == 1e-3:
            del body["activation_tolerance"]
        if self.least_refine == 1:
            del body["least_refine"]
        if not self.odd_share:
            del body["odd_share"], body["odd_kinds"], body["odd_calibration"]
        names = ("centre", "narrow", "variance_spread", "enough", "ends_apart", "refit_at", "odd_without", "settle")
        for name in (*names, "stairs"):
            if not getattr(self, name):
                del body[name]
        if not self.price_share:
            del body["price_share"], body["price_every"]
        return json_digest(body)

    @property
    def priced(self) -> bool:
        """Whether anything goes by what iterations cost in plans: such a run needs prices."""
        return self.price_share > 0 or self.stairs > 0

    @property
    def updates(self) -> int:
        """Updates of all phases."""
        return sum(p.updates for p in self.phases.values())

    def adjusted(
        self,
        *,
        context: int | None = None,
        updates: int | None = None,
        lr: float | None = None,
        batch: int | None = None,
    ) -> Recipe:
        """The same recipe for other windows, updates in all, peak learning rate or windows per update.

        Phases keep their proportions: each gets its share of the ``updates``, and ``lr`` is the highest rate of any.
        A new ``context`` keeps the tokens of an update as near as whole windows allow.

        >>> recipe("default-model").adjusted(context=64, updates=1000, lr=1e-4, batch=32)      # doctest: +SKIP
        """
        made = self
        if updates is not None:
            if updates < 1:
                raise ConfigError(f"a run needs at least one update, got {updates}")
            made = made._stretched(updates / made.updates)
        length = made.context if context is None else context
        if length < 2 or (batch is not None and batch < 1):
            raise ConfigError(f"context is at least 2 and batch at least 1, got {length} and {batch}")
        if lr is not None and not (math.isfinite(lr) and lr > 0):
            raise ConfigError(f"a learning rate is a number above 0, got {lr}")
        gain = 1.0 if lr is None else lr / max(p.lr for p in made.phases.values())

        def fitted(p: Phase) -> Phase:
            windows = batch or max(1, round(p.tokens_per_update / length))
            return replace(p, tokens_per_update=windows * length, lr=p.lr * gain, final_lr=p.final_lr * gain)

        phases: dict[str, Any] = {k: fitted(p) for k, p in made.phases.items()}
        return replace(made, context=length, micro_tokens=max(1, made.micro_tokens // length) * length, **phases)

    def scaled(self, share: float) -> Recipe:
        """The same recipe with phases, ramp, patience and gap shortened to a share: for trials and tests."""
        if not 0 < share <= 1:
            raise ConfigError(f"a share lies in (0, 1], got {share}")
        return self._stretched(share)

    def _stretched(self, share: float) -> Recipe:
        def short(n: int) -> int:
            return max(1, round(n * share)) if n else 0

        phases: dict[str, Any] = {
            k: replace(p, updates=short(p.updates), warm_up=short(p.warm_up)) for k, p in self.phases.items()
        }
        return replace(
            self, **phases, iter_ramp=short(self.iter_ramp), patience=short(self.patience), gap=short(self.gap),
            price_every=short(self.price_every), validate_every=short(self.validate_every),
            checkpoint_every=short(self.checkpoint_every),
        )  # fmt: skip

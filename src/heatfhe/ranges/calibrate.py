# SPDX-License-Identifier: Apache-2.0
"""calibrate: observe real sequences, then give every site its domain, constants and count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from heatfhe.errors import ConfigError
from heatfhe.models import Architecture
from heatfhe.progress import SILENT, Reporter
from heatfhe.ranges.argmax import MAX_TEMPERATURE, fit_argmax
from heatfhe.ranges.fits import FitOptions, fit_activation_site, fit_norm, fit_softmax_site
from heatfhe.ranges.observe import TEMPERATURES, Observation, Range, Tokens, observe
from heatfhe.records import Calibration
from heatfhe.sites import Prepared
from heatfhe.stages import Activation, Argmax, Attention, Norm


def calibrate(
    prepared: Prepared,
    sequences: Iterable[Tokens],
    tolerance: float = 1e-4,
    rule: str = "per-site",
    solver: str = "plain",
    *,
    odd: Iterable[Tokens] = (),
    temperature: float = MAX_TEMPERATURE,
    reporter: Reporter = SILENT,
    **options: Any,
) -> Calibration:
    """Observe the model with its exact nonlinearities and fit every site.

    ``rule="per-site"`` gives each site the smallest count that meets the tolerance on its own domain (the paper's);
    ``rule="joint"`` the cheapest counts of a norm or a softmax together, of which only the last error is seen.
    ``solver`` is ``plain`` (the paper's) or ``relaxed``. The argmax schedule serves sampling up to ``temperature``.
    ``odd`` sequences are seen too, but ask for no accuracy (``observe``). Further options are the fields of FitOptions.

    >>> calibration = calibrate(prepared, windows, 1e-4)          # doctest: +SKIP
    >>> prepared.adopt(calibration)                               # doctest: +SKIP
    """
    chosen = FitOptions(tolerance=tolerance, rule=rule, solver=solver, **options)
    seen = observe(
        prepared, sequences, odd=odd, temperature=temperature, argmax=chosen.argmax,
        deepest=chosen.delta_2 or TEMPERATURES[-1], reporter=reporter,
    )  # fmt: skip
    return fit_calibration(prepared.architecture, seen, chosen, reporter=reporter)


def refit(
    prepared: Prepared,
    sequences: Iterable[Tokens],
    *,
    odd: Iterable[Tokens] = (),
    temperature: float = MAX_TEMPERATURE,
    reporter: Reporter = SILENT,
    **options: Any,
) -> Calibration:
    """Fit the constants again on the weights as they are, at the counts as they are (after training).

    Ranges are those of the approximated model at its hard counts, which is what will be deployed; every block keeps its
    delta_2. Tolerance, rule and solver are carried over from the calibration in use.
    """
    before = prepared.calibration
    if before is None:
        raise ConfigError(
            "refit needs a model that has adopted a calibration; run calibrate(prepared, sequences) first"
        )
    kept = {"tolerance": before.tolerance, "rule": before.rule, "solver": before.solver}
    if before.norms:
        kept["form"] = next(iter(before.norms.values())).fit.form
    chosen = FitOptions(**{**kept, **options})
    deltas = {name: row.fit.delta_2 for name, row in before.softmaxes.items()}
    with prepared.switch.kept():
        prepared.set_mode("training", halting="hard")  # guarded, but what is seen is what came before each clamp
        seen = observe(
            prepared, sequences, odd=odd, mode="training", temperature=temperature, argmax=chosen.argmax,
            deepest=max(deltas.values(), default=1), reporter=reporter,
        )  # fmt: skip
    return fit_calibration(
        prepared.architecture, seen, chosen, counts=prepared.counts(), deltas=deltas, reporter=reporter
    )


def fit_calibration(
    architecture: Architecture,
    seen: Observation,
    options: FitOptions,
    *,
    counts: Mapping[str, int] | None = None,
    deltas: Mapping[str, int] | None = None,
    reporter: Reporter = SILENT,
) -> Calibration:
    """Constants and counts from an observation; one observation serves any tolerance, rule and solver.

    ``counts`` fixes the counts and fits only constants; ``deltas`` fixes delta_2 by attention.
    """
    fitted = [s for s in architecture.stages if isinstance(s, (Norm, Attention, Activation))]
    reporter.start("fit", len(fitted) + 1)
    norms, rows, activations = {}, {}, {}
    for stage in fitted:
        name = stage.name
        if isinstance(stage, Norm):
            width = architecture.shape.width
            norms[name] = fit_norm(stage, width, seen.norms.get(name, Range()), options, counts)
        elif isinstance(stage, Attention):
            delta_2 = options.delta_2 if deltas is None else deltas[name]
            rows[name] = fit_softmax_site(name, seen, options, counts, delta_2)
        else:
            activations[name] = fit_activation_site(stage, seen.activations.get(name, Range()), options)
        reporter.advance("fit", site=name)
    argmax = (
        fit_argmax(
            np.concatenate(seen.logit_rows),
            weights=seen.logit_weights,
            temperature=seen.temperature,
            margin=options.margin,
            solver=options.solver,
            settle=options.settle,
        )
        if options.argmax and architecture.of(Argmax)
        else None
    )
    reporter.advance("fit", site="argmax")
    reporter.done("fit")
    return Calibration(
        fingerprint=seen.fingerprint,
        tolerance=options.tolerance,
        rule=options.rule,
        solver=options.solver,
        context=seen.context,
        sequences=seen.sequences,
        norms=norms,
        softmaxes=rows,
        activations=activations,
        argmax=argmax,
        magnitudes=dict(seen.magnitudes),
        prefix=seen.prefix,
    )

# SPDX-License-Identifier: Apache-2.0
"""The words of a report, for whoever opens one without having read anything else."""

GLOSSARY = (
    ("circuit", "The model written with additions and multiplications alone. It says what is computed."),
    ("plan", "A circuit bound to a parameter set: where numbers sit, which level each has, where bootstraps go."),
    ("site", "A place where a division or a square root is computed by a solver that iterates."),
    ("iteration, count", "One turn of a solver; a site's count is how many it makes, the same for every input."),
    ("level", "How many multiplications in a row a ciphertext has left. Levels per token: all that a token spends."),
    ("bootstrap", "The operation that gives a ciphertext new levels. It takes most of the time of a token."),
    (
        "per token",
        "Of one generated token, from its embedding to the choice of the next. Where only logits are computed, the "
        "table says so: such figures are smaller.",
    ),
    (
        "predicted",
        "The plan's operations, each at the price in a cost table that was measured on the machine it names.",
    ),
    ("perplexity", "How surprised a model is by held-out text; lower is better. Comparable on the same text only."),
    ("parent", "The checkpoint before any of this, with exact nonlinearities."),
    ("control", "The parent fine-tuned on the same text without HEAT: what fine-tuning alone gives."),
    ("calibrated", "The parent's own weights, each count the smallest that meets a tolerance."),
    ("HEAT", "Counts and weights learned together, so that fewer iterations do."),
    ("KL, top-1", "How far encrypted logits are from the circuit's own, and how often their largest entry agrees."),
    ("diverge", "A window whose logits are lost. A user who types such text gets nothing of use."),
    ("leave a domain, faint", "A window that a solver was not fitted for; one whose choice of a word is weak."),
    ("drift", "What the noise of bootstraps does to fidelity from position to position."),
    ("security claim", "Bits of work that known attacks need, by the table it names. Toy sets claim none."),
)
"""Words and what they mean here; docs/glossary.md has those of the code."""

# SPDX-License-Identifier: Apache-2.0
"""A private inference card: what is encrypted, what leaks, parameters, noise, quality and cost, on one page.

Of a circuit with its plan, for whoever offers it, or of a server's own announcement, for whoever asks it. Nothing on it
is typed in by hand: each line is read from the files it is about, and what nobody has measured says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.errors import ConfigError
from heatfhe.planning import CostTable, Plan, ProgramName, key_bytes, tally, weight_bytes
from heatfhe.report.gather import Material
from heatfhe.wire import ModelConfig, ciphertext_limit

CARD_VERSION = 1
UNKNOWN = "not measured"
ENCRYPTED = {
    "prompt": "encrypted on the client's machine, token by token; the server gets ciphertexts",
    "activations, cache of keys and values": "encrypted throughout; nothing is decrypted on the server",
    "logits, choice of the next token": "encrypted; the chosen token is fed back as a ciphertext",
    "answer": "decrypted on the client's machine alone",
    "secret key": "made on the client's machine and kept there",
}
PUBLIC = {"weights, counts and plan": "in the clear: they are the server's own"}
LEAKS = {
    "lengths": "the prompt's and the answer's, in tokens; the answer's is what was asked for, not what was read",
    "mode": "whether the server chooses greedily, with added noise, or returns logits",
    "identity": "which client asks (its token), from which address",
    "times": "when a request comes and when its parts are fetched; how long it runs depends on nothing secret",
    "keys": "evaluation keys, which let the server compute and not decrypt",
}
OPTIONAL_LEAKS = {
    "heat generate --stop-early": "the length of the answer, which depends on its words",
    "heat proxy --cancel-on-disconnect": "when a program hung up, which may depend on the words it had read",
    "heat generate --interactive": "one request per token: the time between two tokens",
}
NOT_COVERED = (
    "a server that computes something else than it announced: there is no proof of correct computation",
    "a client's machine that others control",
    "values that a user publishes: they are rounded to the bits promised below, which is no proof",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Sections of facts, in the order they are read. Every value is a number, a line of text, or a table of such."""

    title: str
    sections: Mapping[str, Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"version": CARD_VERSION, "title": self.title, **self.sections}

    def as_markdown(self) -> str:
        """One page of tables."""
        lines = [f"# Private inference card: {self.title}", ""]
        for name, facts in self.sections.items():
            lines += [f"## {name[0].upper()}{name[1:].replace('_', ' ')}", "", "| | |", "|---|---|"]
            lines += [f"| {_cell(label)} | {_cell(value)} |" for label, value in _flat(facts)]
            lines.append("")
        return "\n".join(lines).rstrip() + "\n"


def circuit_card(circuit: Circuit, made: Plan, prices: CostTable, found: Material | None = None) -> Card:
    """The card of a circuit as it would be served by a plan; ``found`` holds its training and evaluations.

    Evaluations of other circuits are left out; a training run that made another one is refused.
    """
    others = [other.name for other in found.circuits if other.digest != circuit.digest] if found else []
    if found and found.trainings and others:
        raise ConfigError(
            f"the runs given made another circuit ({', '.join(others)}), not {circuit.name}; give its own"
        )
    s, c = circuit.shape, circuit.calibration
    subject = {
        "circuit": circuit.name,
        "shape": f"{s.layers} layers, width {s.width}, {s.heads} heads, vocabulary {s.vocabulary}, context {s.context}",
        "circuit digest": circuit.digest,
        "plan digest": made.digest,
        "parameter set": made.params.name,
    }
    public = dict(PUBLIC)
    if circuit.prefix:
        public["public prefix"] = f"{len(circuit.prefix)} first tokens, the same for all clients"
    quality: dict[str, Any] = {
        "iterations per token": c.iterations() | {"all": sum(c.iterations().values())},
        "calibrated": f"tolerance {c.tolerance:g}, rule {c.rule}, {c.solver} solver, on {c.sequences} sequences",
        "near ties": UNKNOWN if c.argmax is None else f"{c.argmax.near_ties:.2%} of calibrated rows",
        **_measured(circuit, made.name, found or Material()),
    }
    return Card(
        title=f"{circuit.name} on {made.params.name}",
        sections={
            "subject": subject,
            "encrypted": ENCRYPTED,
            "in_the_clear": public,
            "leaks": _leaks(made.programs, bool(made.prefill)),
            "leaks_only_where_asked_for": OPTIONAL_LEAKS,
            "not_covered": _numbered(NOT_COVERED),
            "parameters": _parameters(made.params),
            "noise": _noise(made.params, _bootstraps(made)),
            "quality": quality,
            "cost": _cost(made, prices),
        },
    )


def server_card(config: ModelConfig, *, address: str, verdict: str) -> Card:
    """The card of what a server announces; ``verdict`` is the client's own judgement of its parameters."""
    price = config.price
    simulated = {"everything": "IN THE CLEAR: this server only simulates"}
    return Card(
        title=f"{config.model} at {address}",
        sections={
            "subject": {
                "server": address,
                "model": config.model,
                "engine": config.engine,
                "context": config.context,
                "circuit digest": config.circuit,
                "plan digest": config.plan,
                "configuration": config.config_id,
                "this client says": verdict,
            },
            "encrypted": simulated if config.engine == "clear" else ENCRYPTED,
            "in_the_clear": PUBLIC,
            "leaks": _leaks(config.programs, "prefill" in config.layout),
            "leaks_only_where_asked_for": OPTIONAL_LEAKS,
            "not_covered": _numbered(NOT_COVERED),
            "parameters": _parameters(config.params),
            "noise": _noise(config.params, price.bootstraps_per_token),
            "quality": {"quality": "a server does not announce it; ask its operator for the card of the circuit"},
            "cost": {
                "seconds per token, as announced": price.seconds_per_token,
                "seconds per prompt token": price.seconds_per_prompt_token,
                "bootstraps per token": price.bootstraps_per_token,
                "evaluation keys, bytes": price.key_bytes,
                "one ciphertext, bytes at most": ciphertext_limit(config.params),
                "largest temperature under encryption": config.max_temperature,
            },
        },
    )


def _leaks(programs: Iterable[str], prefill: bool) -> dict[str, str]:
    found = dict(LEAKS)
    if not {str(ProgramName.SAMPLE.value), str(ProgramName.LOGITS.value)} & {str(p) for p in programs}:
        found["mode"] = "none: this plan chooses greedily and has no other mode"
    if prefill:
        found["prompt at once"] = "how many of its tokens came in one ciphertext"
    return found


def _parameters(params: Params) -> dict[str, Any]:
    return {
        "set": params.name,
        "security": params.security_claim,
        "security bits": params.security_bits,
        "ring dimension": params.ring_dimension,
        "log2 QP": round(params.log_qp, 1),
        "secret": params.secret,
        "levels after a bootstrap": params.levels,
        "scale, bits": params.scale_bits,
        "engine": params.engine,
        "digest": params.digest,
    }


def _noise(params: Params, bootstraps: int) -> dict[str, Any]:
    return {
        "of one bootstrap": f"standard deviation {params.noise:.1e} on values of size one",
        "bits promised": params.promised_bits,
        "magnitudes it refreshes": f"up to {params.reach:g}",
        "bootstraps per token": bootstraps,
    }


def _bootstraps(made: Plan) -> int:
    program = made.programs.get("generate") or next(iter(made.programs.values()))
    return len(program.bootstraps())


def _cost(made: Plan, prices: CostTable) -> dict[str, Any]:
    found: dict[str, Any] = {"prices": f"{prices.name} ({prices.hardware}; {prices.provenance})"}
    for name in made.programs:
        rows = tally(made, name, prices).values()
        found[f"one {name} step"] = {
            f"predicted {prices.unit}": float(f"{sum(t.seconds for t in rows):.3g}"),
            "bootstraps": sum(t.bootstraps for t in rows),
            "levels": sum(t.levels for t in rows),
            "key switches": sum(t.key_switches for t in rows),
            "encoded weights, bytes": weight_bytes(made, name),
        }
    found["evaluation keys, bytes"] = key_bytes(made)
    found["one ciphertext, bytes at most"] = ciphertext_limit(made.params)
    return found


def _measured(circuit: Circuit, name: str, found: Material) -> dict[str, Any]:
    """What runs say of the circuit's quality, each with the command that would say it where none did."""
    out: dict[str, Any] = {}
    held = circuit.notes.get("stress")
    out["odd windows that diverged"] = (
        {kind: f"{row['diverged']} of {row['windows']}" for kind, row in held.items()}
        if held
        else f"{UNKNOWN}; heat stress does"
    )
    losses = [run.validations[-1]["loss"] for run in found.trainings if run.validations]
    out["held-out perplexity after training"] = (
        [round(math.exp(loss), 3) for loss in losses] if losses else f"{UNKNOWN}; give the folder of heat train"
    )
    out["under encryption or simulated"] = [
        {
            "engine": e["engine"],
            "parameter set": e["params"],
            "positions": e["positions"],
            "top token as in the clear": e["fidelity"]["top1"],
            "KL, nats": e["fidelity"]["kl"],
            "seconds per token, measured": e["seconds"],
        }
        for e in found.evaluations
        if e["name"] == name
    ] or f"{UNKNOWN}; give the folder of heat evaluate --out"
    out["under noise at every bootstrap"] = [
        {
            "sigma": d["sigma"],
            "collapsed windows": d["fidelity"]["collapsed"],
            "of": d["fidelity"]["windows"],
            "KL, nats": d["fidelity"]["kl"],
        }
        for d in found.drifts
        if d["name"] == name
    ] or f"{UNKNOWN}; give the output of heat drift --json"
    return out


def _numbered(lines: Iterable[str]) -> dict[str, str]:
    return {str(number): line for number, line in enumerate(lines, 1)}


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Nested facts as lines with longer names."""
    for label, value in facts.items():
        name = f"{before}{label}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}: ")
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            for number, row in enumerate(value, 1):
                yield from _flat(row, f"{name}, run {number}: " if len(value) > 1 else f"{name}: ")
        else:
            yield name, value


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(v) for v in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")

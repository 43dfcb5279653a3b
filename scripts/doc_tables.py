# SPDX-License-Identifier: Apache-2.0
"""Tables of the documentation that the code itself can make: ``make doc-tables`` writes them into their pages.

A table sits between ``<!-- table: NAME -->`` and ``<!-- end of NAME -->``. Tests compare: tests/test_docs.py those that
take no planning, tests/test_docs_commands.py (slow) the rest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLANNED_SETS = (
    "insecure-native-11", "insecure-native-12", "insecure-native-12-r40", "insecure-native-13", "native-16-r40-lean",
    "native-16-r40", "native-16-r35", "insecure-openfhe-12", "openfhe-16",
)  # fmt: skip
"""Sets that an engine here runs the default model with."""


def markdown(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as its page has it."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def recipes() -> str:
    """Every recipe: its windows, updates by phase, and the tokens it sees."""
    from heatfhe.training import RECIPES, recipe

    rows = []
    for name in RECIPES:
        made = recipe(name)
        phases = made.phases.values()
        tokens = sum(p.updates * p.tokens_per_update for p in phases)
        updates = " / ".join(str(p.updates) for p in phases)
        rate = max(p.lr for p in phases)
        cells = (f"{made.odd_share:.0%}", made.precision, made.micro_tokens)
        rows.append(
            (
                f"`{name}`",
                made.context,
                updates,
                f"{tokens / 1e6:.3g} M" if tokens >= 1e6 else f"{tokens:,}",
                f"{rate:g}",
                *cells,
            )
        )
    headers = ("recipe", "context", "updates (squeeze / heat / cooldown)", "tokens seen", "highest learning rate")
    return markdown((*headers, "odd windows", "precision", "tokens per forward pass"), rows)


def sets() -> str:
    """Every parameter set: ring, levels, modulus and what it claims."""
    from heatfhe.planning import presets

    rows = []
    for name, p in sorted(presets().items(), key=lambda pair: (-pair[1].security_bits, pair[0])):
        claim = f"**{p.security_bits} bits**" if p.security_bits else "none: a toy"
        ring = f"2^{p.ring_dimension.bit_length() - 1}"
        engine = p.engine if p.engine != "fideslib" else "plans and simulated noise only"
        rows.append((f"`{name}`", claim, engine, ring, p.slots, p.levels, f"{p.log_qp:.1f}", f"{p.noise:.1e}"))
    headers = ("set", "security", "engine", "ring", "slots", "levels after a bootstrap", "log2 QP", "bootstrap noise")
    return markdown(headers, rows)


def planned() -> str:
    """The embedded HEAT circuit planned for every set that runs here: bootstraps, keys, weights, predicted time."""
    from heatfhe.assets import default_circuit
    from heatfhe.circuit import Circuit
    from heatfhe.planning import cost_table, default_cost, key_bytes, plan, preset, tally, weight_bytes

    circuit, rows = Circuit.load(default_circuit()), []
    for name in PLANNED_SETS:
        params = preset(name)
        device = "cuda" if params.engine == "native" and params.security_bits else "cpu"
        table = cost_table(default_cost(params, device))
        made = plan(circuit, params, cost=table)
        found = tally(made, "generate", table).values()
        bootstraps, seconds = sum(t.bootstraps for t in found), sum(t.seconds for t in found)
        about = "" if params.engine == "native" else "about "
        memory = f"{about}{weight_bytes(made, 'generate') / 2**30:.2f} GiB"
        keys = f"{about}{key_bytes(made) / 2**30:.2f} GiB"
        rows.append((f"`{name}`", bootstraps, keys, memory, f"{seconds:.3g} s", f"`{table.name}`"))
    headers = ("set", "bootstraps per token", "evaluation keys", "encoded weights", "a token, predicted", "prices")
    return markdown(headers, rows)


def circuits() -> str:
    """Iterations, levels and bootstraps of the embedded circuits, by prices that are not measured again."""
    from heatfhe.assets import default_circuit
    from heatfhe.circuit import Circuit
    from heatfhe.planning import cost_table, plan, preset, tally

    rows = []
    for kind in ("calibrated", "heat"):
        circuit = Circuit.load(default_circuit(kind))
        made = plan(circuit, preset("insecure-native-12"), cost="cheddar-h200")
        found = tally(made, "generate", cost_table(made.cost)).values()
        iterations = sum(circuit.calibration.iterations().values())
        rows.append((kind, iterations, sum(t.levels for t in found), sum(t.bootstraps for t in found)))
    return markdown(("circuit", "iterations", "levels", "bootstraps"), rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "recipes": ("docs/recipes.md", recipes),
    "sets": ("docs/recipes.md", sets),
    "planned": ("docs/recipes.md", planned),
    "circuits": ("docs/numbers.md", circuits),
}
"""Every table: its page, and what makes it."""


def on_page(name: str) -> str:
    """A table as its page has it now."""
    text = (ROOT / TABLES[name][0]).read_text()
    found = re.search(rf"<!-- table: {name} -->\n\n(.*?)\n\n<!-- end of {name} -->", text, flags=re.S)
    if found is None:
        raise ValueError(f"{TABLES[name][0]} has no place for the table {name}")
    return found.group(1)


def main() -> int:
    """Write the tables named, or all of them."""
    for name in sys.argv[1:] or TABLES:
        page, make = TABLES[name]
        text, old, made = (ROOT / page).read_text(), on_page(name), make()
        head = f"<!-- table: {name} -->\n\n"
        (ROOT / page).write_text(text.replace(head + old, head + made))
        print(f"{page}: {name} {'is up to date' if old == made else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Where the predicted seconds of one GPT-2-small token go on an H200, and what each next step would give.

    python runs/seconds_gpt2_small.py

From the measured cost table and the exact plan at HEAT's counts: first every kind of work, then the same token planned
again under other prices or with more levels. A step that is not built is a bound: what it would give if it were free.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpt2_small_fixture import gpt2_small

from heatfhe.ckks import Params
from heatfhe.planning import CostTable, Plan, cost_table, plan, preset

PARAMS, TABLE = preset("native-16-r40-lean"), cost_table("native-16-r40-lean-h200")


def planned(params: Params = PARAMS, table: CostTable = TABLE) -> Plan:
    """The token."""
    return plan(gpt2_small("heat"), params, programs=("generate",), context=128, mlp="A", cost=table)


def shares(made: Plan) -> dict[str, tuple[int, float]]:
    """How often each kind of work is done, and its seconds."""
    program, count, seconds = made.program("generate"), Counter[str](), Counter[str]()
    levels = program.levels()
    for s in program.steps:
        if s.row.refreshes:
            kind = f"{'pair' if len(s.results) == 2 else 'refresh'}, period {s.period}"
            priced = {kind: (1, TABLE.refresh(s.period, made.params.slots, pair=len(s.results) == 2))}
        else:
            work = s.row.counted(len(s.args), len(s.by), None if s.product is None else made.products[s.product])
            level = levels[s.args[0]]
            priced = {word: (n, TABLE.price({word: n}, level, started=s.moves)) for word, n in work.items()}
        for word, (times, price) in priced.items():
            count[word] += times
            seconds[word] += price
    return {word: (count[word], price) for word, price in seconds.most_common()}


def steps() -> dict[str, tuple[Params, CostTable]]:
    """What could be changed, as parameters and prices."""
    least, pair = TABLE.bootstrap[1], TABLE.pairs[1]

    def sparse(share: float) -> CostTable:
        """Periods below the full slots cost more than period 1 by this share of what they do today."""
        full = TABLE.slots
        return replace(
            TABLE,
            bootstrap={p: s if p == full else least + share * (s - least) for p, s in TABLE.bootstrap.items()},
            pairs={p: s if p == full else pair + share * (s - pair) for p, s in TABLE.pairs.items()},
        )

    free = replace(TABLE, seconds={**TABLE.seconds, "drop": (0.0,)})
    return {
        "as it is": (PARAMS, TABLE),
        "every drop merged into a division, free": (PARAMS, free),
        "CoeffsToSlots of sparse periods at half its price": (PARAMS, sparse(0.5)),
        "CoeffsToSlots of sparse periods as for period 1": (PARAMS, sparse(0.0)),
        "one level more per refresh, at no price": (replace(PARAMS, levels=PARAMS.levels + 1), TABLE),
        "two levels more": (replace(PARAMS, levels=PARAMS.levels + 2), TABLE),
    }


def main() -> None:
    """Print both tables, and the levels at which refreshed values are first used."""
    made = planned()
    found = shares(made)
    total = sum(seconds for _, seconds in found.values())
    print("| work | times | ms | share |\n|---|---|---|---|")
    for word, (times, seconds) in found.items():
        print(f"| {word} | {times} | {1e3 * seconds:.1f} | {100 * seconds / total:.1f} % |")
    print(f"| **all** | | {1e3 * total:.1f} | placement says {1e3 * made.program('generate').predicted_seconds:.1f} |")
    print("\n| step | ms | refreshes |\n|---|---|---|")
    for name, (params, table) in steps().items():
        program = planned(params, table).program("generate")
        print(f"| {name} | {1e3 * program.predicted_seconds:.1f} | {len(program.bootstraps())} |", flush=True)
    program = made.program("generate")
    used: Counter[int] = Counter()
    for s in program.bootstraps():
        readers = [r for r in program.steps if set(r.args) & set(s.results)]
        used[max(r.level if r.kind == "drop" else s.level for r in readers)] += 1
    print(
        "\nhighest level at which a refreshed value is used: "
        + ", ".join(f"{k} ({v})" for k, v in sorted(used.items()))
    )


if __name__ == "__main__":
    main()

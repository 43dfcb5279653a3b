# SPDX-License-Identifier: Apache-2.0
"""What a service needs is what a person gets with pencil and paper from the plan's levels, sizes and prices."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from heatfhe.cli import main
from heatfhe.errors import ConfigError
from heatfhe.planning import Load, Plan, capacity, cost_table, key_bytes, plan, tally, weight_bytes
from tests.tiny import tiny_circuit

KEYS, WEIGHTS = 41_653_168, 6_545_408  # of this plan; both are exact on the native engine and tested with it
LOAD: dict[str, Any] = {"clients": 1000, "tokens_per_day": 600, "prompt": 3, "answer": 4, "resident": 3, "sessions": 2}
BY_HAND = {
    # 600 / 4 answers a day from 1000 clients, each 2 prompt tokens of 1.5 s and 4 of 2 s; 10 s a day to open keys
    "requests_per_day": 150_000.0,
    "seconds_per_request": 11.0,
    "seat_seconds_per_day": 150_000 * 11 + 1000 * 10.0,
    "seats": 55,  # 1,660,000 s, twice that in the busiest hour, over 0.7 x 86,400 s: 54.9
    # N = 2048, two polynomials of 4-byte words: 16,384 bytes a prime. Levels 1, 6, 7, 9 have 6, 11, 13, 15 primes.
    # A session: three caches of two ciphertexts at level 7, one at level 6, the next input at level 9.
    "session_bytes": 16_384 * (6 * 13 + 2 * 11 + 15),
    "worker_bytes": 2 * KEYS + WEIGHTS + 1_884_160,
    "seat_bytes": 3 * (2 * KEYS + WEIGHTS + 1_884_160),
    "key_bytes_per_client": KEYS,
    "storage_bytes": 1000 * (KEYS + 2 * 1_884_160),
    "key_upload_bytes": 1000 * KEYS,
    "upload_bytes_per_day": 150_000 * 3 * 8_192 * 15,  # fresh ciphertexts: one polynomial and a seed
    "download_bytes_per_day": 150_000 * 4 * 16_384 * 6,
    # 11 s of computing are over before 30 s are: a snapshot at the end of each answer, and none before
    "snapshots_per_request": 1,
    "journal_bytes_per_day": 150_000 * 1_884_160,
}


@lru_cache
def tiny_plan(prefill: int | None = None) -> Plan:
    """The two-layer model at N = 2048, with round prices."""
    made = plan(tiny_circuit(), "insecure-native-11", placement="greedy", prefill=prefill)
    prices = {"prompt": 1.5, "generate": 2.0, "prefill": 2.5}
    programs = {name: replace(each, predicted_seconds=prices[name]) for name, each in made.programs.items()}
    return replace(made, programs=programs)


def test_the_command_gives_what_was_computed_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tiny_plan()
    assert (key_bytes(made), weight_bytes(made, "generate")) == (KEYS, WEIGHTS)
    made.save(tmp_path / "tiny.plan")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in LOAD.items()]
    assert main(["capacity", str(tmp_path / "tiny.plan"), *options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"plan": made.digest, "prices": made.cost, **BY_HAND}
    assert main(["capacity", str(tmp_path / "tiny.plan"), *options]) == 0
    text = capsys.readouterr().out
    assert "55" in text
    assert "next: heat serve CIRCUIT" in text


def test_a_prompt_comes_at_once_where_that_is_quicker() -> None:
    made = tiny_plan(4)
    long = capacity(made, Load(**{**LOAD, "prompt": 7}))
    assert long.seconds_per_request == 2.5 + 4 * 2.0  # six tokens in one program, not six of 1.5 s
    often = capacity(made, Load(**{**LOAD, "prompt": 7, "snapshot_seconds": 0}))
    assert often.journal_bytes_per_day == 150_000 * (1 + 4) * long.session_bytes  # after each of five programs
    short = capacity(made, Load(**{**LOAD, "prompt": 2}))
    assert short.seconds_per_request == 1.5 + 4 * 2.0


@pytest.mark.parametrize(
    ("seconds", "rate", "count"),
    [
        (0.0, 200.0, 6),  # as before: after every unit
        (4.0, 200.0, 3),  # 11 s of computing: after 4 s, after 8 s, at the end
        (30.0, 200.0, 1),
        (0.0, 5.0, 3),  # 1,884,160 bytes take 0.359 s at 5 MiB/s, and a tenth of 11 s pays for three of them
        (0.0, 3.0, 1),  # 0.599 s each: one
        (0.0, 0.5, 1),  # 3.6 s: more than a tenth, but the end is always stored
    ],
)
def test_snapshots_are_as_many_as_a_tenth_of_computing_pays_for(seconds: float, rate: float, count: int) -> None:
    found = capacity(tiny_plan(), Load(**{**LOAD, "snapshot_seconds": seconds, "store_rate": rate}))
    assert found.snapshots_per_request == count
    assert found.journal_bytes_per_day == 150_000 * count * 1_884_160


def test_other_prices_are_those_of_their_table() -> None:
    made, table = tiny_plan(), cost_table("native-cpu-12")
    seconds = {name: sum(row.seconds for row in tally(made, name, table).values()) for name in made.programs}
    found = capacity(made, Load(**LOAD), table)
    assert found.seconds_per_request == pytest.approx(2 * seconds["prompt"] + 4 * seconds["generate"])
    with pytest.raises(ConfigError, match="not seconds"):
        capacity(made, Load(**LOAD), cost_table("unit"))


@pytest.mark.parametrize(
    ("change", "said"),
    [({"clients": 0}, "clients must be positive"), ({"busy": 1.5}, "fraction"), ({"peak": 0.5}, "peak is 1 or more"),
     ({"opening_seconds": -1.0}, "cannot be negative"), ({"store_rate": 0}, "store_rate must be positive"),
     ({"prompt": 14}, "exceed the plan's context of 16")],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        capacity(tiny_plan(), Load(**{**LOAD, **change}))

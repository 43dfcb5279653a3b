# SPDX-License-Identifier: Apache-2.0
"""What service and workers say to each other is read as it was written, and only public facts become events."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from heatfhe.server.work import orders
from heatfhe.server.work.events import FACTS
from heatfhe.server.work.orders import Assignment, Completed, Opening, Running, facts, pack, unpack
from heatfhe.wire import Limits

OPENING = Opening(
    plan=Path("a.plan"), circuit=Path("/circuit"), engine="native", options={"threads": 2, "device": "cpu"},
    client_folder=Path("/home/ann"), key_set="ab" * 32, memory=1 << 33, limits=Limits(blocks=7), device="cuda:1",
)  # fmt: skip
RECORDS: list[Any] = [
    OPENING,
    Opening(plan=Path("p"), circuit=Path("c"), engine="clear", options={}, client_folder=Path("f"), key_set="k",
            limits=Limits()),
    Assignment(job="j", job_folder=Path("jobs/j"), session_folder=Path("s"), pending=True, seconds_per_unit=1.5,
               client_folder=Path("c"), client_bytes=1 << 36),
    orders.Cancel("j"),
    orders.GiveWay("j"),
    orders.Ready(),
    orders.Broken(code="key_mismatch", message="none of these\nkeys"),
    Running(unit=0, units=3, kind="prompt", steps=2, eta_s=0.1),
    Running(unit=2, units=3, kind="generate", steps=2, eta_s=4.0, step=0, bootstrap=1, bootstraps=9),
    Completed(unit=3, units=3, outputs=2),
    orders.Ended(job="j", state="failed", error="bad_ciphertext", message="level 2"),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    line = pack(record)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert unpack(line) == record
    for field in fields(record):
        assert type(getattr(unpack(line), field.name)) is type(getattr(record, field.name))
        with pytest.raises(FrozenInstanceError):
            setattr(record, field.name, None)


def test_every_record_is_tried_here() -> None:
    assert {type(r) for r in RECORDS} == set(orders._KINDS.values())


def test_only_public_facts_become_events() -> None:
    for record in RECORDS:
        if isinstance(record, (Running, Completed)):
            assert FACTS.issuperset(facts(record))
    told = facts(Running(unit=0, units=3, kind="prompt", steps=2, eta_s=0.1))
    assert told == {"unit": 0, "units": 3, "kind": "prompt", "steps": 2, "eta_s": 0.1}  # no step, no bootstrap yet


@pytest.mark.parametrize(
    "line", ["{}", '{"Cancel": {"job": "j"}, "Ready": {}}', '{"Run": {}}', '{"Cancel": {"id": 1}}']
)
def test_what_is_no_record_is_not_read(line: str) -> None:
    json.loads(line)
    with pytest.raises((ValueError, KeyError)):
        unpack(line)

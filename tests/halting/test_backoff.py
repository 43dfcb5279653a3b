# SPDX-License-Identifier: Apache-2.0
"""The back-off controller: patience in micro-batches, gap in updates, floors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heatfhe.errors import ConfigError
from heatfhe.halting import BackOff
from heatfhe.records import make_site

SITE = make_site("h.0.attn", "softmax_init", 1)  # floor 1, top 9
NAME = SITE.name


def test_starts_at_the_top_and_waits_for_patience() -> None:
    state = BackOff.start([SITE], patience=75, gap=150)
    assert state.targets[NAME].count == 9
    for step in range(74):
        state = state.observe({NAME: 9}, step)
    assert state.targets[NAME].count == 9
    state = state.observe({NAME: 9}, 74)
    assert (state.targets[NAME].count, state.targets[NAME].held) == (8, 0)


def test_gap_holds_the_second_decrement_back() -> None:
    state = BackOff.start([SITE], patience=2, gap=10)
    lowered = []
    for update in range(40):
        before = state.targets[NAME].count
        for _ in range(4):  # four micro-batches an update
            state = state.observe({NAME: 1}, update)
        if state.targets[NAME].count < before:
            lowered.append(update)
    assert lowered == [0, 10, 20, 30]


def test_leaving_the_target_resets_the_wait() -> None:
    state = BackOff.start([SITE], patience=3, gap=0)
    for mode in (9, 9, 9):
        state = state.observe({NAME: mode}, 0)
    assert state.targets[NAME].count == 8
    for mode in (8, 8, 9, 8, 8):
        state = state.observe({NAME: mode}, 1)
    assert state.targets[NAME].count == 8
    assert state.observe({NAME: 8}, 1).targets[NAME].count == 7


def test_never_passes_the_floor_and_counts_from_it() -> None:
    state = BackOff.start([SITE], patience=1, gap=0)
    assert state.above_floor() == [8]
    for update in range(30):
        state = state.observe({NAME: 1}, update)
    assert state.targets[NAME].count == 1
    assert state.above_floor() == [0]


def test_a_family_may_end_above_its_floor() -> None:
    other = make_site("h.0.attn", "softmax_refine", 1)
    state = BackOff.start([SITE, other], patience=1, gap=0, least={"softmax_init": 3})
    for update in range(30):
        state = state.observe({NAME: 1, other.name: 1}, update)
    assert [t.count for t in state.targets.values()] == [3, 1]
    assert state.above_floor() == [2, 0]


def test_stops_where_counts_add_up_to_enough_and_goes_on_where_they_do_not() -> None:
    other = make_site("h.0.attn", "softmax_refine", 1)
    state = BackOff.start([SITE, other], patience=1, gap=0, enough=10)
    for update in range(30):
        state = state.observe({NAME: 6, other.name: 5}, update)  # 11: too many still
    assert [t.count for t in state.targets.values()] == [5, 4]
    state = state.observe({NAME: 5, other.name: 5}, 30)
    assert [t.count for t in state.targets.values()] == [5, 5]  # pulled no further
    assert state.observe({NAME: 4, other.name: 5}, 31) == state  # a count that falls by itself is not pulled up
    state = state.observe({NAME: 5, other.name: 6}, 32)
    assert [t.count for t in state.targets.values()] == [4, 5]  # 11 again: the one on its target goes on


def test_survives_a_checkpoint() -> None:
    state = BackOff.start([SITE], patience=2, gap=5, least={"softmax_init": 2}, enough=7)
    for update in range(7):
        state = state.observe({NAME: 9 - update // 3}, update)
    body = state.as_json()
    assert BackOff.from_json(body) == state
    del body["enough"]  # as it was written before there was such a thing
    assert BackOff.from_json(body) == replace(state, enough=0)


def test_refuses_no_patience() -> None:
    with pytest.raises(ConfigError, match="patience"):
        BackOff.start([SITE], patience=0)
    with pytest.raises(ConfigError, match="enough"):
        BackOff.start([SITE], enough=-1)

# SPDX-License-Identifier: Apache-2.0
"""Odd sequences: each kind is what it says, the same for the same seed, and spread evenly where it is mixed in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.errors import ConfigError
from heatfhe.odd import HARD, KINDS, Hard, beside, hard_tokens, odd_rows, some_of, spread

TEXT = np.arange(8 * 65).reshape(8, 65) % 300
VOCABULARY = 5000


def made(kind: str, count: int = 24, seed: int = 0) -> np.ndarray:
    return odd_rows([kind], count, TEXT, VOCABULARY, seed)


def test_random_tokens_come_from_the_whole_vocabulary() -> None:
    rows = made("random")
    assert rows.shape == (24, 65)
    assert 0 <= rows.min() < 20
    assert VOCABULARY - 20 < rows.max() < VOCABULARY
    assert len(np.unique(rows)) > 0.8 * rows.size  # 1560 of 5000 drawn: some twice


def test_shuffled_rows_are_rows_of_the_text_in_another_order() -> None:
    own = {tuple(sorted(row)) for row in TEXT}
    rows = made("shuffled")
    assert all(tuple(sorted(row)) in own for row in rows)
    assert not any(tuple(row) in {tuple(t) for t in TEXT} for row in rows)


def test_repeated_patterns_have_one_to_eight_tokens() -> None:
    def period(row: np.ndarray) -> int:
        return next(p for p in range(1, 66) if (row[p:] == row[:-p]).all())

    assert {period(row) for row in made("repeated", 100)} == set(range(1, 9))


def test_replaced_rows_keep_a_random_share_of_the_text() -> None:
    rows = made("replaced", 100)
    kept = [max((row == text).mean() for text in TEXT) for row in rows]
    assert min(kept) < 0.1
    assert max(kept) > 0.9
    assert 0.35 < float(np.mean(kept)) < 0.65


def test_runs_repeat_a_pattern_in_stretches_of_text() -> None:
    rows = made("runs", 200)
    kept = np.array([max((row == text).mean() for text in TEXT) for row in rows])
    single = np.array([longest_run(row) for row in rows])  # the text itself never repeats a token
    assert (kept > 0.1).mean() > 0.8  # text is left around them
    assert (kept < 0.9).mean() > 0.8
    assert single.min() == 1  # patterns of several tokens only
    assert (single >= 4).mean() > 0.6
    assert single.max() > 40
    own = np.isin(rows, TEXT).all(axis=1)
    assert 0.1 < own.mean() < 0.6  # of patterns taken from the text, where others come from the whole vocabulary


def longest_run(row: np.ndarray) -> int:
    ends = np.flatnonzero(np.diff(row, prepend=-1, append=-1))
    return int(np.diff(ends).max())


def test_hard_rows_repeat_the_tokens_that_a_model_bears_badly() -> None:
    hard = Hard(np.array([1000, 2000, 3000]), np.array([0.8, 0.2, 0.0]))
    rows = odd_rows([HARD], 400, TEXT, VOCABULARY, 0, hard=hard)
    often = [(rows == token).sum() for token in (1000, 2000, 3000)]
    assert often[2] == 0
    assert 2.5 < often[0] / often[1] < 6.0  # four to one, by their weights
    whole = np.isin(rows, hard.tokens).all(axis=1)
    assert 0.4 < whole.mean() < 0.65  # the others have one stretch of them, in a row of the text
    assert np.isin(rows[~whole], [*TEXT.ravel(), *hard.tokens]).all()
    assert 0.4 < np.mean([len(np.unique(row)) == 1 for row in rows[whole]]) < 0.8


def test_hard_rows_need_a_model_and_without_a_hard_token_take_any() -> None:
    with pytest.raises(ConfigError, match="pass hard="):
        odd_rows([HARD], 4, TEXT, VOCABULARY, 0)
    none = Hard(np.array([], dtype=np.int64), np.array([]))
    assert odd_rows([HARD], 0, TEXT, VOCABULARY, 0).shape == (0, TEXT.shape[1])  # no row: no model is asked
    rows = odd_rows([HARD], 200, TEXT, VOCABULARY, 0, hard=none)
    assert rows.max() > 0.8 * VOCABULARY


def test_hard_tokens_are_found_by_the_head_that_scores_them_high() -> None:
    """One head of two scores tokens 3 and 7 with 20 and 40 where others get 0; the other is at -9 on all of them."""
    vocabulary, asked = 50, []

    def run(tokens: np.ndarray, tap: Callable[[str, np.ndarray], np.ndarray]) -> None:
        asked.append(tokens)
        one = np.select([tokens == 3, tokens == 7], [20.0, 40.0], 0.0)
        scores = np.stack([one, np.full(tokens.shape, -9.0)], axis=1)[:, :, None, :]  # one row, all columns
        tap("h.0.attn/scores", np.repeat(scores, tokens.shape[1], axis=2))
        tap("h.0.attn/sum", 1e9 * scores)

    found = hard_tokens(run, vocabulary, 16, batch=16)
    assert [a.shape for a in asked] == [(16, 16), (16, 16), (16, 16), (2, 16)]
    assert all((a == a[:, :1]).all() for a in asked)
    assert found.tokens.tolist() == [3, 7]
    assert found.weights == pytest.approx(np.array([5.0, 15.0]) ** 2 / 250)  # nats over 5, at divisor 2, squared
    assert not len(hard_tokens(run, vocabulary, 16, held=20.0).tokens)
    asked.clear()
    assert hard_tokens(run, vocabulary, 16, every=7).tokens.tolist() == [7]
    assert np.concatenate(asked)[:, 0].tolist() == list(range(0, 50, 7))


def test_older_kinds_are_the_rows_they_were() -> None:
    four = odd_rows(("random", "shuffled", "repeated", "replaced"), 8, TEXT, VOCABULARY, 0)
    assert four.sum(axis=1).tolist() == [183734, 6305, 162155, 36228, 138617, 7930, 194939, 80781]


def test_kinds_take_turns_and_seeds_differ() -> None:
    rows = odd_rows(KINDS, 10, TEXT, VOCABULARY, 3)
    assert np.array_equal(rows, odd_rows(KINDS, 10, TEXT, VOCABULARY, 3))
    assert not np.array_equal(rows, odd_rows(KINDS, 10, TEXT, VOCABULARY, 4))
    assert all(len(np.unique(rows[i])) <= 8 for i in (2, 7))
    assert all(len(np.unique(rows[i])) > 30 for i in (0, 1, 5, 6))


@given(count=st.integers(1, 400), share=st.floats(0.01, 0.5))
def test_a_share_of_all_is_spread_evenly(count: int, share: float) -> None:
    extra = beside(share, count)
    text, other = np.arange(count)[:, None], -1 - np.arange(extra)[:, None]
    rows, marks = spread(text, other)
    assert np.array_equal(rows[~marks], text)
    assert np.array_equal(rows[marks], other)
    assert abs(extra - share * (count + extra)) <= 1
    within = np.cumsum(marks)
    expected = np.arange(1, len(rows) + 1) * extra / len(rows)
    assert np.abs(within - expected).max() <= 1  # any first part of the windows has its share of them


def test_refusals_and_small_counts() -> None:
    assert (beside(0.0, 100), beside(0.04, 3), beside(0.5, 7)) == (0, 1, 7)
    for share in (-0.1, 0.6, float("nan")):
        with pytest.raises(ConfigError, match=r"--odd is the share .* in \[0, 0.5\]"):
            beside(share, 10, "--odd")
    with pytest.raises(ConfigError, match="'odd' is no kind"):
        odd_rows(["odd"], 1, TEXT, VOCABULARY, 0)
    assert some_of(TEXT, 4)[:, 0].tolist() == TEXT[::2, 0].tolist()
    assert len(some_of(TEXT, 100)) == 8
    assert len(some_of(TEXT, 0)) == 0


@pytest.mark.parametrize("kind", [*KINDS, HARD])
def test_tokens_left_out_are_in_no_window(kind: str) -> None:
    hard = Hard(np.array([3, 5, 7]), np.full(3, 1 / 3))
    banned = [0, 5, *range(10, 30)]
    free = odd_rows([kind], 200, TEXT, VOCABULARY, 0, hard=hard)
    rows = odd_rows([kind], 200, TEXT, VOCABULARY, 0, hard=hard, without=banned)
    assert np.isin(free, banned).any()
    assert not np.isin(rows, banned).any()
    assert np.array_equal(rows[~np.isin(free, banned)], free[~np.isin(free, banned)])
    assert rows.max() < VOCABULARY


def test_a_pattern_stays_one_where_tokens_are_left_out() -> None:
    free = odd_rows(["repeated"], 200, TEXT, VOCABULARY, 0)
    rows = odd_rows(["repeated"], 200, TEXT, VOCABULARY, 0, without=range(VOCABULARY // 2))
    for before, after in zip(free, rows, strict=True):
        assert len(np.unique(np.stack([before, after]), axis=1)[0]) == len(np.unique(before))
    with pytest.raises(ConfigError, match="have none left"):
        odd_rows(["repeated"], 1, TEXT, VOCABULARY, 0, without=range(VOCABULARY))

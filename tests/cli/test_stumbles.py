# SPDX-License-Identifier: Apache-2.0
"""What cost a new user an afternoon, one test each: slips get one line that names the way out, and nothing is silent.

Terminals are in test_terminal.py, training in test_own_model.py, the proxy in tests/client/test_proxy.py.
"""

from __future__ import annotations

from pathlib import Path

from heatfhe.planning import Plan
from tests.server.serving import joined, save_model, served_circuit
from tests.tiny import narrowed


def test_a_simulated_server_counts_what_its_plan_did_not_expect_and_answers(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    narrowed(Plan.load(source.plan), 0.05).save(source.plan)
    with joined(source, tmp_path) as there, there.client() as client:
        answer = client.generate([1, 2, 3], 3)
        assert list(answer.tokens) == served_circuit().generate([1, 2, 3], 3).tokens
        assert answer.exceeded > 0
        again = client.generate([1, 2, 3], 3)
    assert again.exceeded == answer.exceeded  # of each answer alone

# SPDX-License-Identifier: Apache-2.0
"""What every test shares: modules that need torch are left out where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

NEED_TORCH = [
    *("laws/test_laws_1_to_3.py", "laws/test_gpt2_small_wiki.py"),
    *("cli/test_model_owner.py", "cli/test_model_source.py"),
]
collect_ignore = [] if find_spec("torch") else NEED_TORCH


def pytest_report_header() -> str | None:
    """Say what is left out, and why."""
    return None if find_spec("torch") else f"no torch: left out {NEED_TORCH} and the torch side"

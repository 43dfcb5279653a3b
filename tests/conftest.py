# SPDX-License-Identifier: Apache-2.0
"""What every test shares: no limits by the clock, and modules that need torch left out where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # No limits by the clock: an example takes as long as the machine is busy.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")

NEED_TORCH = [
    *("laws/test_laws_1_to_3.py", "laws/test_gpt2_small_wiki.py"),
    *("cli/test_model_owner.py", "cli/test_model_source.py", "test_new_architecture.py"),
]
collect_ignore = [] if find_spec("torch") else NEED_TORCH


def pytest_report_header() -> str | None:
    """Say what is left out, and why."""
    return None if find_spec("torch") else f"no torch: left out {NEED_TORCH} and the torch side"

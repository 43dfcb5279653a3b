# SPDX-License-Identifier: Apache-2.0
"""Goldens: files, messages, digests and residues as an earlier release made them, and the code that makes them again.

Formats and numbers that users hold on disk or send over the wire must not move while the code behind them is rebuilt.
Nothing here is ever rewritten by a test run; ``python -m tests.golden.make`` does that when it is asked to.
"""

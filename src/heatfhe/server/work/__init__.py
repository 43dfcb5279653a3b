# SPDX-License-Identifier: Apache-2.0
"""From queue to engine: who runs when, worker processes, the work of one job, and what is told of it."""

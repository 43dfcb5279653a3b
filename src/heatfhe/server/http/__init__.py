# SPDX-License-Identifier: Apache-2.0
"""The surface: requests checked, bodies read within limits, the service called, answers given."""

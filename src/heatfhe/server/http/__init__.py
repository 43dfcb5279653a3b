# SPDX-License-Identifier: Apache-2.0
"""The surface: requests checked, bodies read within limits, the desk asked, answers given."""

# SPDX-License-Identifier: Apache-2.0
"""Our own CKKS: parameters, scheme and kernels. Nothing here knows a secret but the ``secret`` package."""

from heatfhe.ckks.params import MAX_LOG_QP, Params, claimed_security

__all__ = ["MAX_LOG_QP", "Params", "claimed_security"]

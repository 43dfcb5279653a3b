# SPDX-License-Identifier: Apache-2.0
"""Sites as single GPU kernels for training; each equals the eager site that defines it. Needs triton."""

from heatfhe.sites.fused.activation import activate
from heatfhe.sites.fused.attention import attend, supports
from heatfhe.sites.fused.norm import norm

__all__ = ["activate", "attend", "norm", "supports"]

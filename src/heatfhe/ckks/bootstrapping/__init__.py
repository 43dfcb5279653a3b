# SPDX-License-Identifier: Apache-2.0
"""Bootstrapping: scale down, raise the modulus, coefficients to slots, remove the overflow, slots to coefficients."""

from heatfhe.ckks.bootstrapping.bootstrapper import Bootstrapper, BootstrapSpec, check_period

__all__ = ["BootstrapSpec", "Bootstrapper", "check_period"]

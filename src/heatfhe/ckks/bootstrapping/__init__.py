# SPDX-License-Identifier: Apache-2.0
"""Bootstrapping: slots to coefficients, raise the modulus, coefficients to slots, remove the overflow."""

from heatfhe.ckks.bootstrapping.bootstrapper import Bootstrapper
from heatfhe.ckks.bootstrapping.spec import BootstrapSpec, check_period

__all__ = ["BootstrapSpec", "Bootstrapper", "check_period"]

# SPDX-License-Identifier: Apache-2.0
"""The kernels on an NVIDIA GPU: `.cu` sources compiled at first use, and the protocol over them."""

from heatfhe.ckks.kernels.cuda.device import Buffer, CupyDevice, Device, signature, source
from heatfhe.ckks.kernels.cuda.kernels import CudaKernels

__all__ = ["Buffer", "CudaKernels", "CupyDevice", "Device", "signature", "source"]

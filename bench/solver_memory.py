# SPDX-License-Identifier: Apache-2.0
"""Does an expected solver's memory grow with its count? Bytes saved for backward, ours beside plain autograd's.

    python bench/solver_memory.py [--rows 65536] [--device cuda]

On a GPU, peak memory over forward and backward (max_memory_allocated) instead of saved bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.approx import ReciprocalFit, divide
from heatfhe.halting import expected_divide, probabilities, ramp

FIT = ReciprocalFit(lo=0.5, hi=60.0)


def plain(n: Tensor, d: Tensor, p: Tensor) -> Tensor:
    """sum_k p_k n / d at count k, left to autograd, states shared between the counts."""
    seed = d * -FIT.beta + FIT.alpha
    num, den = n * seed, d * seed
    total = p[0] * num
    for k in range(1, len(p)):
        f = 2.0 - den
        num, den = num * f, den * f
        total = total + p[k] * num
    return total


def ours(n: Tensor, d: Tensor, p: Tensor) -> Tensor:
    """The expected solver."""
    return expected_divide(n, d, FIT, p)


def saved_bytes(run: Callable[[], Tensor]) -> int:
    """Bytes autograd keeps between forward and backward."""
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(seen.values())


def peak_bytes(run: Callable[[], Tensor]) -> int:
    """Peak allocation on the GPU over forward and backward, above what was there before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run().sum().backward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    """Print both curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    n, d = (torch.rand(args.rows, generator=generator).add(0.6).to(args.device).requires_grad_() for _ in range(2))
    check = probabilities(ramp(8)).float().to(args.device)
    assert torch.allclose(ours(n, d, check), plain(n, d, check), rtol=1e-4)
    assert torch.allclose(plain(n, d, check)[:8], sum(check[k] * divide(n, d, FIT, k) for k in range(9))[:8], rtol=1e-4)
    measure = peak_bytes if args.device.startswith("cuda") else saved_bytes
    what = "peak bytes" if args.device.startswith("cuda") else "saved bytes"
    first: dict[str, int] = {}
    for count in (2, 4, 8, 12, 16):
        p = probabilities(ramp(count)).float().to(args.device).requires_grad_()
        found = {name: measure(lambda f=f, p=p: f(n, d, p)) for name, f in (("ours", ours), ("autograd", plain))}
        first = first or found
        print(
            f"{what} count={count:<2} rows={args.rows} | ours {found['ours']} ({found['ours'] / first['ours']:.3f}x of "
            f"count 2) | plain autograd {found['autograd']} ({found['autograd'] / first['autograd']:.2f}x) | "
            f"ours/peer {found['ours'] / found['autograd']:.3f} | {args.device}, torch {torch.__version__}"
        )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels: the same sources under a C++ compiler and on a GPU equal the reference bit for bit."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

from heatfhe.ckks.bootstrapping import BootstrapSpec
from heatfhe.ckks.encoding import Encoder, diagonal
from heatfhe.ckks.expand import expanded, expansion_head, label
from heatfhe.ckks.kernels import ReferenceKernels, load_kernels
from heatfhe.ckks.kernels.cuda import CudaKernels, CupyDevice, tape
from heatfhe.ckks.kernels.plans import division
from heatfhe.ckks.primes import primes_below
from heatfhe.errors import ConfigError, EngineError, MissingExtraError
from tests.ckks import seeded
from tests.ckks.cuda_shim.device import COMPILER, ShimDevice
from tests.ckks.kernel_checks import CHECKS
from tests.ckks.kernel_shapes import SHAPES, moduli
from tests.ckks.seeded import random_words, times_constant

SPEC = BootstrapSpec(stc_levels=2, ratio_bits=14.0)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++ found: the CUDA sources cannot be compiled here")


@lru_cache(maxsize=8)
def shim(n: int) -> tuple[ReferenceKernels, Any]:
    return ReferenceKernels(n, moduli(n)), CudaKernels(n, moduli(n), ShimDevice(n.bit_length() - 1))


@lru_cache(maxsize=8)
def gpu(n: int) -> tuple[ReferenceKernels, Any]:
    return ReferenceKernels(n, moduli(n)), load_kernels("cuda", n, moduli(n))


def check_wide_divisions(make: Any, n: int) -> None:
    """Few primes that leave and many that stay, as tensor cores take them; more that leave than registers hold."""
    primes = tuple(islice(primes_below(1 << 31, n), 40))
    reference, other = ReferenceKernels(n, primes), make(n, primes)
    for leaving in (4, 12, 16, 20, 21, 33):
        plan = division(primes, list(range(40)), list(range(leaving, 40)))
        x = random_words(primes, range(40), (2,), n, leaving)
        wanted, got = (k.download(k.divide(k.upload(x), plan)) for k in (reference, other))
        assert np.array_equal(got, wanted), leaving


@needs_compiler
@pytest.mark.parametrize("name", sorted(CHECKS))
@pytest.mark.parametrize("n", [256, 512, 2048])
def test_every_kernel_under_a_compiler_equals_the_reference(name: str, n: int) -> None:
    for seed, shape in enumerate(SHAPES if n == 256 else SHAPES[:2]):
        CHECKS[name](*shim(n), seed, shape)


@needs_compiler
def test_wide_divisions_under_a_compiler_equal_the_reference() -> None:
    check_wide_divisions(lambda n, primes: CudaKernels(n, primes, ShimDevice(8)), 256)


@pytest.mark.gpu
def test_wide_divisions_on_the_gpu_equal_the_reference() -> None:
    check_wide_divisions(lambda n, primes: load_kernels("cuda", n, primes), 2048)


@pytest.fixture(scope="module")
def refreshed() -> Iterator[Future[dict[str, str]]]:
    """What the reference makes of whole bootstraps at N = 2^13, a minute of numpy: in a process beside other tests."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside:
        yield beside.submit(reference_results, 8192)


@pytest.mark.gpu
@pytest.mark.usefixtures("refreshed")  # begun with the first of these tests, needed by the last
@pytest.mark.parametrize("name", sorted(CHECKS))
@pytest.mark.parametrize("n", [256, 1024, 8192])
def test_every_kernel_on_the_gpu_equals_the_reference(name: str, n: int) -> None:
    for seed, shape in enumerate(SHAPES):
        CHECKS[name](*gpu(n), seed, shape)


def heads(count: int) -> list[bytes]:
    return [expansion_head(bytes(range(32)), bytes(32), label(2, 5, digit)) for digit in range(count)]


def check_expansion(kernels: Any, n: int) -> None:
    rows = np.array([0, 9, 13])
    wanted = expanded(heads(3), [moduli(n)[r] for r in rows], n)
    assert np.array_equal(kernels.download(kernels.uniform(heads(3), rows)), wanted)


@needs_compiler
@pytest.mark.parametrize("n", [256, 8192])  # one chunk of a hash, and two
def test_seeds_expand_alike_under_a_compiler(n: int) -> None:
    check_expansion(CudaKernels(n, moduli(n), ShimDevice(n.bit_length() - 1)), n)


@pytest.mark.gpu
def test_seeds_expand_alike_on_the_gpu() -> None:
    check_expansion(gpu(8192)[1], 8192)


@needs_compiler
def test_a_rejected_word_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One word in 2^33 is rejected: the kernel is made to report one, and its limb is expanded by the reference."""
    kernels = CudaKernels(256, moduli(256), ShimDevice(8))
    launch = kernels.device.launch

    def reporting(kernel: str, grid: Any, block: int, *args: int) -> None:
        launch(kernel, grid, block, *args)
        if kernel == "expand":
            (ctypes.c_uint32 * 3).from_address(args[2])[:] = [1, 4, 7]  # one word, of limb 4
            (ctypes.c_uint32 * 256).from_address(args[1] + 4 * 256 * 4)[:] = [0] * 256

    monkeypatch.setattr(kernels.device, "launch", reporting)
    check_expansion(kernels, 256)


class HostEncoded(CudaKernels):
    """Equal bits begin with equal integers: plaintexts are encoded by the reference's own transform."""

    def encode(self, slots: Any, scale: float, rows: Any) -> Any:
        return self.evaluate(Encoder(self.ring_dimension).encode(slots, scale), rows)

    def diagonals(self, matrices: Any, turns: Any, scale: float, rows: Any) -> Any:
        return self.stack([self.prepare(self.encode(diagonal(matrices, *t), scale, rows), rows) for t in turns])


def results(device: str, n: int, chain: Any, babies: int = 0) -> dict[str, str]:
    """Digests of every operation and of refreshes of both kinds, on seeded keys of many heights."""
    spec = replace(SPEC, cts_babies=babies)
    s = seeded.Scheme(chain, device=device, rotations=(1, 5), periods=(n // 2, 16), spec=spec)
    rng, e, boot = np.random.default_rng(0), s.evaluator, s.bootstrapper
    a, b = (s.encrypt(rng.uniform(-1, 1, n // 2), 5) for _ in range(2))
    low = e.drop(a, 2)
    found = {
        "add": e.add(a, b), "product": e.multiply(a, b), "rotation": e.rotate(a, 5), "conjugate": e.conjugate(a),
        "drop": e.drop(a, 3), "sum": e.add_rotations(a, [1, 5]), "sums": e.multiply_sum([(a, b), (b, b)], [(a, 3)]),
        "constant": times_constant(e, a, 0.37),
    }  # fmt: skip
    for turn in range(3 if device == "cuda" else 1):  # as it is, recorded, replayed
        found[f"refresh {turn}"] = boot.bootstrap_real(low, period=n // 2)
        found[f"short {turn}"] = boot.bootstrap_real(low, period=16)
        found[f"pair {turn}"], _ = boot.bootstrap_pair(low, e.drop(b, 2), period=n // 2)
    read = e.ring.kernels.download
    return {name: hashlib.sha256(read(c.data).tobytes()).hexdigest() for name, c in found.items()}


def reference_results(n: int) -> dict[str, str]:
    return results("reference", n, seeded.small_chain(n, 5, end=49))


def sums(device: str, n: int) -> list[bytes]:
    """Words of sums of one, three and seven rotations at two levels, each as it is, recorded and replayed."""
    s = seeded.Scheme(seeded.small_chain(n, 5, end=49), device=device, rotations=tuple(range(1, 8)))
    a = s.encrypt(np.random.default_rng(1).uniform(-1, 1, n // 2), 5)
    values = [a, s.evaluator.drop(a, 2)] * 3
    found = [s.evaluator.add_rotations(v, list(range(1, 1 + k))) for v in values for k in (1, 3, 7)]
    return [s.evaluator.ring.kernels.download(c.data).tobytes() for c in found]


@needs_compiler
def test_sums_of_rotations_are_the_same_words_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="the compiled kernels need numba")
    wanted = sums("reference", 256)
    assert sums("cpu", 256) == wanted
    monkeypatch.setattr(seeded, "load_kernels", lambda _d, n, m, threads=1: HostEncoded(n, m, ShimDevice(8)))
    assert sums("shim", 256) == wanted


@pytest.mark.gpu
def test_sums_of_rotations_on_the_gpu_are_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = sums("reference", 8192)
    monkeypatch.setattr(seeded, "load_kernels", lambda _d, n, m, threads=1: HostEncoded(n, m, CupyDevice(13)))
    assert sums("cuda", 8192) == wanted


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("babies", [0, 8])
def test_a_whole_bootstrap_under_a_compiler_equals_the_reference(babies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = seeded.small_chain(256, 5, end=49)
    wanted = results("reference", 256, chain, babies)
    monkeypatch.setattr(seeded, "load_kernels", lambda _d, n, m, threads=1: HostEncoded(n, m, ShimDevice(8)))
    assert results("shim", 256, chain, babies) == wanted


@pytest.mark.gpu
def test_a_whole_bootstrap_on_the_gpu_equals_the_reference(
    refreshed: Future[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeded, "load_kernels", lambda _d, n, m, threads=1: HostEncoded(n, m, CupyDevice(13)))
    found, wanted = results("cuda", 8192, seeded.small_chain(8192, 5, end=49)), refreshed.result()
    for name, digest in found.items():
        assert digest == wanted[name.replace(" 1", " 0").replace(" 2", " 0")], name


def test_rings_that_the_kernels_do_not_take_are_refused() -> None:
    with pytest.raises(ConfigError, match="256 to 65536, got 128"):
        CudaKernels(128, moduli(128), None)  # type: ignore[arg-type]


def test_a_missing_library_or_driver_is_named() -> None:
    try:
        import cupy  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(MissingExtraError, match="cuda"):
            load_kernels("cuda", 256, moduli(256))
    else:
        pytest.skip("CuPy is installed here")


@needs_compiler
def test_a_tape_plays_the_same_launches_on_other_operands() -> None:
    reference, kernels = shim(256)
    device, rows = kernels.device, np.array([0, 8, 9])
    plan = division(moduli(256), [0, 8, 9], [0, 8])

    def body(x: Any, y: Any) -> list[Any]:
        total = kernels.add(x, y, rows)
        return [kernels.divide(total, plan), kernels.polynomial(kernels.negate(total, rows), 1)]

    seen = []
    for turn in range(4):
        x, y = (random_words(moduli(256), rows, (2,), 256, 10 * turn + i) for i in range(2))
        device.launches.clear()
        quotient, negated = kernels.replay("a tape", body, kernels.upload(x), kernels.upload(y), short=True)
        seen.append([name for name in device.launches if name != "reorder"])
        total = reference.add(reference.upload(x), reference.upload(y), rows)
        assert np.array_equal(kernels.download(quotient), reference.download(reference.divide(total, plan)))
        assert np.array_equal(kernels.download(negated), reference.download(reference.negate(total, rows)[1]))
    assert seen[0] != []
    assert seen[2:] == [["deliver", *seen[0]]] * 2  # played; before that recorded and played, and as it is


@needs_compiler
def test_the_lines_of_a_mailbox_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "LINES", 3)
    kernels = CudaKernels(256, moduli(256), ShimDevice(8))
    rows, waits = np.array([0]), []
    monkeypatch.setattr(kernels.device, "synchronize", lambda: waits.append(1))
    for turn in range(12):  # as it is, then recorded, and from then on through the mailbox
        x, y = (random_words(moduli(256), [0], (2,), 256, 2 * turn + i) for i in range(2))
        (total,) = kernels.replay(
            "add", lambda a, b: [kernels.add(a, b, rows)], *map(kernels.upload, (x, y)), short=True
        )
        assert np.array_equal(kernels.download(total), (x + y) % moduli(256)[0])
    assert len(waits) == 3  # before plays 4, 7 and 10 of 11


@needs_compiler
def test_an_operation_with_more_operands_than_cells_is_not_recorded() -> None:
    _, kernels = shim(256)
    rows = np.array([0])

    def body(*values: Any) -> list[Any]:
        total = values[0]
        for value in values[1:]:
            total = kernels.add(total, value, rows)
        return [total]

    words = [random_words(moduli(256), [0], (2,), 256, i) for i in range(tape.CELLS + 1)]
    for _ in range(3):
        (total,) = kernels.replay("many", body, *map(kernels.upload, words), short=True)
        assert np.array_equal(kernels.download(total), sum(w.astype(np.uint64) for w in words) % moduli(256)[0])


@needs_compiler
def test_a_tape_that_needs_the_host_is_refused() -> None:
    _, kernels = shim(256)
    x = kernels.upload(random_words(moduli(256), [0], (2,), 256, 0))

    def body(x: Any) -> list[Any]:
        return [kernels.add_first(x, kernels.evaluate(np.arange(256), np.array([0])), np.array([0]))]

    kernels.replay("not a tape", body, x, short=True)
    with pytest.raises(EngineError, match="run it once before"):
        kernels.replay("not a tape", body, x, short=True)

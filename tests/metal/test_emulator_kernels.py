"""Correct kernels give the right numbers on the emulator, in whatever order threads run."""

import mlx.core as mx
import pytest

from pagedkv_metal import EmulatorBackend
from pagedkv_protocols.conformance import KernelBackendConformance
from tests.metal.attention import Case, attended, emulated
from tests.metal.emulated import Kernel, Template, launched, sample
from tests.mlx_arrays import MLXArrays, mlx_dtype

NUMBERS = [(11 * i % 37 - 18) / 4 for i in range(256)]
SEEDS = range(12)
DTYPES = [mx.float32, mx.float16, mx.bfloat16, mx.uint8, mx.uint16, mx.uint32, mx.int32, mx.bool_]
CASES = [
    Case(mx.float32, heads=1, dim=64, block=1, length=1),
    Case(mx.float32, heads=2, dim=32, block=16, length=63),
    Case(mx.float32, heads=3, dim=64, block=3, length=64),
    Case(mx.float32, heads=1, dim=128, block=48, length=300),
    Case(mx.bfloat16, heads=3, dim=32, block=48, length=65),
    Case(mx.bfloat16, heads=1, dim=64, block=16, length=17),
    Case(mx.bfloat16, heads=2, dim=128, block=3, length=129),
    Case(mx.float16, heads=2, dim=64, block=256, length=257),
]


class TestContract(KernelBackendConformance[mx.array, mx.Dtype]):
    """What any kernel backend promises."""

    arrays = MLXArrays()

    def new_backend(self):
        return EmulatorBackend()

    def dtype_named(self, name):
        return mlx_dtype(name)


def close(a: mx.array, b: mx.array, tolerance: float) -> bool:
    return bool(mx.allclose(a, b, rtol=tolerance, atol=tolerance))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_in_and_comes_out(dtype):
    x = mx.array([0, 1, 2, 100] * 16).astype(dtype)
    [y] = launched(
        sample("scale"),
        {"x": x, "factor": mx.array([1.0])},
        {"y": ((64,), dtype)},
        grid=(64, 1, 1),
        template=[("T", dtype), ("N", 0)],
    )
    assert y.dtype == dtype
    assert mx.array_equal(x, y)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_a_16_bit_float_is_rounded_as_mlx_rounds_it(dtype):
    every = mx.arange(1 << 16, dtype=mx.uint32).astype(mx.uint16).view(dtype)
    beyond = every.astype(mx.float32).view(mx.uint32)
    rounded = mx.concatenate([beyond + step for step in (0, 1, 0x7FF, 0x1000, 0x1001, 0x8000)])
    x = rounded.view(mx.float32)
    kernel = Kernel("kernel", "uint i = thread_position_in_grid.x; y[i] = T(x[i]);")
    [y] = launched(kernel, {"x": x}, {"y": (x.shape, dtype)}, grid=(x.size, 1, 1),
                   threadgroup=(1024, 1, 1), template=[("T", dtype)])  # fmt: skip
    right = x.astype(dtype)
    is_number = mx.logical_not(mx.isnan(x))
    same = mx.equal(y.view(mx.uint16), right.view(mx.uint16))
    assert mx.all(mx.where(is_number, same, mx.isnan(y)))


def test_a_template_takes_dtypes_integers_and_bools():
    kernel = Kernel("kernel", "y[thread_position_in_grid.x] = B ? T(N) : T(x[0]);")
    template: Template = [("T", mx.int32), ("N", -5), ("B", True)]
    [y] = launched(kernel, {"x": mx.zeros(8)}, {"y": ((32,), mx.int32)}, grid=(32, 1, 1),
                   template=template)  # fmt: skip
    assert y.tolist() == [-5] * 32


@pytest.mark.parametrize("seed", SEEDS)
def test_a_threadgroup_reduces_in_any_order(seed):
    [y] = launched(
        sample("block_sum"),
        {"x": mx.array(NUMBERS)},
        {"y": ((4,), mx.float32)},
        grid=(256, 1, 1),
        threadgroup=(64, 1, 1),
        template=[("T", mx.float32), ("SIZE", 64)],
        backend=EmulatorBackend(seed=seed),
    )
    assert y.tolist() == [sum(NUMBERS[i : i + 64]) for i in range(0, 256, 64)]


@pytest.mark.parametrize("seed", SEEDS)
def test_simd_operations_see_all_32_lanes(seed):
    [out] = launched(
        sample("simd"),
        {"x": mx.array(NUMBERS)},
        {"out": ((6, 256), mx.float32)},
        grid=(256, 1, 1),
        threadgroup=(128, 1, 1),
        backend=EmulatorBackend(seed=seed),
    )
    lanes = mx.array(NUMBERS).reshape(8, 32)
    right = [
        mx.repeat(lanes.sum(axis=1), 32),
        mx.repeat(lanes.max(axis=1), 32),
        mx.repeat(lanes.min(axis=1), 32),
        lanes[:, mx.arange(32) ^ 5].flatten(),
        mx.cumsum(lanes, axis=1).flatten(),
        mx.repeat(lanes[:, 7], 32),
    ]
    assert mx.array_equal(out, mx.stack(right))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_simdgroup_exchanges_through_memory_behind_its_own_barrier(seed):
    x = mx.arange(8 * 64, dtype=mx.float32).reshape(8, 64)
    [y] = launched(
        sample("transpose"),
        {"x": x},
        {"y": ((64, 8), mx.float32)},
        grid=(64, 8, 1),
        threadgroup=(32, 4, 1),
        template=[("COLUMNS", 64), ("ROWS", 8)],
        backend=EmulatorBackend(seed=seed),
    )
    assert mx.array_equal(y, x.T)


def test_vectors_load_compute_and_store():
    x = mx.array(NUMBERS)
    [y] = launched(sample("wide"), {"x": x}, {"y": ((256,), mx.float32)}, grid=(64, 1, 1))
    a = x.reshape(64, 4)
    b = mx.concatenate([mx.ones((64, 1)), a[:, :3]], axis=1)
    index = mx.arange(64, dtype=mx.float32)[:, None]
    added = mx.concatenate([index, mx.zeros((64, 2)), mx.ones((64, 1))], axis=1)
    assert mx.array_equal(y.reshape(64, 4), mx.maximum(a * b + 0.5 + added, -1.0))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_split_attention_is_right(case):
    out, right = attended(case)
    assert close(out, right, 1e-5 if case.dtype == mx.float32 else 8e-3)


def test_split_attention_gives_the_same_bits_in_every_order():
    case = Case(mx.bfloat16, heads=2, dim=64, block=16, length=100)
    inputs = case.inputs()
    first = emulated(case, inputs)
    for seed in SEEDS:
        assert mx.array_equal(emulated(case, inputs, EmulatorBackend(seed=seed)), first)


def test_a_kernel_sees_where_it_stands_in_three_dimensions():
    body = """
        const uint3 at = thread_position_in_grid;
        const uint3 size = threads_per_grid;
        const uint i = (at.z * size.y + at.y) * size.x + at.x;
        y[i] = threadgroup_position_in_grid.z * 1000000 + threadgroup_position_in_grid.y * 10000 +
               threadgroup_position_in_grid.x * 1000 + thread_index_in_threadgroup;
    """
    [y] = launched(Kernel("kernel", body), {"x": mx.zeros(8)}, {"y": ((2, 4, 6), mx.uint32)},
                   grid=(6, 4, 2), threadgroup=(3, 2, 1))  # fmt: skip
    z, r, c = mx.arange(2)[:, None, None], mx.arange(4)[:, None], mx.arange(6)
    right = z * 1000000 + r // 2 * 10000 + c // 3 * 1000 + r % 2 * 3 + c % 3
    assert mx.array_equal(y, right)


def test_shape_strides_and_rank_reach_the_kernel():
    body = """
        const uint i = thread_position_in_grid.x;
        y[i] = i < uint(x_ndim) ? x_shape[i] * 100 + int(x_strides[i]) : x_ndim;
    """
    [y] = launched(Kernel("kernel", body), {"x": mx.zeros((2, 3, 4))}, {"y": ((32,), mx.int32)},
                   grid=(32, 1, 1))  # fmt: skip
    assert y[:4].tolist() == [212, 304, 401, 3]


def test_a_strided_view_is_read_as_the_rows_that_it_shows():
    x = mx.arange(128, dtype=mx.float32).reshape(2, 64).T
    [y] = launched(
        sample("scale"),
        {"x": x, "factor": mx.array([1.0])},
        {"y": ((64, 2), mx.float32)},
        grid=(128, 1, 1),
        template=[("T", mx.float32), ("N", 0)],
    )
    assert mx.array_equal(y, x)


def test_empty_arrays_pass():
    kernel = Kernel("kernel", "if (thread_position_in_grid.x > 99) { y[0] = x[0]; }")
    [y] = launched(kernel, {"x": mx.zeros((0,))}, {"y": ((0, 3), mx.float32)}, grid=(32, 1, 1))
    assert y.shape == (0, 3)

"""What the emulator refuses, keeps, and leaves as it was."""

import concurrent.futures
import os
import pathlib
import sys
from typing import cast

import mlx.core as mx
import pytest

from pagedkv_metal import EmulatorBackend, EmulatorFault
from pagedkv_metal.emulator import address_spaces, compiler, front, marks
from pagedkv_protocols import InvalidArgument, Unsupported
from tests.metal.emulated import Kernel, launched, sample

DOUBLE = Kernel("double", "uint i = thread_position_in_grid.x; y[i] = x[i] + x[i];")


def doubled(backend: EmulatorBackend | None = None, kernel: Kernel = DOUBLE) -> list[float]:
    [y] = launched(kernel, {"x": mx.arange(32.0)}, {"y": ((32,), mx.float32)}, grid=(32, 1, 1),
                   backend=backend)  # fmt: skip
    return cast("list[float]", y.tolist())


def files(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("grid", "threadgroup"),
    [((33, 1, 1), (32, 1, 1)), ((32, 3, 1), (32, 2, 1)), ((0, 1, 1), (32, 1, 1)),
     ((2048, 1, 1), (2048, 1, 1)), ((32, 1, 1), (0, 1, 1))],
)  # fmt: skip
def test_a_grid_that_is_no_multiple_of_a_legal_threadgroup_is_refused(grid, threadgroup):
    with pytest.raises(InvalidArgument, match="a multiple of its threadgroup"):
        launched(DOUBLE, {"x": mx.zeros(8)}, {"y": ((32,), mx.float32)}, grid=grid,
                 threadgroup=threadgroup)  # fmt: skip


def test_as_many_outputs_as_were_named_are_wanted():
    launch = EmulatorBackend().compile("double", DOUBLE.source, ["x"], ["y"])
    with pytest.raises(InvalidArgument, match="got 1 inputs, 2 output shapes and 1 output dtypes"):
        launch(inputs=[mx.zeros(8)], template=[], grid=(32, 1, 1), threadgroup=(32, 1, 1),
               output_shapes=[(32,), (32,)], output_dtypes=[mx.float32])  # fmt: skip


def test_the_backend_says_what_it_compiles_with_and_that_address_spaces_are_checked():
    """Should clang's front end be missing here, half of the checks would be."""
    options = EmulatorBackend().options()
    assert EmulatorBackend().name == "emulator"
    assert "-fsanitize=thread" in options["flags"]
    assert "clang version" in options["address spaces"]


def test_without_clangs_front_end_a_kernel_runs_and_the_options_say_what_is_missing(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(address_spaces, "clang_version", lambda: "")
    backend = EmulatorBackend(cache=tmp_path)
    assert doubled(backend)[3] == 6
    assert "pagedkv-metal[emulator]" in backend.options()["address spaces"]


def test_without_a_compiler_the_emulator_is_unsupported(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    compiler.find_compiler.cache_clear()
    try:
        with pytest.raises(Unsupported, match="install g\\+\\+ or clang\\+\\+"):
            EmulatorBackend().compile("double", DOUBLE.source, ["x"], ["y"])
    finally:
        compiler.find_compiler.cache_clear()


def test_on_another_system_the_emulator_is_unsupported(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    compiler.find_compiler.cache_clear()
    try:
        with pytest.raises(Unsupported, match="this is darwin"):
            EmulatorBackend().compile("double", DOUBLE.source, ["x"], ["y"])
    finally:
        compiler.find_compiler.cache_clear()


def test_a_kernel_is_compiled_once_for_each_text_and_flags(tmp_path):
    backend = EmulatorBackend(cache=tmp_path)
    doubled(backend)
    first = files(tmp_path)
    assert len(first) == 2  # the runner and the kernel
    doubled(EmulatorBackend(cache=tmp_path, seed=5))
    assert files(tmp_path) == first
    doubled(backend, DOUBLE._replace(source=DOUBLE.source + "\n"))
    assert len(files(tmp_path)) == 3


def test_a_kernel_that_does_not_compile_leaves_nothing_behind(tmp_path):
    with pytest.raises(EmulatorFault):
        doubled(EmulatorBackend(cache=tmp_path), DOUBLE._replace(source="y[0] = nothing;"))
    assert [name for name in files(tmp_path) if name.endswith(".so")] == []


def test_threads_share_an_empty_cache(tmp_path):
    """As processes do: whoever is later replaces a file by its like."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        several = [pool.submit(doubled, EmulatorBackend(cache=tmp_path)) for _ in range(2)]
    assert {one.result()[7] for one in several} == {14.0}
    assert len(files(tmp_path)) == 2


def test_what_others_print_stays_on_standard_output(capfd):
    print("before", flush=True)
    doubled()
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "before\nafter\n"


def test_mlx_chooses_the_address_space_and_says_which_positions_there_are():
    kernel = front.KernelText(
        "k", "y[thread_index_in_simdgroup] = few[0] + many[0];", ("few", "many"), ("y",), ""
    )
    text = front.metal_text(kernel, [mx.zeros(7), mx.zeros(8)], [], [(32,)], [mx.float32])
    assert [(p.type, p.name) for p in text.parameters] == [
        ("const constant float*", "few"),
        ("const device float*", "many"),
        ("device float*", "y"),
        ("uint", "thread_index_in_simdgroup"),
    ]


LOOPS = """
float total = 0.0f;
for (uint k = 0; k < 3; k++) total += simd_sum(x[0]);
uint n = 0;
do {
    n++;
    if (n == 2) continue; else total += simd_sum(1.0f);
} while (n < 4);
do total += once(); while (total < 0.0f);
#pragma unroll
for (uint k = 0; k < 2; k++)
    if (k == 0)
        total += once();
    else
        total += TWICE(1.0f);
if (total > 0.0f) while (n < 6) { n += 1; total += simd_max(1.0f); } else total = -1.0f;
// for (;;) simd_sum(1.0f); "while ("
y[thread_position_in_grid.x] = total;
"""
HEADER = """
#define TWICE(v) (simd_sum(v) + \\
                  simd_sum(v))
constexpr int triangle(int n) {
    int sum = 0;
    for (int i = 1; i <= n; i++) { sum += i; }
    return sum;
}
constant int TABLE[2] = {triangle(2), triangle(3)};
float once();
inline float once() { return simd_max(float(TABLE[0])); }
"""


def test_every_way_to_write_a_loop_keeps_its_meaning():
    [y] = launched(Kernel("loops", LOOPS, HEADER), {"x": mx.ones(8)}, {"y": ((32,), mx.float32)},
                   grid=(32, 1, 1))  # fmt: skip
    assert y.tolist() == [3 * 32 + 3 * 32 + 3 + 3 + 64 + 2] * 32


def test_marks_leave_every_line_where_it_was():
    kernel = front.KernelText("k", LOOPS, ("x",), ("y",), HEADER)
    header, source = marks.marked(kernel)
    assert header.count("\n") == HEADER.count("\n")
    assert source.count("\n") == LOOPS.count("\n")
    assert source.count("pkv::Loop") == 5
    assert source.count("pkv::Call") == 3


def test_threadgroup_memory_is_named_in_all_its_forms():
    body = """
    threadgroup float a[2][32], b; threadgroup
        metal::vec<float, 4> c[2 * D];
    threadgroup float* p = a[1];
    uint lane = thread_index_in_simdgroup;
    p[lane] = x[lane];
    if (lane == 0) { b = 1.0f; c[3] = float4(2.0f); }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[lane] = at(p, 31 - lane) + b + c[3].w + a[1][lane];
    """
    header = "inline float at(threadgroup float* p, uint i) { return p[i]; }"
    [y] = launched(Kernel("kernel", body, header), {"x": mx.arange(32.0)},
                   {"y": ((32,), mx.float32)}, grid=(32, 1, 1), template=[("D", 2)])  # fmt: skip
    assert y.tolist() == [34.0] * 32


def test_threadgroup_memory_with_an_initializer_is_refused():
    with pytest.raises(EmulatorFault, match=r"compile|not Metal"):
        doubled(kernel=DOUBLE._replace(source="threadgroup float a[2] = {1, 2};" + DOUBLE.source))


def test_a_hash_may_wrap():
    body = "uint i = thread_position_in_grid.x; y[i] = float((i * 2654435761u) >> 24);"
    assert doubled(kernel=Kernel("kernel", body))[2] == float((2 * 2654435761 % (1 << 32)) >> 24)


def test_the_example_of_mlxs_documentation_runs():
    body = """
    uint elem = thread_position_in_grid.x;
    uint loc = elem_to_loc(elem, inp_shape, inp_strides, inp_ndim);
    T tmp = inp[loc];
    out[elem] = metal::exp(tmp);
    """
    a = mx.arange(64).reshape(4, 16).astype(mx.float16) / 16
    [out] = launched(Kernel("myexp", body), {"inp": a}, {"out": ((4, 16), mx.float16)},
                     grid=(64, 1, 1), template=[("T", mx.float16)])  # fmt: skip
    assert mx.allclose(out, mx.exp(a), rtol=1e-3)


def test_sixteen_bit_arithmetic_rounds_after_each_operation():
    x = mx.array([1.0, 1.0009765625, 3.0, 65504.0] * 8, mx.float16)
    body = "uint i = thread_position_in_grid.x; T a = x[i]; a += a; y[i] = a * x[i] - x[i];"
    [y] = launched(Kernel("kernel", body), {"x": x}, {"y": ((32,), mx.float16)}, grid=(32, 1, 1),
                   template=[("T", mx.float16)])  # fmt: skip
    assert mx.array_equal(y, (x + x) * x - x)


def test_samples_open_with_their_contract():
    for name in ("scale", "block_sum", "simd", "transpose", "wide", "split_attention", "merge"):
        assert sample(name).source.startswith("// ")

"""Faults planted in correct kernels, each caught by a report that says what and where.

Every kernel here runs right without its edit: ``test_emulator_kernels.py`` proves it.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import pytest

from pagedkv_metal import EmulatorBackend, EmulatorFault
from tests.metal.attention import SPLIT, Case, emulated
from tests.metal.emulated import Kernel, launched, sample

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
FULL = Case(mx.bfloat16, heads=2, dim=64, block=15, length=120)
"""Its table has no padding: eight blocks, all of them full."""


class Fault(NamedTuple):
    """An edit of ``split_attention``, and what the report says."""

    old: str
    new: str
    says: Sequence[str]


ATTENTION_FAULTS = {
    "a length that is one too long": Fault(
        "metal::min(position, end - 1)",
        "metal::min(position, end)",
        ["access out of bounds", "offset 32 of input table, which has 32 bytes", ".metal:34"],
    ),
    "a read past the table": Fault(
        "table[seen / BLOCK]",
        "table[seen / BLOCK + 1]",
        ["access out of bounds", "reads 4 bytes at offset 32 of input table", ".metal:34"],
    ),
    "a read before a plane": Fault(
        "keys[row + d]",
        "keys[long(d) - 64]",
        ["access out of bounds", "of input keys", "offset -"],
    ),
    "a read past threadgroup memory by a pointer": Fault(
        "float mine = scores[thread_index];",
        "auto far = scores + 60; float mine = far[thread_index];",
        ["access out of bounds", "of threadgroup memory scores, which has 256 bytes", ".metal:47"],
    ),
    "a read past threadgroup memory by an index": Fault(
        "float mine = scores[thread_index];",
        "float mine = scores[thread_index + 60];",
        ["index out of bounds", "takes element", "[64]'", ".metal:47"],
    ),
    "an address that does not fit its int": Fault(
        "((ulong(slot) * block + row) * heads + head) * dim",
        "((ulong(int(slot) * 100000000 * int(block)) + row) * heads + head) * dim",
        ["signed overflow", "which no 'int' holds", "split_attention.h:3"],
    ),
    "an address cut to 32 bits": Fault(
        "const ulong row = address(table[seen / BLOCK]",
        "const uint row = address(table[seen / BLOCK]",
        ["is not Metal", ".metal:34", "loses integer precision: 'ulong'"],
    ),
    "threadgroup memory that nobody wrote": Fault(
        "for (uint d = thread_index; d < D; d += 64) {\n    query",
        "for (uint d = thread_index + 1; d < D; d += 64) {\n    query",
        ["uninitialised threadgroup memory", "reads offset 0 of query", ".metal:37"],
    ),
    "an output that two threads write": Fault(
        "if (thread_index == 0) {\n    sums",
        "if (lane == 0) {\n    sums",
        ["output written twice", "of output sums", "wrote", ".metal:7"],
    ),
    "an output that nobody writes": Fault(
        "    sums[(head * partitions + partition) * 2] = top;\n",
        "",
        ["output never written", "16 of 32 bytes of output sums, the first at offset 0"],
    ),
    "an output that is read before it is written": Fault(
        "float weighed = 0.0f;",
        "float weighed = partial[(head * partitions + partition) * D + d];",
        ["output read before it is written", "of output partial", ".metal:66"],
    ),
    "an input that is written": Fault(
        "    score = simd_sum(score);",
        "    ((device T*)keys)[row] = T(score); score = simd_sum(score);",
        ["input written", "of input keys", ".metal:39"],
    ),
    "a simd operation that only half of the lanes reach": Fault(
        "    score = simd_sum(score);",
        "    if (lane < 16) { score = simd_sum(score); }",
        [
            "simd operation that only some lanes reach",
            "threads 0-15 waited in simd_sum at split_attention.metal:39",
            "threads 16-31 waited in threadgroup_barrier at split_attention.metal:44",
        ],
    ),
    "a simd operation in both branches": Fault(
        "    score = simd_sum(score);",
        "    if (lane < 16) { score = simd_sum(score); } else {\n score = simd_sum(score); }",
        [
            "simd operation that lanes reach differently",
            "waited in simd_sum at split_attention.metal:39",
            "waited in simd_sum at split_attention.metal:40",
        ],
    ),
    "a function with simd operations called in both branches": Fault(
        "const float sum = across_lanes(mine);",
        "const float sum = lane < 16 ? across_lanes(mine) : across_lanes(mine);",
        [
            "simd operation that lanes reach differently",
            "waited in simd_shuffle_xor at split_attention.h:9, iteration 1",
            "called at split_attention.metal:58",
        ],
    ),
    "a lane that skips an iteration": Fault(
        "    const uint position = start + i;\n    const uint seen",
        "    const uint position = start + i; if (i == 2 * lane + 8) { continue; }\n"
        "    const uint seen",
        [
            "simd operation that lanes reach differently",
            "simd_sum at split_attention.metal:39, iteration 6 of the loop at",
            "simd_sum at split_attention.metal:39, iteration 5 of the loop at",
        ],
    ),
    "a loop whose bound differs between lanes": Fault(
        "i < PARTITION; i += 2) {",
        "i < PARTITION - lane / 31; i += 2) {",
        ["simd operation that only some lanes reach", "iteration 32 of the loop at", "thread 63"],
    ),
    "a thread that returns early": Fault(
        "// Score the positions, one simdgroup each.",
        "if (thread_index == 5) { return; }",
        ["simd operation that only some lanes reach", "thread 5 ended"],
    ),
    "a loop without an end": Fault(
        "d < D; d += 32) {\n        score",
        "d < D; d += 0) {\n        score",
        ["endless kernel", "still ran after 1 seconds", "split_attention.metal:3", "thread ("],
    ),
    "a pointer to nothing": Fault(
        "float(values[row + d])",
        "float(*(const device T*)(row * 0))",
        ["access to no buffer", "thread (", "split_attention.metal:70"],
    ),
    "a load that is not aligned": Fault(
        "float(keys[row + d])",
        "((const device float*)(keys + row + d))[0]",
        ["misaligned access", "alignment 4", "split_attention.metal:37"],
    ),
    "a shift past the width": Fault(
        "const uint start = partition * PARTITION;",
        "const uint start = partition * PARTITION + (0u << (partition + 32));",
        ["shift without a result", "by 32", "split_attention.metal:17"],
    ),
    "a division by zero": Fault(
        "table[seen / BLOCK]",
        "table[seen / (lane - lane)]",
        ["division without a result", "/ 0", "split_attention.metal:34"],
    ),
    "an index past a private array": Fault(
        "float weighed = 0.0f;",
        "float own[4] = {}; own[2 + int(lane)] = 0.0f; float weighed = own[0];",
        ["index out of bounds", "takes element", "[4]'", "split_attention.metal:66"],
    ),
    "more stack than there is": Fault(
        "const float top = ",
        "float big[100000]; for (uint i = 0; i < 100000; i++) { big[i] = float(i ^ lane); }\n"
        "const float top = big[thread_index] + ",
        ["too much private memory", "256 KiB"],
    ),
    "more threadgroup memory than there is": Fault(
        "threadgroup float query[D];",
        "threadgroup float big[8192]; threadgroup float query[D];",
        ["too much threadgroup memory", "query", "32768 bytes"],
    ),
    "a name that Metal does not have": Fault(
        "simd_max(mine)",
        "simd_largest(mine)",
        ["is not Metal", "split_attention.metal:48", "simd_largest"],
    ),
    "a function that metal:: does not have": Fault(
        "metal::exp2(mine - top)",
        "metal::exp5(mine - top)",
        ["is not Metal", "split_attention.metal:56", "exp5"],
    ),
    "a variable without a value": Fault(
        "float score = 0.0f;",
        "float unset; float score = unset;",
        ["is not Metal", "split_attention.metal:35", "uninitialized"],
    ),
    "pointers into two address spaces": Fault(
        "table[seen / BLOCK]",
        "(lane == 0 ? table : scores)[seen / BLOCK]",
        ["is not Metal", "split_attention.metal:34", "incompatible operand types"],
    ),
    "a store to an input": Fault(
        "    score = simd_sum(score);",
        "    keys[row] = T(score);",
        ["is not Metal", "split_attention.metal:39", "read-only variable is not assignable"],
    ),
}


def report_of(kernel: Kernel, seed: int = 0, case: Case = FULL) -> str:
    with pytest.raises(EmulatorFault) as caught:
        emulated(case, case.inputs(), EmulatorBackend(seed=seed, cpu_seconds=1), kernel)
    return str(caught.value)


@pytest.mark.parametrize("fault", ATTENTION_FAULTS.values(), ids=ATTENTION_FAULTS)
def test_a_report_names(fault):
    report = report_of(SPLIT.edited(fault.old, fault.new))
    assert [part for part in fault.says if part not in report] == [], report
    assert report.startswith("kernel split_attention")


def without_barrier(number: int) -> Kernel:
    parts = SPLIT.source.split(BARRIER)
    assert len(parts) == 5
    source = BARRIER.join(parts[:number]) + "\n" + BARRIER.join(parts[number:])
    return SPLIT._replace(source=source)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("number", "variable"), [(1, "query"), (2, "scores"), (3, "largest"), (4, "scores|total")]
)
def test_a_missing_barrier_is_seen_in_every_order(number, variable, seed):
    report = report_of(without_barrier(number), seed)
    race = (
        rf"reads offset \d+ of ({variable}) at \S+:\d+, which thread \d+ of its threadgroup wrote"
    )
    nothing = rf"uninitialised threadgroup memory: .* reads offset \d+ of ({variable}) at \S+:\d+"
    assert re.search(rf"(race in threadgroup memory: .* {race})|({nothing})", report), report


@pytest.mark.parametrize("seed", range(6))
def test_a_write_too_soon_after_a_read_is_a_race(seed):
    """The other order: nobody reads a wrong number yet."""
    kernel = Kernel(
        "kernel",
        """threadgroup float shared[1];
        if (thread_index_in_threadgroup == 0) { shared[0] = 1.0f; }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[thread_position_in_grid.x] = shared[0];
        if (thread_index_in_threadgroup == 40) { shared[0] = 2.0f; }""",
    )
    report = launch_report(kernel, seed)
    assert "race in threadgroup memory" in report
    assert "of shared" in report


@pytest.mark.parametrize("flags", ["mem_none", "mem_device"])
def test_a_barrier_orders_only_the_memory_that_it_names(flags):
    edited = sample("block_sum").source.replace("mem_threadgroup", flags)
    report = launch_report(Kernel("kernel", edited), template=[("T", mx.float32), ("SIZE", 64)])
    assert "race in threadgroup memory" in report or "uninitialised" in report


def test_lanes_exchange_nothing_without_their_barrier():
    kernel = sample("transpose").edited("simdgroup_barrier(mem_flags::mem_threadgroup);\n", "\n")
    with pytest.raises(EmulatorFault, match=r"race in threadgroup memory|uninitialised"):
        launched(kernel, {"x": mx.zeros((8, 64))}, {"y": ((64, 8), mx.float32)}, grid=(64, 8, 1),
                 threadgroup=(32, 4, 1), template=[("COLUMNS", 64), ("ROWS", 8)])  # fmt: skip


def test_a_simdgroups_barrier_does_not_order_another_simdgroup():
    kernel = sample("transpose").edited("= tile[simdgroup][lane]", "= tile[3 - simdgroup][lane]")
    with pytest.raises(EmulatorFault, match=r"race in threadgroup memory|uninitialised"):
        launched(kernel, {"x": mx.zeros((8, 64))}, {"y": ((64, 8), mx.float32)}, grid=(64, 8, 1),
                 threadgroup=(32, 4, 1), template=[("COLUMNS", 64), ("ROWS", 8)])  # fmt: skip


def launch_report(kernel: Kernel, seed: int = 0, template=(), **more: mx.array) -> str:
    """Two threadgroups of 64 threads; inputs ``x`` (128 numbers) and ``more``."""
    size = 128 if "[thread_position_in_grid.x] =" in kernel.source else 2
    with pytest.raises(EmulatorFault) as caught:
        launched(
            kernel,
            {"x": mx.zeros(128), **more},
            {"y": ((size,), mx.float32)},
            grid=(128, 1, 1),
            threadgroup=(64, 1, 1),
            template=template,
            backend=EmulatorBackend(seed=seed, cpu_seconds=1),
        )
    return str(caught.value)


def test_a_device_helper_takes_no_constant_pointer():
    """An input of fewer than eight elements is ``constant``, and MLX decides that by its size."""
    kernel = Kernel(
        "kernel",
        "y[thread_position_in_grid.x] = first(few);",
        "inline float first(const device float* p) { return p[0]; }",
    )
    report = launch_report(kernel, few=mx.zeros(7))
    assert "is not Metal: kernel.metal:1: no matching function for call to 'first'" in report
    assert "address space" in report
    launched(kernel, {"few": mx.zeros(8)}, {"y": ((32,), mx.float32)}, grid=(32, 1, 1))


def test_a_barrier_that_some_threads_never_reach_is_reported():
    kernel = Kernel(
        "kernel",
        """if (thread_position_in_threadgroup.x < 32) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        y[thread_position_in_grid.x] = x[0];""",
    )
    report = launch_report(kernel)
    assert "barrier that only some threads reach" in report
    assert "threads 0-31 waited in threadgroup_barrier at kernel.metal:2" in report
    assert "threads 32-63 ended" in report


def test_two_barriers_are_not_one():
    kernel = Kernel(
        "kernel",
        """if (thread_position_in_threadgroup.x < 32) {
            threadgroup_barrier(mem_flags::mem_none);
        } else {
            threadgroup_barrier(mem_flags::mem_none);
        }
        y[thread_position_in_grid.x] = x[0];""",
    )
    report = launch_report(kernel)
    assert "barrier that threads reach differently" in report
    assert "kernel.metal:2" in report
    assert "kernel.metal:4" in report


def test_a_threadgroup_that_waits_for_memory_is_ended():
    """No other thread runs while one spins, and none would have to on a GPU."""
    kernel = Kernel("kernel", "while (x[0] == 0.0f) {} y[thread_position_in_grid.x] = 1.0f;")
    report = launch_report(kernel)
    assert "endless kernel" in report
    assert "kernel.metal:1" in report


def test_private_memory_belongs_to_its_thread():
    kernel = Kernel(
        "kernel",
        """threadgroup ulong where[1];
        float own[2] = {1.0f, 2.0f};
        if (thread_index_in_threadgroup == 0) { where[0] = ulong(&own[0]); }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[thread_position_in_grid.x] = ((thread float*)(where[0]))[1];""",
    )
    report = launch_report(kernel)
    assert "access to another thread's memory" in report
    assert "of the private memory of thread (0, 0, 0) of threadgroup" in report


def test_an_address_past_32_bits_is_reported_where_it_points():
    """2^32 elements of two bytes: an address in 32 bits would fall on the first of them."""
    inputs = FULL.inputs()
    per_slot = FULL.block * FULL.heads * FULL.dim
    inputs["table"] = mx.full((8,), (1 << 32) // per_slot + 1, mx.uint32)
    with pytest.raises(EmulatorFault) as caught:
        emulated(FULL, inputs)
    offset = re.search(r"at offset (\d+) of input keys", str(caught.value))
    assert offset
    assert 0 <= int(offset[1]) - (1 << 33) < per_slot * 2


def test_an_address_that_wraps_in_32_bits_is_reported_where_it_wraps():
    """A slot past 2^32 elements, computed in ``uint`` and widened too late."""
    kernel = SPLIT.edited(
        "((ulong(slot) * block + row) * heads + head) * dim",
        "ulong(((slot * block + row) * heads + head) * dim)",
    )
    inputs = FULL.inputs()
    per_slot = FULL.block * FULL.heads * FULL.dim
    inputs["table"] = mx.full((8,), (1 << 32) // per_slot + 1, mx.uint32)
    with pytest.raises(EmulatorFault) as caught:
        emulated(FULL, inputs, split=kernel)
    said = r"product past 32 bits: thread .* computes \d+ \* 64 in 32 bits, .* split_attention.h:3"
    assert re.search(said, str(caught.value))


def test_the_process_lives_on_after_every_fault():
    for _ in range(3):
        report_of(SPLIT.edited("float(values[row + d])", "float(*(const device T*)(row * 0))"))
    kernel = sample("scale")
    [y] = launched(kernel, {"x": mx.ones(32), "factor": mx.array([2.0])},
                   {"y": ((32,), mx.float32)}, grid=(32, 1, 1),
                   template=[("T", mx.float32), ("N", 1)])  # fmt: skip
    assert y.tolist() == [3.0] * 32

"""Faults planted in the kernels of the direct reads themselves are reported by the emulator."""

import mlx.core as mx
import pytest

from pagedkv_metal import EmulatorFault, read
from pagedkv_metal.read import kernel_text
from tests.metal.reads import Case, attend, made

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
CASE = Case(mx.float32, (2, 1), (32, 32), 16, (600,), sinks=True)
BARRIERS = [
    (name, index)
    for name in ("paged_read.metal", "merge.metal")
    for index in range(kernel_text(name).count(BARRIER))
]


def planted(monkeypatch, name, text):
    """The kernels with ``text`` for the file ``name``."""
    monkeypatch.setattr(read, "kernel_text", lambda n: text if n == name else kernel_text(n))


@pytest.mark.parametrize(("name", "index"), BARRIERS)
def test_any_missing_barrier_is_a_race(monkeypatch, name, index):
    parts = kernel_text(name).split(BARRIER)
    text = BARRIER.join([*parts[:index], parts[index] + parts[index + 1], *parts[index + 2 :]])
    assert text.count(BARRIER) == len(parts) - 2
    planted(monkeypatch, name, text)
    with pytest.raises(EmulatorFault):
        attend(CASE, made(CASE))


WRONG = {
    "beyond the table": ("paged_read.metal", "position / BLOCK];", "position / BLOCK + 99];"),
    "places unset": ("paged_read.metal", "token < PARTITION; token += 256", "token < 256; token++"),
    "never written": ("paged_read.metal", "< ROWS && r < num_rows", "< ROWS && r + 1 < num_rows"),
    "a dim never written": ("merge.metal", "if (dim < DV) {", "if (dim + 1 < DV) {"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_line_is_reported(monkeypatch, fault):
    name, old, new = WRONG[fault]
    assert kernel_text(name).count(old) == 1
    planted(monkeypatch, name, kernel_text(name).replace(old, new))
    with pytest.raises(EmulatorFault):
        attend(CASE, made(CASE))

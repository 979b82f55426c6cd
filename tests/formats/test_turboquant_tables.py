"""The shipped levels are the Lloyd-Max levels of the unit normal, and coding reaches them."""

import math
import pathlib
import runpy
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import mlx.core as mx
import pytest

from pagedkv_formats.turboquant.levels import all_levels, codes_and_levels, levels_of, midpoints
from pagedkv_formats.turboquant.tables import POSITIVE_LEVELS

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "packages/pagedkv-formats/scripts/make_turboquant_tables.py"
TABLES = ROOT / "packages/pagedkv-formats/src/pagedkv_formats/turboquant/tables.py"
WIDTHS = range(1, 9)
PUBLISHED_LEVELS = {
    1: ".7978846",
    2: ".4527800 1.5104176",
    3: ".2450942 .7560053 1.3439093 2.1519457",
    4: ".1283950 .3880483 .6567591 .9423405 1.2562312 1.6180464 2.0690172 2.7325896",
}
LAST_LEVELS = {5: 3.2607325, 6: 3.7441013, 7: 4.1896942, 8: 4.6035356}
OPTIMUM = {1: ".363380", 2: ".117482", 3: ".034548", 4: ".009501"}
OPTIMUM |= {5: ".002505", 6: ".000644", 8: ".0000412"}


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def simpson(function: Callable[[float], float], low: float, high: float) -> float:
    steps = 2 * math.ceil((high - low) * 200)
    width = (high - low) / steps
    inner = sum((4 if i % 2 else 2) * function(low + i * width) for i in range(1, steps))
    return width / 3 * (function(low) + inner + function(high))


def cells(bits: int) -> list[tuple[float, float, float]]:
    """Each positive level and the ends of its cell; beyond 12 the normal has no mass left."""
    ends = [*midpoints(bits)[2 ** (bits - 1) - 1 :], 12.0]
    return [(c, *ends) for c, ends in zip(POSITIVE_LEVELS[bits], pairwise(ends), strict=True)]


def distortion(bits: int) -> float:
    """E[(x - level)²] by quadrature, both halves."""
    return 2 * sum(
        simpson(partial(squared_error, level), low, high) for level, low, high in cells(bits)
    )


def squared_error(level: float, x: float) -> float:
    return (x - level) ** 2 * density(x)


def test_the_shipped_table_is_what_its_script_prints():
    if not SCRIPT.exists():
        pytest.skip("a wheel ships the table without its script")
    assert runpy.run_path(str(SCRIPT))["module"]() == TABLES.read_text(encoding="utf-8")


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_script_solves_to_1e_12(bits):
    """Each level is the mean of its cell: what Newton's step would move it by is rounding."""
    names = runpy.run_path(str(SCRIPT))
    levels = list(POSITIVE_LEVELS[bits])
    assert max(map(abs, names["newton_step"](levels))) < 1e-12


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_level_is_the_mean_of_its_cell_by_another_quadrature(bits):
    for level, low, high in cells(bits):
        mass = simpson(density, low, high)
        mean = simpson(lambda x: x * density(x), low, high) / mass
        assert abs(mean - level) < 1e-8


def test_levels_are_the_published_ones():
    for bits, text in PUBLISHED_LEVELS.items():
        wanted = [float(number) for number in text.split()]
        assert [round(level, 7) for level in POSITIVE_LEVELS[bits]] == wanted
    for bits, last in LAST_LEVELS.items():
        assert round(POSITIVE_LEVELS[bits][-1], 7) == last


@pytest.mark.parametrize("bits", WIDTHS)
def test_levels_are_symmetric_to_the_last_bit_and_as_many_as_codes(bits):
    levels = all_levels(bits)
    assert len(levels) == 2**bits
    assert list(levels) == sorted(levels) == [-level for level in reversed(levels)]


@pytest.mark.parametrize("bits", OPTIMUM)
def test_the_distortion_of_the_table_is_the_optimum(bits):
    decimals = len(OPTIMUM[bits]) - 1
    assert f"{distortion(bits):.{decimals}f}"[1:] == OPTIMUM[bits]


@pytest.mark.parametrize("bits", WIDTHS)
def test_coding_and_decoding_reach_the_optimum_within_1_part_in_10_000(bits):
    """Every number on a fine grid is coded and decoded as the codec does it."""
    steps = 1 << 18
    x = (mx.arange(steps) + 0.5) * (16 / steps) - 8
    codes, fitted = codes_and_levels(x, bits)
    decoded = levels_of(codes, bits)
    assert mx.all(mx.abs(decoded - fitted) < 1e-6).item()
    weights = mx.exp(-x * x / 2) * (16 / steps / math.sqrt(2 * math.pi))
    found = mx.sum(mx.square(x - decoded) * weights)
    assert (found <= 1.0001 * distortion(bits)).item()


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_number_gets_the_nearest_level_and_ties_get_either(bits):
    """From 5 bits on, a number within 8e-5 of a midpoint may get the level across it."""
    levels = mx.array(all_levels(bits))
    numbers = mx.random.normal((2000,), key=mx.random.key(bits)) * 1.5
    codes, _ = codes_and_levels(numbers, bits)
    chosen = mx.abs(numbers - mx.take(levels, codes))
    nearest = mx.abs(numbers[:, None] - levels).min(axis=1)
    slack = 1e-6 if bits <= 4 else 1.6e-4
    assert mx.all(chosen <= nearest + slack).item()
    exact, _ = codes_and_levels(levels, bits)
    assert exact.tolist() == list(range(2**bits))


@pytest.mark.parametrize("bits", WIDTHS)
def test_numbers_beyond_the_last_level_and_nan_have_codes(bits):
    far, nan, last = 24.0, float("nan"), 2**bits - 1
    codes, _ = codes_and_levels(mx.array([-far, far, nan, far]), bits)
    assert codes.tolist() == [0, last, 0, last]


@pytest.mark.parametrize("bits", WIDTHS)
def test_levels_of_an_odd_count_of_codes_are_those_of_an_even_one(bits):
    codes = mx.arange(2**bits).astype(mx.uint8)
    wanted = mx.array(all_levels(bits))
    assert mx.allclose(levels_of(codes, bits), wanted, rtol=0, atol=5e-7).item()
    assert mx.allclose(levels_of(codes[1:], bits), wanted[1:], rtol=0, atol=5e-7).item()

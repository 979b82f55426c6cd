"""Print docs/legal-settings.md: which settings of PagedQuantization hold which head dims.

python packages/pagedkv-formats/scripts/legal_settings.py > docs/legal-settings.md
"""  # noqa: INP001

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import mlx.core as mx

from pagedkv_formats import PagedQuantization
from pagedkv_protocols import IllegalFormat

DIMS = (64, 72, 80, 96, 112, 128, 192, 256, 512, 576)
BITS = (2, 3, 4, 5, 6, 8)
COLUMNS = {
    **{f"affine, group {g}": [PagedQuantization(b, g) for b in BITS] for g in (32, 64, 128)},
    **{mode: [PagedQuantization(mode=mode)] for mode in ("mxfp4", "mxfp8", "nvfp4")},
}

Cell = Callable[[list[PagedQuantization], int], str]

HEAD = """\
# Legal settings of quantized pages

Made by `packages/pagedkv-formats/scripts/legal_settings.py`; a test compares the two.

`PagedQuantization(bits, group_size, mode, value_bits)` refuses a setting that does not exist when
it is made, and a head dim that it cannot hold when the dims are first known, at the first append.
Keys and values are judged apart: their dims may differ, and in `affine` their bits.

## Head dims

The bits that are legal for keys or values of each head dim; – where none are. Dims that are no
multiple of 32, such as 72, 80 and 112, divide by no group that MLX has: `PagedTurboQuant` holds
them, and dense pages do. `nvfp4` has groups of 16, but MLX packs them in pairs.
"""

BETWEEN = """
## Stored bits per element

Codes with their scales and biases, for rows of 16 bits. Rows of 32 bits cost `affine` twice as
much for scales and biases; the other modes have one byte per group for rows of any dtype.
"""


def legal_settings() -> str:
    """The page."""
    lines = [HEAD, *table("head dim", DIMS, legal_bits), BETWEEN, *table("bits", BITS, stored_bits)]
    return "".join(f"{line}\n" for line in lines)


def table(corner: str, numbers: tuple[int, ...], cell: Cell) -> Iterator[str]:
    """One line for each of ``numbers``, one column for each of ``COLUMNS``."""
    yield row(corner, *COLUMNS)
    yield row("---:", *["---"] * len(COLUMNS))
    for number in numbers:
        yield row(str(number), *(cell(codecs, number) or "–" for codecs in COLUMNS.values()))


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def legal_bits(codecs: list[PagedQuantization], dim: int) -> str:
    """The bits of those that hold ``dim``."""
    return ", ".join(str(codec.bits) for codec in codecs if holds(codec, dim))


def holds(codec: PagedQuantization, dim: int) -> bool:
    """Whether keys of ``dim`` are legal."""
    try:
        codec.planes(dim, 0, mx.bfloat16)
    except IllegalFormat:
        return False
    return True


def stored_bits(codecs: list[PagedQuantization], bits: int) -> str:
    """Stored bits per element of the one with these bits."""
    dim = 128  # every group divides it
    planes = [codec.planes(dim, 0, mx.bfloat16) for codec in codecs if codec.bits == bits]
    return "".join(
        f"{sum(p.width * p.dtype.size for p in of_keys) * 8 / dim:g}" for of_keys in planes
    )


if __name__ == "__main__":
    sys.stdout.write(legal_settings())

"""Direct reads are right: each factor in CI, pairs that need no compilation; all in `long`.

Rows that nobody wrote hold NaN and infinity in every case, so that A2 is asked everywhere.
"""

from collections.abc import Sequence

import mlx.core as mx
import pytest

from pagedkv_metal import MaskKind
from tests.metal.grids import CODED, DENSE, LONG, NARROW, OPTIONS, covering, is_admitted, r07
from tests.metal.reads import TOLERANCE, Case, attend, distance, made

FEW_HEADS = [(4, 4), (6, 1), (7, 1), (8, 2), (10, 2), (71, 1)]
"""Every ratio, of few KV heads."""

UNCOMPILED: dict[str, Sequence[object]] = {
    "heads": FEW_HEADS[:-1],
    "queries": [1, 2, 3, 5, 8],
    "lengths": [(1, 37), (15, 16, 17), (513, 5)],
    "option": OPTIONS,
}
"""What may vary without another compilation, but for the number of query rows."""

QUICK = [
    *covering(UNCOMPILED, 2),
    *covering({**DENSE, "heads": FEW_HEADS}, 1),
    *covering(CODED, 1),
    Case(mx.float16, (4, 4), (64, 64), 48, (2000, 1), queries=1),
    Case(mx.bfloat16, (8, 2), (64, 64), 256, (700, 300, 612), starts=(256, 0, 512), window=90),
    Case(mx.float32, (2, 1), (32, 32), 16, (600, 16, 257), queries=2, sinks=True, softcap=3.0),
]
WIDE = [
    *covering({**DENSE, "lengths": LONG}, 2),
    *covering({**CODED, "lengths": LONG}, 2),
    *(
        Case(dtype, (4, 2), dims, 16, (300, 17), bits=(bits, bits), group=group)
        for dtype in (mx.float16, mx.bfloat16)
        for dims, group in NARROW
        for bits in (2, 4, 8)
    ),
]


def assert_right(case, backend=None):
    assert distance(case, backend=backend) <= TOLERANCE[case.dtype]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_direct_read_is_within_rounding_of_float32_attention(case):
    assert_right(case)


@pytest.mark.long
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_every_pair_of_what_may_vary_is_right(case):
    assert_right(case)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in r07() if is_admitted(case)], ids=str)
def test_r07_every_ratio_and_dim_that_is_admitted_is_right(case):
    assert_right(case)


def test_r07_only_dims_beyond_256_of_the_recorded_grid_are_left_to_the_gather():
    left = {case.dims for case in r07() if not is_admitted(case)}
    assert left == {(512, 512), (576, 512)}


def test_a_read_without_a_mask_sees_every_position_of_its_row():
    assert_right(Case(queries=4, lengths=(300, 5), mask=MaskKind.NONE))


def test_a_row_of_no_positions_is_zero_and_harms_no_other():
    case = Case(lengths=(20, 0), heads=(2, 1))
    assert not mx.any(attend(case, made(case))[1]).item()

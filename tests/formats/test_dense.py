"""Pages in the dtype of their rows: the reference for every other format."""

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_formats import DensePages
from pagedkv_protocols import IllegalFormat

dtypes = st.sampled_from([mx.bfloat16, mx.float16, mx.float32])


@given(dtypes, st.integers(1, 576), st.integers(0, 576))
def test_any_dims_are_legal_and_planes_are_just_what_encode_makes(dtype, key_dim, value_dim):
    specs = DensePages().planes(key_dim, value_dim, dtype)
    rows = mx.ones((1, 2, 3, key_dim), dtype), mx.ones((1, 2, 3, value_dim), dtype)
    coded = DensePages().encode(*rows)
    assert [(1, 2, 3, spec.width) for spec in specs] == [plane.shape for plane in coded]
    assert [spec.dtype for spec in specs] == [plane.dtype for plane in coded]
    assert [spec.name for spec in specs] == ["keys", "values"][: len(coded)]


def test_the_bytes_of_a_page_are_those_of_the_table():
    block_size, planes = 4, DensePages().planes(192, 128, mx.bfloat16)
    total = block_size * sum(plane.width * plane.dtype.size for plane in planes)
    assert total == block_size * 192 * 2 + block_size * 128 * 2


@given(dtypes, st.integers(1, 9), st.integers(0, 9))
def test_rows_come_back_as_they_went_nan_and_infinity_too(dtype, key_dim, value_dim):
    keys = mx.random.normal((1, 2, 3, key_dim), key=mx.random.key(0)).astype(dtype)
    keys[..., 0, 0], keys[..., 1, 0] = float("nan"), float("-inf")
    values = mx.random.normal((1, 2, 3, value_dim), key=mx.random.key(1)).astype(dtype)
    coded = DensePages().encode(keys, values)
    decoded = DensePages().decode(coded, key_dim, value_dim, dtype)
    for before, after in zip((keys, values), decoded, strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert mx.array_equal(after, before, equal_nan=True).item()


def test_values_of_width_0_have_no_plane():
    keys = mx.ones((1, 2, 3, 16))
    assert [plane.name for plane in DensePages().planes(16, 0, mx.float32)] == ["keys"]
    assert len(DensePages().encode(keys, keys[..., :0])) == 1


def test_the_codec_is_a_value_that_its_parameters_make_again():
    assert DensePages.from_dict(DensePages().to_dict()) == DensePages()
    assert DensePages().signature() == DensePages().name == "dense"
    assert hash(DensePages()) == hash(DensePages())


@pytest.mark.parametrize("data", [{}, {"format": "affine"}, {"format": "dense", "bits": 16}])
def test_parameters_that_are_missing_different_or_unknown_are_refused(data):
    with pytest.raises(IllegalFormat):
        DensePages.from_dict(data)

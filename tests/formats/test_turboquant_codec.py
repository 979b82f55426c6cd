"""TurboQuant pages: bytes of a row alone, both domains, means of blocks, rows at the edges."""

import copy
import itertools
import json
import math
from typing import cast

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv_formats import PagedTurboQuant, codec_from_dict
from pagedkv_formats.turboquant.graphs import traced_length
from pagedkv_protocols import IllegalFormat, InvalidArgument

DTYPES = (mx.bfloat16, mx.float16, mx.float32)
LARGEST = 65504.0
codecs = st.builds(
    PagedTurboQuant,
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.sampled_from(["rotated", "plain"]),
)


def normal(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def number(array: mx.array) -> float:
    return cast("float", array.item())


def relative(found: mx.array, wanted: mx.array) -> float:
    """How long the difference is, as a part of what is wanted."""
    wanted = wanted.astype(mx.float32)
    difference = mx.linalg.norm(found.astype(mx.float32) - wanted)
    return number(difference / mx.linalg.norm(wanted))


def same(planes, others) -> bool:
    return all(
        a.dtype == b.dtype and mx.array_equal(a, b, equal_nan=True).item()
        for a, b in zip(planes, others, strict=True)
    )


def joined(chunks):
    return [mx.concatenate(list(planes), axis=2) for planes in zip(*chunks, strict=True)]


# What is legal.


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"key_bits": 0}, "key_bits is 0; TurboQuant takes 1 to 8"),
        ({"value_bits": 9}, "value_bits is 9; TurboQuant takes 1 to 8"),
        ({"key_bits": 4.0}, "key_bits is 4.0;"),
        ({"value_bits": True}, "value_bits is True;"),
        ({"seed": -1}, "seed is -1; TurboQuant takes 0 to"),
        ({"seed": 2**64}, "seed is 18446744073709551616;"),
        ({"page_mean": 1}, "page_mean is 1; TurboQuant takes True or False"),
        ({"kernels": "fast"}, "kernels is 'fast'; TurboQuant takes 'rotated' or 'plain'"),
    ],
)
def test_r01_a_setting_that_does_not_exist_is_refused_when_it_is_made(parameters, message):
    with pytest.raises(IllegalFormat, match=message):
        PagedTurboQuant(**parameters)


@pytest.mark.parametrize("dim", [0, 8, 15, 577, 1024, -64])
def test_r01_a_dim_out_of_range_is_refused_with_its_name_and_the_range(dim):
    with pytest.raises(IllegalFormat, match=f"^K dim {dim} is not of 16 to 576"):
        PagedTurboQuant().planes(dim, 64, mx.float16)
    if dim:
        with pytest.raises(IllegalFormat, match=f"^V dim {dim} is not of 16 to 576"):
            PagedTurboQuant().planes(64, dim, mx.float16)


@given(codecs, st.integers(16, 576), st.just(0) | st.integers(16, 576))
def test_any_dims_from_16_to_576_have_planes_of_whole_bytes(codec, key_dim, value_dim):
    planes = {plane.name: plane for plane in codec.planes(key_dim, value_dim, mx.bfloat16)}
    for prefix, dim, bits in (
        ("key", key_dim, codec.key_bits),
        ("value", value_dim, codec.value_bits),
    ):
        if dim:
            codes, scales = planes.pop(f"{prefix}_codes"), planes.pop(f"{prefix}_scales")
            assert codes.width * codes.dtype.size == math.ceil(dim * bits / 8)
            assert (scales.width, scales.dtype) == (1, mx.float16)
    if codec.page_mean:
        means = planes.pop("key_means")
        assert (means.width, means.dtype, means.per_block) == (key_dim, mx.float16, True)
    assert not planes


def test_the_bytes_of_a_page_are_those_of_the_table():
    block_size, planes = 16, PagedTurboQuant(3, 5, page_mean=True).planes(80, 96, mx.bfloat16)
    sizes = [p.width * p.dtype.size * (1 if p.per_block else block_size) for p in planes]
    assert sizes == [16 * 30, 16 * 2, 16 * 60, 16 * 2, 80 * 2]


def test_making_a_codec_makes_no_array():
    mx.synchronize()
    before = mx.get_active_memory()
    codec = PagedTurboQuant(seed=987654321)
    codec.planes(128, 128, mx.bfloat16)
    assert mx.get_active_memory() == before


# A value.


@given(codecs)
def test_the_codec_is_a_value_that_its_parameters_make_again(codec):
    again = PagedTurboQuant.from_dict(json.loads(json.dumps(codec.to_dict())))
    assert again == codec == copy.deepcopy(codec) == codec_from_dict(codec.to_dict())
    assert hash(again) == hash(codec)
    assert again.signature() == codec.signature()


def test_a_signature_tells_what_bytes_mean_and_not_how_they_are_read():
    signatures = [
        PagedTurboQuant(*bits, seed, mean).signature()
        for bits in ((8, 4), (4, 8)) for seed in (0, 1) for mean in (False, True)
    ]  # fmt: skip
    assert len(set(signatures)) == 8
    assert PagedTurboQuant(kernels="plain").signature() == PagedTurboQuant().signature()


@pytest.mark.parametrize(
    "change",
    [{"rotation": "0" * 16}, {"seed": 1}, {"key_bits": 9}, {"page_mean": 0}, {"qjl": True}],
)
def test_parameters_that_are_different_or_unknown_are_refused(change):
    with pytest.raises(IllegalFormat):
        PagedTurboQuant.from_dict({**PagedTurboQuant().to_dict(), **change})


@pytest.mark.parametrize("missing", PagedTurboQuant().to_dict())
def test_a_parameter_that_is_missing_is_refused(missing):
    data = {name: value for name, value in PagedTurboQuant().to_dict().items() if name != missing}
    with pytest.raises(IllegalFormat, match="page format"):
        PagedTurboQuant.from_dict(data)


# A row by itself.


@pytest.mark.parametrize(
    ("bits", "dims"),
    [
        ((8, 4), (64, 64)),
        ((4, 4), (80, 80)),
        ((3, 3), (64, 64)),
        ((2, 4), (192, 128)),
        ((1, 1), (72, 72)),
        ((5, 6), (96, 80)),
        ((7, 7), (17, 17)),
        ((4, 4), (64, 0)),
    ],
)
def test_rows_are_the_same_bytes_one_by_one_in_chunks_and_at_once(bits, dims):
    codec = PagedTurboQuant(*bits)
    keys = normal(1, 1, 3, 53, dims[0], dtype=mx.bfloat16)
    values = normal(2, 1, 3, 53, dims[1], dtype=mx.bfloat16)
    at_once = codec.encode(keys, values)
    for cuts in (range(54), (0, 1, 17, 18, 50, 53), (0, 2, 4, 35, 53)):
        chunks = [
            codec.encode(keys[:, :, a:b], values[:, :, a:b]) for a, b in itertools.pairwise(cuts)
        ]
        assert same(joined(chunks), at_once)


def test_rows_are_the_same_bytes_whatever_heads_and_layouts_share_the_call():
    codec = PagedTurboQuant(4, 4)
    rows = normal(3, 1, 20, 4, 128)
    by_position = rows.swapaxes(1, 2)  # heads side by side in memory, as a projection leaves them
    together = codec.encode(by_position, by_position)
    for head in range(4):
        alone = codec.encode(rows[:, None, :, head], rows[:, None, :, head])
        assert same(alone, [plane[:, head : head + 1] for plane in together])


def test_keys_and_values_of_one_width_are_coded_as_they_are_apart():
    """Together, as one array, where bits and dims are equal."""
    keys, values = normal(4, 1, 2, 9, 64), normal(5, 1, 2, 9, 64)
    together = PagedTurboQuant(4, 4).encode(keys, values)
    assert same(together[:2], PagedTurboQuant(4, 4).encode(keys, values[..., :0]))
    assert same(together[2:], PagedTurboQuant(5, 4).encode(keys, values)[2:])


def test_rows_that_were_trimmed_and_appended_again_are_the_same_bytes():
    codec, rows = PagedTurboQuant(3, 4), normal(6, 1, 2, 40, 80)
    planes = [
        mx.zeros((1, 2, 40, plane.width), plane.dtype) for plane in codec.planes(80, 80, mx.float32)
    ]

    def append(begin, end):
        part = rows[:, :, begin:end]
        for plane, new in zip(planes, codec.encode(part, part), strict=True):
            plane[:, :, begin:end] = new

    append(0, 40)
    never_trimmed = [mx.array(plane) for plane in planes]
    append(13, 29)
    append(29, 40)
    assert same(planes, never_trimmed)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_rows_are_decoded_alike_alone_among_others_and_inside_a_plane(length):
    codec, rows = PagedTurboQuant(8, 3), normal(7, 1, 2, 120, 80)
    coded = codec.encode(rows, rows)
    for decode in (codec.decode, codec.decode_rotated):
        together = decode(coded, 80, 80, mx.float32)
        part = decode([plane[:, :, 9 : 9 + length] for plane in coded], 80, 80, mx.float32)
        assert same(part, [whole[:, :, 9 : 9 + length] for whole in together])


@given(st.integers(1, 1 << 20))
def test_a_length_is_traced_with_an_eighth_more_at_most_and_few_lengths_are_traced(length):
    traced = traced_length(length)
    assert length <= traced <= max(16, length * 9 / 8)
    assert traced == traced_length(traced)


def test_a_growing_window_is_traced_for_few_lengths():
    assert len({traced_length(length) for length in range(1, 131073)}) == 16 + 8 * 13


@pytest.mark.parametrize("dim", [64, 72, 80])
@pytest.mark.parametrize("bits", [(8, 4), (4, 4)])
def test_no_rows_are_encoded_and_decoded_to_no_rows(dim, bits):
    codec, nothing = PagedTurboQuant(*bits), mx.zeros((1, 2, 0, dim), mx.bfloat16)
    rows = codec.encode(nothing, nothing)
    widths = [plane.width for plane in codec.planes(dim, dim, mx.bfloat16)]
    assert [plane.shape for plane in rows] == [(1, 2, 0, width) for width in widths]
    for decode in (codec.decode, codec.decode_rotated):
        assert [part.shape for part in decode(rows, dim, dim, mx.bfloat16)] == [(1, 2, 0, dim)] * 2


# Both domains.


@pytest.mark.parametrize("page_mean", [False, True])
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "dtype", "tolerance"),
    [
        (64, 64, mx.float32, 1e-5),
        (80, 112, mx.float32, 1e-5),
        (72, 96, mx.float32, 1e-5),
        (192, 128, mx.float32, 1e-5),
        (64, 64, mx.float16, 1e-2),
        (64, 64, mx.bfloat16, 1e-2),
        (192, 128, mx.bfloat16, 1e-2),
    ],
)
def test_attention_in_the_rotated_domain_is_attention_over_decoded_rows(
    key_dim, value_dim, dtype, tolerance, page_mean
):
    codec = PagedTurboQuant(8, 4, page_mean=page_mean)
    keys, values = (
        normal(8, 1, 2, 50, key_dim, dtype=dtype),
        normal(9, 1, 2, 50, value_dim, dtype=dtype),
    )
    queries = normal(10, 1, 6, 5, key_dim, dtype=dtype)
    rows = encoded(codec, keys, values)

    def attend(queries, keys, values):
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=key_dim**-0.5, mask="causal"
        )

    plain = attend(queries, *codec.decode(rows, key_dim, value_dim, dtype))
    rotated = codec.decode_rotated(rows, key_dim, value_dim, dtype)
    found = codec.unrotate_outputs(attend(codec.rotate_queries(queries), *rotated))
    assert found.dtype == plain.dtype == dtype
    assert relative(found, plain) <= tolerance


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_decoded_in_the_dtype_that_is_asked_for(dtype):
    codec, rows = PagedTurboQuant(), normal(11, 1, 2, 5, 64, dtype=dtype)
    for decode in (codec.decode, codec.decode_rotated):
        keys, values = decode(codec.encode(rows, rows), 64, 64, dtype)
        assert (keys.dtype, values.dtype) == (dtype, dtype)
        assert (keys.shape, values.shape) == (rows.shape, rows.shape)


def test_values_of_width_0_have_no_planes_and_decode_to_width_0():
    codec, keys = PagedTurboQuant(4, 4), normal(12, 1, 2, 5, 64)
    rows = codec.encode(keys, keys[..., :0])
    assert len(rows) == len(codec.planes(64, 0, mx.float32)) == 2
    for decode in (codec.decode, codec.decode_rotated):
        assert decode(rows, 64, 0, mx.float16)[1].shape == (1, 2, 5, 0)


# Means of blocks.


def encoded(codec: PagedTurboQuant, keys: mx.array, values: mx.array) -> list[mx.array]:
    """The rows of every plane, as a cache of one block gives them."""
    if not codec.page_mean:
        return list(codec.encode(keys, values))
    means = mx.broadcast_to(codec.block_mean(keys), keys.shape)
    return [*codec.encode(keys, values, means), means]


@pytest.mark.parametrize("dim", [64, 72, 80])
def test_a_mean_of_the_block_takes_a_constant_part_off_the_keys(dim):
    """What is left to code is the part that varies: 4 bits of it, not of the constant."""
    constant = 30 * normal(13, 1, 1, 1, dim)
    keys = constant + normal(14, 1, 1, 256, dim)
    errors = []
    for page_mean in (False, True):
        codec = PagedTurboQuant(4, 4, page_mean=page_mean)
        decoded, _ = codec.decode(encoded(codec, keys, keys), dim, dim, mx.float32)
        errors.append(number(mx.square(decoded - keys).mean()))
    assert errors[1] < 0.011 + (30 * 2.0**-11) ** 2 < errors[0] / 100


def test_a_mean_is_stored_rotated_so_that_no_position_is_rotated_for_it():
    codec, keys = PagedTurboQuant(page_mean=True), normal(15, 1, 2, 7, 64)
    mean = codec.block_mean(keys)
    assert (mean.shape, mean.dtype) == ((1, 2, 1, 64), mx.float16)
    wanted = codec.rotate_queries(keys.mean(axis=2, keepdims=True))
    assert relative(mean, wanted) < 1e-3


def test_means_are_given_with_page_mean_and_only_then():
    keys = normal(16, 1, 1, 3, 64)
    means = mx.zeros((1, 1, 3, 64), mx.float16)
    with pytest.raises(InvalidArgument, match="encode got no means and page_mean is True"):
        PagedTurboQuant(page_mean=True).encode(keys, keys)
    with pytest.raises(InvalidArgument, match="encode got means and page_mean is False"):
        PagedTurboQuant().encode(keys, keys, means)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 6e4])
def test_a_mean_that_is_no_number_is_0_and_one_too_large_ends_where_fp16_does(number):
    codec, keys = PagedTurboQuant(page_mean=True), mx.full((1, 1, 4, 64), number)
    mean = codec.block_mean(keys)
    assert mx.all(mx.isfinite(mean)).item()
    assert mx.any(mean != 0).item() == math.isfinite(number)


# Rows at the edges.


def edge_rows(dim: int) -> dict[str, mx.array]:
    """R38's rows, and those of TURBOQUANT: each fp32 ``[dim]``."""
    outlier = normal(17, dim)
    outlier[dim // 3] = 1000.0
    alternating = mx.array([1.0, -1.0] * dim)[:dim]
    return {
        "zeros": mx.zeros(dim),
        "0.3": mx.full((dim,), 0.3),
        "-7": mx.full((dim,), -7.0),
        "1e-6": mx.full((dim,), 1e-6),
        "1e-30": mx.full((dim,), 1e-30),
        "an outlier": outlier,
        "100 to 101": 100 + mx.arange(dim) / dim,
        "6e4": mx.full((dim,), 6e4),
        "-6e4": mx.full((dim,), -6e4),
        "6e4 and -6e4": 6e4 * alternating,
        "denormal": 1e-40 * alternating,
        "one-hot": mx.eye(dim)[dim // 2],
    }


def all_together(rows) -> mx.array:
    return mx.stack(list(rows))[None, None]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("dim", [64, 96])
def test_r38_rows_at_the_edges_decode_to_finite_numbers_in_every_dtype(bits, dim):
    rows = all_together(edge_rows(dim).values())
    for dtype in DTYPES:
        part = rows.astype(dtype)
        codec = PagedTurboQuant(bits, bits)
        for decode in (codec.decode, codec.decode_rotated):
            for decoded in decode(codec.encode(part, part), dim, dim, dtype):
                assert mx.all(mx.isfinite(decoded)).item()


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("dim", [64, 96])
def test_r38_a_row_at_an_edge_is_the_same_bytes_alone_and_among_others(bits, dim):
    codec, rows = PagedTurboQuant(bits, bits), edge_rows(dim)
    together = codec.encode(*[all_together(rows.values())] * 2)
    for index, row in enumerate(rows.values()):
        alone = codec.encode(*[all_together([row])] * 2)
        assert same(alone, [plane[:, :, index : index + 1] for plane in together])


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("dim", [64, 96])
def test_r38_zeros_are_stored_as_zeros_and_decode_to_zeros(bits, dim):
    codec, zeros = PagedTurboQuant(bits, bits), mx.zeros((1, 1, 2, dim))
    rows = codec.encode(zeros, zeros)
    assert not any(mx.any(plane != 0).item() for plane in rows)
    for decoded in codec.decode(rows, dim, dim, mx.float32):
        assert mx.array_equal(decoded, zeros).item()


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("dim", [64, 96])
def test_r38_constant_rows_keep_their_length_within_the_rounding_of_their_scale(bits, dim):
    """A key's part along itself is itself; at 1e-6, 17 steps of fp16, to half a step."""
    codec, edges = PagedTurboQuant(bits, bits), edge_rows(dim)
    for name, slack in (("0.3", 5e-4), ("-7", 5e-4), ("100 to 101", 5e-4), ("1e-6", 0.03)):
        row = all_together([edges[name]])
        keys, values = codec.decode(codec.encode(row, row), dim, dim, mx.float32)
        square = number(mx.square(row).sum())
        assert abs(number((keys * row).sum()) / square - 1) <= slack
        assert number(mx.square(values - row).sum()) / square <= {2: 0.12, 3: 0.06, 4: 0.015}[bits]


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("dim", [64, 96])
def test_r38_a_row_too_small_for_fp16_decodes_to_zeros(bits, dim):
    row = all_together([edge_rows(dim)[name] for name in ("1e-30", "denormal")])
    codec = PagedTurboQuant(bits, bits)
    for decoded in codec.decode(codec.encode(row, row), dim, dim, mx.float32):
        assert not mx.any(decoded).item()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("dim", [64, 96])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e25])
def test_r38_a_row_that_is_no_number_spoils_itself_only(bits, dim, number):
    codec, rows = PagedTurboQuant(bits, bits), normal(18, 1, 2, 5, dim)
    spoilt = mx.array(rows)
    spoilt[0, 1, 2, 7] = number
    coded, wanted = codec.encode(spoilt, spoilt), codec.encode(rows, rows)
    others = mx.arange(10).reshape(2, 5) != 7
    for plane, right in zip(coded, wanted, strict=True):
        assert mx.array_equal(
            mx.where(others[..., None], plane, 0), mx.where(others[..., None], right, 0)
        ).item()
    for decoded in codec.decode(coded, dim, dim, mx.float32):
        assert mx.all(mx.isfinite(decoded).all(axis=-1) | ~others).item()
        assert math.isfinite(number) or mx.all(mx.isnan(decoded[0, 1, 2])).item()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_scales_end_at_65504_whatever_the_pages_dtype_is(dtype):
    """A row of root mean square 1e6 decodes to one of 65,504, in its own direction."""
    codec, rows = PagedTurboQuant(8, 8), (1e6 * normal(19, 1, 1, 20, 128)).astype(dtype)
    _, key_scales, _, value_scales = coded = codec.encode(rows, rows)
    assert key_scales.max().item() == value_scales.min().item() == LARGEST
    for decoded in codec.decode(coded, 128, 128, mx.float32):
        size = mx.sqrt(mx.square(decoded).mean(axis=-1))
        assert mx.allclose(size, mx.full(size.shape, LARGEST), rtol=0.01).item()
        along = (decoded * rows).sum(axis=-1) / mx.linalg.norm(rows.astype(mx.float32), axis=-1)
        assert mx.all(along / mx.linalg.norm(decoded, axis=-1) > 0.9999).item()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_unbiased_scale_of_a_huge_fp16_key_ends_at_65504_and_the_key_stays_finite(bits):
    codec, rows = PagedTurboQuant(bits, bits), mx.full((1, 1, 2, 64), LARGEST, mx.float16)
    _, key_scales, _, value_scales = coded = codec.encode(rows, rows)
    assert (key_scales.max().item() == LARGEST) == (bits == 1)
    assert mx.all(value_scales < LARGEST).item()
    for decode in (codec.decode, codec.decode_rotated):
        for decoded in decode(coded, 64, 64, mx.float16):
            assert mx.all(mx.abs(decoded) <= LARGEST).item()


@settings(max_examples=30)
@given(
    st.sampled_from([2, 4, 8]), st.sampled_from([17, 64]), st.sampled_from(DTYPES),
    st.lists(st.floats(-65504, 65504, width=16), min_size=1, max_size=16),
)  # fmt: skip
def test_any_fp16_row_decodes_within_its_own_length(bits, dim, dtype, numbers):
    codec = PagedTurboQuant(bits, bits)
    row = mx.array((numbers * dim)[:dim], mx.float32).astype(dtype).reshape(1, 1, 1, dim)
    _, values = codec.decode(codec.encode(row, row), dim, dim, mx.float32)
    length = mx.linalg.norm(row.astype(mx.float32))
    assert number(mx.linalg.norm(values - row)) <= 1.001 * number(length) + 1e-6

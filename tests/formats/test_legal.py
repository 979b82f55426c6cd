"""Which settings and dims quantized pages refuse, and how they say so: what MLX has not."""

import itertools
import pathlib
import runpy

import mlx.core as mx
import pytest

from pagedkv_formats import PagedQuantization
from pagedkv_protocols import IllegalFormat

ROOT = pathlib.Path(__file__).parents[2]
BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
FIXED = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
DIM_PAIRS = [(64, 64), (80, 80), (96, 96), (112, 112), (192, 128), (256, 256), (576, 512)]
CODECS = [
    *(PagedQuantization(bits, group) for bits in BITS for group in GROUP_SIZES),
    *(PagedQuantization(mode=mode) for mode in FIXED),
]


def mlx_takes(dim: int, codec: PagedQuantization) -> bool:
    try:
        mx.eval(mx.quantize(mx.ones((1, dim)), codec.group_size, codec.bits, codec.mode))
    except ValueError:
        return False
    return True


def test_r01_a_setting_is_refused_when_it_is_made_unless_mlx_has_it_at_2_bits_or_more():
    modes = ["affine", *FIXED]
    made = {("affine", bits, group) for bits in BITS for group in GROUP_SIZES}
    made |= {(mode, *setting) for mode, setting in FIXED.items()}
    for mode, bits, group in itertools.product(modes, range(10), (8, 16, 32, 64, 128, 256)):
        if (mode, bits, group) in made:
            assert PagedQuantization(bits, group, mode).bits == bits
        else:
            with pytest.raises(IllegalFormat, match=f"mode {mode} takes"):
                PagedQuantization(bits, group, mode)


@pytest.mark.parametrize("dims", DIM_PAIRS)
@pytest.mark.parametrize("codec", CODECS, ids=PagedQuantization.signature)
def test_r01_a_dim_is_refused_when_dims_are_known_unless_mlx_takes_it(codec, dims):
    legal = [mlx_takes(dim, codec) for dim in dims]
    mx.synchronize()
    before = mx.get_active_memory()
    if all(legal):
        assert codec.planes(*dims, mx.bfloat16)
    if not legal[0]:
        with pytest.raises(IllegalFormat, match=rf"^K dim {dims[0]} .* dim {dims[0]} divides by"):
            codec.planes(*dims, mx.bfloat16)
    if not legal[1]:
        with pytest.raises(IllegalFormat, match=rf"^V dim {dims[1]} .* dim {dims[1]} divides by"):
            codec.planes(128, dims[1], mx.bfloat16)
    assert mx.get_active_memory() == before


@pytest.mark.parametrize(
    ("dim", "ways_out"),
    [
        (96, "dim 96 divides by group 32 only"),
        (192, "dim 192 divides by groups 32, 64"),
        (
            72,
            "dim 72 divides by no group that MLX has (32, 64, 128): use TurboQuant or dense pages",
        ),
        (
            80,
            "dim 80 divides by no group that MLX has (32, 64, 128): use TurboQuant or dense pages",
        ),
        (112, "dim 112 divides by no group"),
        (0, "dim 0 divides by no group"),
        (-64, "dim -64 divides by no group"),
    ],
)
def test_r01_the_refusal_of_a_dim_names_the_legal_groups(dim, ways_out):
    with pytest.raises(IllegalFormat) as refusal:
        PagedQuantization(group_size=128).planes(dim, 128, mx.bfloat16)
    assert str(refusal.value).startswith(f"K dim {dim} is no multiple of 128; {ways_out}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"bits": 7}, "bits is 7; mode affine takes 2, 3, 4, 5, 6, 8"),
        ({"bits": 1}, "bits is 1; mode affine takes 2, 3, 4, 5, 6, 8"),
        ({"bits": True}, "bits is True; mode affine takes 2, 3, 4, 5, 6, 8"),
        ({"bits": 4.0}, "bits is 4.0; mode affine takes 2, 3, 4, 5, 6, 8"),
        ({"bits": "4"}, "bits is '4'; mode affine takes 2, 3, 4, 5, 6, 8"),
        ({"group_size": 16}, "group_size is 16; mode affine takes 32, 64, 128"),
        ({"value_bits": 7}, "value_bits is 7; mode affine takes 2, 3, 4, 5, 6, 8"),
        ({"bits": 8, "mode": "mxfp4"}, "bits is 8; mode mxfp4 takes 4"),
        ({"group_size": 64, "mode": "mxfp8"}, "group_size is 64; mode mxfp8 takes 32"),
        ({"value_bits": 8, "mode": "nvfp4"}, "value_bits is 8; mode nvfp4 takes 4"),
        ({"mode": "mxfp6"}, "mode is 'mxfp6'; affine, mxfp4, mxfp8, nvfp4 are legal"),
        ({"mode": ["affine"]}, "mode is ['affine']; affine, mxfp4, mxfp8, nvfp4 are legal"),
    ],
)
def test_r01_the_refusal_of_a_setting_names_what_was_given_and_what_is_legal(setting, message):
    mx.synchronize()
    before = mx.get_active_memory()
    with pytest.raises(IllegalFormat) as refusal:
        PagedQuantization(**setting)
    assert str(refusal.value) == message
    assert mx.get_active_memory() == before


def test_r01_the_page_of_legal_settings_is_what_its_script_prints():
    script = ROOT / "packages" / "pagedkv-formats" / "scripts" / "legal_settings.py"
    page = ROOT / "docs" / "legal-settings.md"
    printed = runpy.run_path(str(script))["legal_settings"]()
    assert printed == page.read_text(encoding="utf-8")


def test_r01_the_page_of_legal_settings_is_what_mlx_takes():
    """The oracle is MLX alone: the page's cells, read back, against ``mx.quantize``."""
    text = (ROOT / "docs" / "legal-settings.md").read_text(encoding="utf-8").split("##")[1]
    lines = [
        [c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line
    ]
    settings = [*(("affine", int(name.split()[-1])) for name in lines[0][1:4]), *FIXED.items()]
    for dim, *cells in lines[2:]:
        for (mode, group), cell in zip(settings, cells, strict=True):
            tried = [
                c for c in CODECS if c.mode == mode and group in (c.group_size, FIXED.get(mode))
            ]
            legal = [str(c.bits) for c in tried if mlx_takes(int(dim), c)]
            assert cell == (", ".join(legal) or "–")


@pytest.mark.parametrize(("mode", "setting"), FIXED.items())
def test_a_mode_says_its_bits_and_group_by_itself(mode, setting):
    bits, group_size = setting
    codec = PagedQuantization(mode=mode)
    assert (codec.bits, codec.group_size, codec.value_bits) == (bits, group_size, bits)
    assert codec == PagedQuantization(bits, group_size, mode, bits)
    assert codec.name == mode


def test_affine_is_4_bits_in_groups_of_64_unless_told():
    assert PagedQuantization() == PagedQuantization(4, 64, "affine", None)
    assert PagedQuantization(8).value_bits == 8
    assert PagedQuantization(8, value_bits=4).bits == 8

"""Which bits, groups and dims MLX can quantize: the table of ``mx.quantize``, as refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from pagedkv_protocols import IllegalFormat

PACKED_TOGETHER = 32
"""A dim is a multiple of this in every mode: ``nvfp4`` packs its groups of 16 in pairs."""


@attrs.frozen
class Mode:
    """What one mode of ``mx.quantize`` takes, and what it takes unasked."""

    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]
    default_bits: int
    default_group_size: int


MODES = {
    "affine": Mode((2, 3, 4, 5, 6, 8), (32, 64, 128), default_bits=4, default_group_size=64),
    "mxfp4": Mode((4,), (32,), default_bits=4, default_group_size=32),
    "mxfp8": Mode((8,), (32,), default_bits=8, default_group_size=32),
    "nvfp4": Mode((4,), (16,), default_bits=4, default_group_size=16),
}


def legal_mode(name: object) -> Mode:
    """The mode of that name. Raises ``IllegalFormat``.

    >>> legal_mode("nvfp4").group_sizes
    (16,)
    """
    if isinstance(name, str) and name in MODES:
        return MODES[name]
    raise IllegalFormat(f"mode is {name!r}; {listed(MODES)} are legal")


def legal_int(what: str, value: object, legal: Sequence[int], mode: str) -> int:
    """``value``, if it is one of ``legal``. Raises ``IllegalFormat`` naming ``what``.

    >>> legal_int("bits", 7, MODES["affine"].bits, "affine")
    Traceback (most recent call last):
    pagedkv_protocols.errors.IllegalFormat: bits is 7; mode affine takes 2, 3, 4, 5, 6, 8
    """
    if isinstance(value, int) and value in legal:
        return value
    raise IllegalFormat(f"{what} is {value!r}; mode {mode} takes {listed(legal)}")


def check_dim(which: str, dim: int, group_size: int) -> None:
    """Refuse vectors of ``dim`` numbers in groups of ``group_size``; ``which`` is K or V.

    Raises ``IllegalFormat`` naming the affine groups that would do.

    >>> check_dim("K", 96, 64)
    Traceback (most recent call last):
    pagedkv_protocols.errors.IllegalFormat: K dim 96 ... dim 96 divides by group 32 only
    """
    step = max(group_size, PACKED_TOGETHER)
    if dim < 1 or dim % step:
        raise IllegalFormat(f"{which} dim {dim} is no multiple of {step}; {ways_out(dim)}")


def ways_out(dim: int) -> str:
    """What could hold vectors of ``dim`` numbers.

    >>> ways_out(192)
    'dim 192 divides by groups 32, 64'
    >>> ways_out(80)
    'dim 80 divides by no group that MLX has (32, 64, 128): use TurboQuant or dense pages'
    """
    groups = MODES["affine"].group_sizes
    match [group for group in groups if dim > 0 and dim % group == 0]:
        case []:
            return (
                f"dim {dim} divides by no group that MLX has ({listed(groups)}): "
                "use TurboQuant or dense pages"
            )
        case [group]:
            return f"dim {dim} divides by group {group} only"
        case several:
            return f"dim {dim} divides by groups {listed(several)}"


def listed(choices: Iterable[object]) -> str:
    """``choices``, with commas."""
    return ", ".join(map(str, choices))

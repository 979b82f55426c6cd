"""Kernel backends: one source text to something that can be launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

ArrayT = TypeVar("ArrayT")
DtypeT_contra = TypeVar("DtypeT_contra", contravariant=True)


class Launch(Protocol[ArrayT, DtypeT_contra]):
    """A compiled kernel: called with its inputs and the launch's shape."""

    def __call__(
        self,
        *,
        inputs: Sequence[ArrayT],
        template: Sequence[tuple[str, int | bool | DtypeT_contra]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[DtypeT_contra],
    ) -> list[ArrayT]:
        """Run over ``grid`` threads (a multiple of ``threadgroup``); gives fresh outputs.

        Raises ``InvalidArgument`` for other than as many inputs as were stated.
        """
        ...


class KernelBackend(Protocol[ArrayT, DtypeT_contra]):
    """A compiler for kernel bodies in the Metal language, whatever it runs them on."""

    @property
    def name(self) -> str:
        """What it compiles for, such as ``metal``, ``cuda`` or ``emulator``."""
        ...

    def compile(
        self,
        name: str,
        source: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        header: str = "",
        /,
    ) -> Launch[ArrayT, DtypeT_contra]:
        """A launch of ``source``, a body that names ``inputs`` and ``outputs``.

        Raises ``Unsupported`` where this machine cannot run it. A body that names anything
        else is refused (by an error of the compiler, or of ours) here, or when it is
        launched or evaluated.
        """
        ...

    def options(self) -> Mapping[str, str]:
        """What the compiler was told, for reports."""
        ...

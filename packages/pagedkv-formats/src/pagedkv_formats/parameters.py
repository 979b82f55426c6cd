"""Parameters of a format as plain data: all there, none unknown, each as it must be."""

from __future__ import annotations

from collections.abc import Mapping

from pagedkv_protocols import IllegalFormat


def check_parameters(data: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Refuse ``data`` unless it has exactly the keys of ``expected``, with equal values.

    A value of ``...`` in ``expected`` stands for any. Raises ``IllegalFormat``.

    >>> check_parameters({"format": "dense"}, {"format": "dense"})
    """
    if data.keys() != expected.keys():
        raise IllegalFormat(
            f"a page format was described by {sorted(data)}; it takes {sorted(expected)}"
        )
    for key, value in expected.items():
        if value is not ... and data[key] != value:
            raise IllegalFormat(f"{key} is {data[key]!r}; this format has {value!r}")

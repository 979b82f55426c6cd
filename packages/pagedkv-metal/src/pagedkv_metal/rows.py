"""Rows: where the positions of a batch lie, checked before any kernel sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from pagedkv_protocols import InvalidArgument

LEAST = 8
"""Arrays of fewer elements reach a Metal kernel in another address space."""


class Rows(NamedTuple):
    """Where the rows of a batch lie, checked: what ``Rows.of`` gives.

    ``table [B, columns]`` uint32 holds slots, ``starts [B]`` and ``lengths [B]`` uint32 the
    first position held and one past the last, each padded to 8 elements at least. Positions
    ``begin`` to ``end - 1`` are the widest of any row.
    """

    table: mx.array
    starts: mx.array
    lengths: mx.array
    columns: int
    num_rows: int
    begin: int
    end: int

    @classmethod
    def of(
        cls,
        tables: Sequence[Sequence[int]],
        lengths: Sequence[int],
        starts: Sequence[int] | None = None,
        *,
        block_size: int,
        num_slots: int,
    ) -> Rows:
        """One table a row, its first slot holding position ``starts[b]`` onwards.

        A row's table may be longer than the row; a shorter one is padded with its last slot.
        Raises ``InvalidArgument`` for a slot that is not one of ``num_slots``, a table with
        too few blocks for its length, and counts that do not match.
        """
        firsts = [0] * len(lengths) if starts is None else list(starts)
        if not lengths or not len(tables) == len(lengths) == len(firsts):
            raise InvalidArgument(
                f"{len(tables)} tables, {len(lengths)} lengths and {len(firsts)} starts were "
                "given; a batch has one of each a row"
            )
        for row, (table, length, start) in enumerate(zip(tables, lengths, firsts, strict=True)):
            _check_row(row, table, length - start, block_size, num_slots)
        columns = max(1, *(len(table) for table in tables)) if tables else 1
        padded = [_padded(table, columns) for table in tables]
        return cls(
            _at_least_8([slot for table in padded for slot in table]),
            _at_least_8(firsts),
            _at_least_8(lengths),
            columns,
            len(lengths),
            min(firsts),
            max(lengths),
        )


def _check_row(
    row: int, table: Sequence[int], length: int, block_size: int, num_slots: int
) -> None:
    if length < 0:
        raise InvalidArgument(f"row {row} ends {-length} positions before it starts")
    if len(table) * block_size < length:
        raise InvalidArgument(
            f"row {row} has {length} positions and {len(table)} blocks of {block_size}; "
            "a table covers its row"
        )
    wrong = [slot for slot in table if not 0 <= slot < num_slots]
    if wrong:
        raise InvalidArgument(
            f"row {row} names slot {wrong[0]}; the pages have slots 0 to {num_slots - 1}"
        )


def _padded(table: Sequence[int], columns: int) -> list[int]:
    last = table[-1] if table else 0
    return [*table, *[last] * (columns - len(table))]


def _at_least_8(numbers: Sequence[int]) -> mx.array:
    return mx.array([*numbers, *[numbers[-1]] * (LEAST - len(numbers))], mx.uint32)

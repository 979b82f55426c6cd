"""CodecConformance: rows to page bytes and back, each row by itself."""

from __future__ import annotations

import abc
import json
import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

import pytest

from pagedkv_protocols.conformance.arrays import ArrayAdapter
from pagedkv_protocols.conformance.clauses import Clause, check, refused
from pagedkv_protocols.conformance.rows import Dims, Rows, draw_rows
from pagedkv_protocols.conformance.setting import Setting
from pagedkv_protocols.errors import IllegalFormat
from pagedkv_protocols.pages import PageCodec, PlaneSpec

ArrayT = TypeVar("ArrayT")
DtypeT = TypeVar("DtypeT")

LENGTHS = [1, 2, 7, 33]
PLAIN = (int, str, bool, type(None))


class CodecConformance(abc.ABC, Generic[ArrayT, DtypeT]):
    """What the author of a codec states, and the contract of ``PageCodec``.

    - ``arrays``: how to make arrays and look into them;
    - ``dtypes``: the floats that it encodes;
    - ``dims``: pairs (Dk, Dv) that it holds, and ``illegal_dims``, pairs that it refuses;
    - ``lossless``: what it decodes is what it encoded, to the bit.
    """

    arrays: ArrayAdapter[ArrayT]
    dtypes: Sequence[str] = ("float32",)
    dims: Sequence[tuple[int, int]] = ((64, 64), (128, 64))
    illegal_dims: Sequence[tuple[int, int]] = ()
    lossless: bool = False

    @abc.abstractmethod
    def new_codec(self) -> PageCodec[ArrayT, DtypeT]:
        """The codec, made anew."""

    @abc.abstractmethod
    def dtype_named(self, name: str, /) -> DtypeT:
        """The library's dtype of that name, floats and integers alike."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each ``dtype`` and each ``pair`` of dims that is stated, those that are illegal."""
        for name, values in (
            ("dtype", self.dtypes),
            ("pair", self.dims),
            ("illegal", self.illegal_dims),
        ):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values, ids=str)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_encode_gives_each_plane_its_width_and_dtype(
        self, dtype: str, pair: tuple[int, int], length: int
    ) -> None:
        """In the order of ``planes``."""
        codec, specs = self._planes(pair, dtype)
        rows = codec.encode(*self._rows(pair, dtype, length))
        found = [(self.arrays.shape(a), self.dtype_named(self.arrays.dtype(a))) for a in rows]
        wanted = [((1, 2, length, spec.width), spec.dtype) for spec in specs]
        check(found == wanted, Clause.PLANES, f"{codec}, {length} rows of {pair}", str(found))

    @pytest.mark.parametrize("cuts", [[1], [1, 2, 3], [5, 6], [32]], ids=str)
    def test_rows_encoded_in_chunks_are_rows_encoded_at_once(
        self, dtype: str, pair: tuple[int, int], cuts: list[int]
    ) -> None:
        """Whatever rows share the call."""
        codec, _ = self._planes(pair, dtype)
        setting, rows = self._setting(pair, dtype), self._drawn(pair, 33)
        wanted = self._codes(codec, setting, rows)
        found: list[list[bytes]] = [[] for _ in wanted]
        for begin, end in zip([0, *cuts], [*cuts, 33], strict=True):
            chunk = self._codes(codec, setting, rows.span(begin, end))
            found = [plane + more for plane, more in zip(found, chunk, strict=True)]
        case = f"{codec}, 33 rows of {pair}, {dtype}, cut at {cuts}"
        check(found == wanted, Clause.ROW_ALONE, case, "other codes")

    def test_a_row_is_encoded_whatever_its_neighbours_are(
        self, dtype: str, pair: tuple[int, int]
    ) -> None:
        """Zeros, a constant and an outlier beside it change nothing."""
        codec, _ = self._planes(pair, dtype)
        setting, row = self._setting(pair, dtype), self._drawn(pair, 1)
        [*alone] = self._codes(codec, setting, row)
        for number in (0.0, 0.5, 300.0):
            other = Rows(*([[[number] * dim] * 2 for _ in range(2)] for dim in pair))
            beside = self._codes(codec, setting, other.then(row).then(other))
            found = [plane[2:3] for plane in beside]
            case = f"{codec}, a row of {pair} between rows of {number}"
            check(found == alone, Clause.ROW_ALONE, case, "other codes")

    @pytest.mark.parametrize("length", LENGTHS)
    def test_decode_gives_keys_and_values_of_their_dims(
        self, dtype: str, pair: tuple[int, int], length: int
    ) -> None:
        """In the dtype of the rows; to the bit where the codec is lossless."""
        codec, _ = self._planes(pair, dtype)
        given = self._rows(pair, dtype, length)
        decoded = self._decoded(codec, given, pair, dtype)
        kinds = [(self.arrays.shape(a), self.arrays.dtype(a)) for a in decoded]
        wanted = [((1, 2, length, dim), dtype) for dim in pair]
        case = f"{codec}, {length} rows of {pair}"
        check(kinds == wanted, Clause.DECODED, case, str(kinds))
        if self.lossless:
            same = [*map(self.arrays.bits, decoded)] == [*map(self.arrays.bits, given)]
            check(same, Clause.DECODED, f"{case}, lossless", "other bits")

    def test_a_row_is_decoded_from_its_own_codes(self, dtype: str, pair: tuple[int, int]) -> None:
        """Alone as among others."""
        codec, _ = self._planes(pair, dtype)
        setting, rows = self._setting(pair, dtype), self._drawn(pair, 7)
        together = setting.rows(*self._decoded(codec, setting.pair(rows), pair, dtype))
        for i in range(7):
            one = setting.pair(rows.span(i, i + 1))
            alone = setting.rows(*self._decoded(codec, one, pair, dtype))
            same = alone == together.span(i, i + 1)
            check(same, Clause.DECODED, f"{codec}, row {i} of 7 of {pair}", "other numbers")

    @pytest.mark.parametrize("number", [0.0, 0.25, -7.0, 2**-20, 300.0])
    def test_a_constant_row_decodes_to_finite_numbers(
        self, dtype: str, pair: tuple[int, int], number: float
    ) -> None:
        """R38: no range, no norm, and nothing is divided by it."""
        codec, _ = self._planes(pair, dtype)
        setting = self._setting(pair, dtype)
        given = setting.pair(Rows(*([[[number] * dim] for _ in range(2)] for dim in pair)))
        for part in self._decoded(codec, given, pair, dtype):
            values = self.arrays.values(part)
            case = f"{codec}, rows of {number}, {pair}"
            check(all(map(math.isfinite, values)), Clause.DECODED, case, str(values[:8]))
            check(number != 0 or not any(values), Clause.DECODED, case, str(values[:8]))

    def test_a_codec_is_a_value(self) -> None:
        """Equal, with an equal hash and signature, when made alike."""
        codec, other = self.new_codec(), self.new_codec()
        same = codec == other and hash(codec) == hash(other)
        check(same, Clause.DESCRIBED, f"{codec} made twice", "two unequal values")
        same = codec.signature() == other.signature() and bool(codec.signature())
        check(same, Clause.SIGNATURE, f"{codec} made twice", codec.signature())

    def test_a_codec_round_trips_through_plain_data(self) -> None:
        """Through JSON, too."""
        codec = self.new_codec()
        data = codec.to_dict()
        plain = all(isinstance(value, PLAIN) for value in data.values())
        plain = plain and json.loads(json.dumps(data)) == data
        check(plain, Clause.DESCRIBED, str(codec), str(data))
        check("format" in data, Clause.DESCRIBED, str(codec), f"no format in {data}")
        again = type(codec).from_dict(data)
        same = again == codec and again.signature() == codec.signature()
        check(same, Clause.DESCRIBED, str(codec), str(again))

    def test_data_that_describes_no_codec_is_refused(self) -> None:
        """A parameter that is missing, unknown, or of another format."""
        codec = self.new_codec()
        data: Mapping[str, object] = codec.to_dict()
        clause = Clause.NOT_DESCRIBED
        others: list[Mapping[str, object]] = [
            {key: value for key, value in data.items() if key != left_out} for left_out in data
        ]
        others += [{**data, "no such parameter": 1}, {**data, "format": "no such format"}, {}]
        for other in others:
            refused(IllegalFormat, partial(type(codec).from_dict, other), str(other), clause)

    def test_dims_that_it_cannot_hold_are_refused(
        self, dtype: str, illegal: tuple[int, int]
    ) -> None:
        """R01: before anything is allocated, naming the dim."""
        codec = self.new_codec()
        case = f"{codec}, dims {illegal}"
        planes = partial(codec.planes, *illegal, self.dtype_named(dtype))
        message = refused(IllegalFormat, planes, case, Clause.ILLEGAL)
        named = any(str(dim) in message for dim in illegal)
        check(named, Clause.ILLEGAL, case, message)

    def _planes(
        self, pair: tuple[int, int], dtype: str
    ) -> tuple[PageCodec[ArrayT, DtypeT], Sequence[PlaneSpec[DtypeT]]]:
        """The codec and its planes; skips one that keeps rows a block, whose rows need one."""
        codec = self.new_codec()
        specs = codec.planes(*pair, self.dtype_named(dtype))
        if any(spec.per_block for spec in specs):
            pytest.skip("it keeps a row for each block, which is not a matter of one row")
        return codec, specs

    def _setting(self, pair: tuple[int, int], dtype: str) -> Setting[ArrayT]:
        return Setting(self.arrays, Dims(2, 2, *pair), dtype, {}, lambda k, v: (k, v))

    def _drawn(self, pair: tuple[int, int], length: int) -> Rows:
        return draw_rows(random.Random(length), Dims(2, 2, *pair), length)  # noqa: S311

    def _rows(self, pair: tuple[int, int], dtype: str, length: int) -> tuple[ArrayT, ArrayT]:
        return self._setting(pair, dtype).pair(self._drawn(pair, length))

    def _decoded(
        self,
        codec: PageCodec[ArrayT, DtypeT],
        given: tuple[ArrayT, ArrayT],
        pair: tuple[int, int],
        dtype: str,
    ) -> tuple[ArrayT, ArrayT]:
        return codec.decode(codec.encode(*given), *pair, self.dtype_named(dtype))

    def _codes(
        self, codec: PageCodec[ArrayT, DtypeT], setting: Setting[ArrayT], rows: Rows
    ) -> list[list[bytes]]:
        """For each plane, the bytes of each position, all heads together."""
        return [self._by_position(plane) for plane in codec.encode(*setting.pair(rows))]

    def _by_position(self, plane: ArrayT) -> list[bytes]:
        _, heads, length, _ = self.arrays.shape(plane)
        data = self.arrays.bits(plane)
        size = len(data) // (heads * length)
        rows = [data[at : at + size] for at in range(0, len(data), size)] if size else []
        return [b"".join(rows[i::length]) for i in range(length)]

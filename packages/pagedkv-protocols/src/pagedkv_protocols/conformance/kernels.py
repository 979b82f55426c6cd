"""KernelBackendConformance: small kernels in the Metal language, compiled and run."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Generic, TypeVar

import pytest

from pagedkv_protocols.conformance.arrays import ArrayAdapter
from pagedkv_protocols.conformance.clauses import Clause, broken, check, refused
from pagedkv_protocols.errors import InvalidArgument, PagedKVError, Unsupported
from pagedkv_protocols.kernels import KernelBackend, Launch

ArrayT = TypeVar("ArrayT")
DtypeT = TypeVar("DtypeT")

ELEMENTWISE = """
uint i = thread_position_in_grid.x;
y[i] = T(float(x[i]) * factor[0] + float(N));
"""
"""``y[i] = x[i] * factor[0] + N``, in dtype ``T``."""

WITH_HEADER = """
uint i = thread_position_in_grid.x;
y[i] = twice(float(x[i]));
z[i] = twice(twice(float(x[i])));
"""
"""``y[i] = 2 * x[i]`` and ``z[i] = 4 * x[i]``, by a function of ``HEADER``."""

HEADER = """
template <typename U>
inline U twice(U value) {
    return value + value;
}
"""

THREADGROUP_SUM = """
threadgroup float partial[64];
uint lane = thread_position_in_threadgroup.x;
uint group = threadgroup_position_in_grid.x;
partial[lane] = float(x[group * 64 + lane]);
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint stride = 32; stride > 0; stride /= 2) {
    if (lane < stride) {
        partial[lane] += partial[lane + stride];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (lane == 0) {
    y[group] = partial[0];
}
"""
"""``y[g]``: the sum of the g-th 64 of x, through threadgroup memory."""

SIMD_SUM = """
uint i = thread_position_in_grid.x;
float total = simd_sum(float(x[i]));
if (thread_index_in_simdgroup == 0) {
    y[i / 32] = total;
}
"""
"""``y[g]``: the sum of the g-th 32 of x, by one simdgroup."""

UNKNOWN = """
uint i = thread_position_in_grid.x;
y[i] = x[i] + not_an_input[i];
"""
"""It names an array that nobody stated."""

X = [(7 * i % 41 - 20) / 8 for i in range(128)]
"""Numbers whose sums of 64 are exact in float32."""


class KernelBackendConformance(abc.ABC, Generic[ArrayT, DtypeT]):
    """What the author of a backend states, and the contract of ``KernelBackend``.

    ``arrays`` says how to make arrays and look into them. Where the backend raises
    ``Unsupported`` for the first kernel, this machine cannot run any, and tests are skipped.
    """

    arrays: ArrayAdapter[ArrayT]

    @abc.abstractmethod
    def new_backend(self) -> KernelBackend[ArrayT, DtypeT]:
        """The backend, made anew."""

    @abc.abstractmethod
    def dtype_named(self, name: str, /) -> DtypeT:
        """The library's dtype of that name."""

    @pytest.mark.parametrize("number", [0, 3, -1])
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_an_elementwise_body_runs_on_every_thread(self, dtype: str, number: int) -> None:
        """With a scalar as data, a dtype and an int as template arguments."""
        launch = self._compile("affine", ELEMENTWISE, ["x", "factor"], ["y"])
        factor = self.arrays.make([1.5] + [0.0] * 7, (8,), "float32")
        [y] = self._launch(
            launch,
            [self._x(dtype), factor],
            [("T", self.dtype_named(dtype)), ("N", number)],
            [((128,), dtype)],
        )
        self._check(y, (128,), dtype, [1.5 * x + number for x in X], "elementwise")

    def test_a_body_may_call_its_header_and_have_two_outputs(self) -> None:
        """In the order that was stated."""
        launch = self._compile("doubles", WITH_HEADER, ["x"], ["y", "z"], HEADER)
        outputs = [((128,), "float32"), ((2, 64), "float32")]
        y, z = self._launch(launch, [self._x()], [], outputs)
        self._check(y, (128,), "float32", [2 * x for x in X], "first output")
        self._check(z, (2, 64), "float32", [4 * x for x in X], "second output")

    def test_a_threadgroup_reduces_through_its_memory(self) -> None:
        """A barrier after each phase, two threadgroups."""
        launch = self._compile("threadgroup_sum", THREADGROUP_SUM, ["x"], ["y"])
        [y] = self._launch(launch, [self._x()], [], [((2,), "float32")])
        self._check(y, (2,), "float32", [sum(X[:64]), sum(X[64:])], "threadgroup sum")

    def test_a_simdgroup_reduces_its_32_lanes(self) -> None:
        """Four of them, two in each threadgroup."""
        launch = self._compile("simd_sum", SIMD_SUM, ["x"], ["y"])
        [y] = self._launch(launch, [self._x()], [], [((4,), "float32")])
        sums = [sum(X[at : at + 32]) for at in range(0, 128, 32)]
        self._check(y, (4,), "float32", sums, "simdgroup sum")

    def test_a_launch_gives_fresh_outputs(self) -> None:
        """The first answer is not overwritten by the second, nor an input by either."""
        launch = self._compile("doubles", WITH_HEADER, ["x"], ["y", "z"], HEADER)
        outputs = [((128,), "float32")] * 2
        x, zeros = self._x(), self.arrays.make([0.0] * 128, (128,), "float32")
        first, _ = self._launch(launch, [x], [], outputs)
        self.arrays.evaluate([first])
        self._launch(launch, [zeros], [], outputs)
        self._check(first, (128,), "float32", [2 * number for number in X], "after another")
        self._check(x, (128,), "float32", X, "the input")

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_other_inputs_than_stated_are_refused(self, count: int) -> None:
        """A launch takes as many as ``compile`` was told."""
        launch = self._compile("affine", ELEMENTWISE, ["x", "factor"], ["y"])
        dtype = self.dtype_named("float32")
        template: list[tuple[str, int | DtypeT]] = [("T", dtype), ("N", 0)]
        refused(
            InvalidArgument,
            lambda: self._launch(launch, [self._x()] * count, template, [((128,), "float32")]),
            f"{count} inputs for a kernel of 2",
        )

    def test_a_body_that_names_an_unknown_input_is_refused(self) -> None:
        """When it is compiled, launched or evaluated."""
        self._compile("doubles", WITH_HEADER, ["x"], ["y", "z"], HEADER)
        try:
            launch = self.new_backend().compile("unknown", UNKNOWN, ["x"], ["y"])
            outputs = self._launch(launch, [self._x()], [], [((128,), "float32")])
            self.arrays.evaluate(outputs)
        except (PagedKVError, RuntimeError) as error:
            check(bool(str(error)), Clause.LAUNCH_INPUTS, UNKNOWN, f"{error!r}, no message")
        else:
            broken(Clause.LAUNCH_INPUTS, UNKNOWN, "it was taken")

    def test_a_backend_says_what_it_is(self) -> None:
        """Its name, and what its compiler was told."""
        backend = self.new_backend()
        options = dict(backend.options())
        plain = all(isinstance(word, str) for pair in options.items() for word in pair)
        check(bool(backend.name) and plain, Clause.LAUNCH, backend.name, str(options))

    def _compile(
        self,
        name: str,
        source: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        header: str = "",
    ) -> Launch[ArrayT, DtypeT]:
        try:
            return self.new_backend().compile(name, source, inputs, outputs, header)
        except Unsupported as error:
            pytest.skip(f"no kernel runs here: {error}")

    def _launch(
        self,
        launch: Launch[ArrayT, DtypeT],
        inputs: Sequence[ArrayT],
        template: Sequence[tuple[str, int | DtypeT]],
        outputs: Sequence[tuple[Sequence[int], str]],
    ) -> list[ArrayT]:
        """128 threads, 64 a threadgroup."""
        return launch(
            inputs=inputs,
            template=template,
            grid=(128, 1, 1),
            threadgroup=(64, 1, 1),
            output_shapes=[shape for shape, _ in outputs],
            output_dtypes=[self.dtype_named(dtype) for _, dtype in outputs],
        )

    def _x(self, dtype: str = "float32") -> ArrayT:
        return self.arrays.make(X, (128,), dtype)

    def _check(
        self,
        array: ArrayT,
        shape: tuple[int, ...],
        dtype: str,
        wanted: Sequence[float],
        case: str,
    ) -> None:
        __tracebackhide__ = True
        found = self.arrays.shape(array), self.arrays.dtype(array)
        check(found == (shape, dtype), Clause.LAUNCH, case, str(found))
        values = self.arrays.values(array)
        close = all(
            abs(a - b) <= 2e-3 * max(1.0, abs(b)) for a, b in zip(values, wanted, strict=True)
        )
        check(close, Clause.LAUNCH, case, f"{values[:8]} where {list(wanted[:8])} is right")

"""Rotations are orthogonal, the same everywhere, and never call what MLX has wrong."""

import os
import subprocess
import sys
import threading

import mlx.core as mx
import pytest

from pagedkv_formats import PagedTurboQuant
from pagedkv_formats.turboquant.rotation import (
    HADAMARD_DIMS,
    dense_matrix,
    hadamard_matrix,
    random_signs,
    rotation,
    sum_in_order,
)
from pagedkv_formats.turboquant.scales import unit_rows

DIMS = (16, 17, 20, 24, 28, 64, 72, 80, 96, 100, 112, 128, 192, 256, 512)


def rows_of(dim: int, count: int = 64) -> mx.array:
    return mx.random.normal((1, 2, count, dim), key=mx.random.key(dim))


@pytest.mark.parametrize("dim", DIMS)
def test_r_transposed_times_r_is_the_identity_within_1e_6(dim):
    turn = rotation(0, dim)
    for columns in (turn.apply(mx.eye(dim)), turn.revert(mx.eye(dim))):
        with mx.stream(mx.cpu):
            wide = columns.astype(mx.float64)
            gram = wide @ wide.T
            assert mx.all(mx.abs(gram - mx.eye(dim, dtype=mx.float64)) <= 1e-6).item()


@pytest.mark.parametrize("dim", DIMS)
def test_a_rotation_and_back_is_a_row_within_1e_5_of_its_length(dim):
    turn, rows = rotation(0, dim), rows_of(dim)
    gone = mx.linalg.norm(turn.revert(turn.apply(rows)) - rows, axis=-1)
    assert mx.all(gone <= 1e-5 * mx.linalg.norm(rows, axis=-1)).item()
    back = turn.apply(turn.revert(rows))
    assert mx.all(mx.abs(back - rows) < 1e-5).item()


@pytest.mark.parametrize("dim", DIMS)
def test_a_row_is_rotated_alike_alone_and_among_others(dim):
    turn, rows = rotation(0, dim), rows_of(dim, 33)
    for way in (turn.apply, turn.revert):
        together = way(rows)
        for count in (1, 2, 7, 32):
            assert mx.array_equal(way(rows[:, :, :count]), together[:, :, :count]).item()
            assert mx.array_equal(way(rows[:, 1:, -count:]), together[:, 1:, -count:]).item()


@pytest.mark.parametrize("dim", sorted(HADAMARD_DIMS))
def test_the_transform_of_each_dim_that_uses_it_is_a_hadamard_matrix(dim):
    matrix = hadamard_matrix(random_signs(0, dim))
    assert mx.all(mx.abs(matrix) == 1).item()
    assert mx.array_equal(matrix @ matrix.T, dim * mx.eye(dim)).item()


def test_dims_with_a_hadamard_matrix_are_those_that_were_tried():
    powers = {16, 32, 64, 128, 256, 512}
    twelves, twenties = {24, 48, 96, 192, 384}, {40, 80, 160, 320}
    assert powers | twelves | twenties | {56, 112, 224, 448} == HADAMARD_DIMS


@pytest.mark.parametrize("dim", [20, 36, 72, 120, 144])
def test_the_transform_is_never_called_for_a_dim_that_mlx_has_wrong(dim, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError(f"mx.hadamard_transform was called for dim {dim}")

    monkeypatch.setattr(mx, "hadamard_transform", refuse)
    codec, rows = PagedTurboQuant(seed=12345), rows_of(dim, 3)
    unit, _ = unit_rows(rows, rotation(12345, dim))
    back = codec.unrotate_outputs(codec.rotate_queries(rows))
    assert mx.all(mx.isfinite(unit)).item()
    assert mx.allclose(back, rows, atol=1e-5).item()


def test_dim_576_on_which_mlx_gives_nan_decodes_to_what_was_encoded():
    codec, rows = PagedTurboQuant(8, 8), rows_of(576, 3)
    keys, values = codec.decode(codec.encode(rows, rows[..., :512]), 576, 512, mx.float32)
    assert (mx.square(keys - rows).mean() < 1e-4).item()
    assert (mx.square(values - rows[..., :512]).mean() < 1e-4).item()


@pytest.mark.parametrize("dim", [64, 72, 80])
def test_seeds_and_dims_have_rotations_of_their_own(dim):
    digests = [rotation(seed, dim).digest() for seed in (0, 1, 2, 2**64 - 1)]
    assert len({*digests, rotation(0, 2 * dim).digest()}) == 5


def test_rotations_are_the_same_in_every_version():
    """Pages that were saved depend on these: a change here makes them unreadable."""
    found = {dim: PagedTurboQuant().rotation_digest(dim) for dim in (64, 72, 80, 96, 112, 128)}
    assert found == {
        64: "163793d8d10cb89f",
        72: "7427c4f3fbd9538b",
        80: "35dec8f095221351",
        96: "c0786fddb03aa434",
        112: "696d6c9f8580a5f1",
        128: "351910fe1968145d",
    }


def test_another_process_has_the_same_rotations_and_the_same_bytes():
    program = (
        "import hashlib, mlx.core as mx\n"
        "from pagedkv_formats import PagedTurboQuant\n"
        "codec = PagedTurboQuant(4, 4, seed=9)\n"
        "print([codec.rotation_digest(dim) for dim in (64, 72, 80)])\n"
        "for dim in (64, 72, 80):\n"
        "    rows = mx.random.normal((1, 2, 20, dim), key=mx.random.key(dim))\n"
        "    for plane in codec.encode(rows, rows):\n"
        "        octets = mx.view(plane.reshape(-1), mx.uint8).tolist()\n"
        "        print(hashlib.sha256(bytes(octets)).hexdigest())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].startswith(str([rotation(9, dim).digest() for dim in (64, 72, 80)]))


def test_a_rotation_that_one_thread_made_serves_the_others():
    """No array of it is left to be evaluated on the stream of the thread that made it."""
    codec, rows, found = PagedTurboQuant(4, 4, seed=77), rows_of(72, 5), []
    mx.eval(rows)

    def encode():
        mine = mx.array(rows)
        keys, values = codec.decode(codec.encode(mine, mine), 72, 72, mx.float32)
        mx.eval(keys, values)
        found.append(keys.tolist())

    for _ in range(3):
        thread = threading.Thread(target=encode)
        thread.start()
        thread.join()
    encode()
    assert len(found) == 4
    assert found.count(found[0]) == 4


def test_a_rotation_can_first_be_made_inside_a_compiled_function():
    codec, rows = PagedTurboQuant(4, 4, seed=4242), rows_of(72, 5)
    compiled = mx.compile(lambda x: codec.encode(x, x))(rows)
    for inside, outside in zip(compiled, codec.encode(rows, rows), strict=True):
        assert mx.array_equal(inside, outside).item()


def test_a_dense_rotation_does_not_depend_on_the_order_in_which_mlx_sums():
    columns = mx.random.normal((37, 5), key=mx.random.key(0))
    assert mx.allclose(sum_in_order(columns), columns.sum(axis=0, keepdims=True), atol=1e-5).item()
    one = sum_in_order(columns[:, 2:3])
    assert one.item() == sum_in_order(columns)[0, 2].item()
    assert mx.array_equal(dense_matrix(5, 40), dense_matrix(5, 40)).item()

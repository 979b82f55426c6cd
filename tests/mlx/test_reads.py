"""Every named read of 16- and 32-bit pages has the bits of the contiguous reference."""

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.mlx.lockstep import Lockstep


def test_every_named_read_has_the_bits_of_the_contiguous_reference():
    run_state_machine_as_test(Lockstep, settings=settings(stateful_step_count=20))

"""What breaks a contract fails the kit, in the test and with the clause it broke."""

import pytest

from pagedkv_protocols.conformance import Clause
from tests.kits import failures, reports
from tests.protocols import broken

pytest_plugins = ["pytester"]

FAULTS = {
    broken.TestScaledByTheCall: {
        "test_rows_encoded_in_chunks_are_rows_encoded_at_once": Clause.ROW_ALONE,
        "test_a_row_is_encoded_whatever_its_neighbours_are": Clause.ROW_ALONE,
        "test_a_row_is_decoded_from_its_own_codes": Clause.DECODED,
    },
    broken.TestWiderThanStated: {
        "test_encode_gives_each_plane_its_width_and_dtype": Clause.PLANES,
    },
    broken.TestForgetful: {
        "test_a_codec_round_trips_through_plain_data": Clause.DESCRIBED,
        "test_data_that_describes_no_codec_is_refused": Clause.NOT_DESCRIBED,
    },
    broken.TestFreesTwice: {
        "test_a_block_released_twice_at_once_needs_two_holders": Clause.REFUSAL,
        "test_a_block_is_free_or_held_whatever_is_done": Clause.REFUSAL,
    },
    broken.TestSharesInPart: {
        "test_a_list_with_a_block_that_nobody_holds_is_refused_whole": Clause.UNCHANGED,
    },
    broken.TestRounds: {
        "test_an_elementwise_body_runs_on_every_thread": Clause.LAUNCH,
        "test_a_threadgroup_reduces_through_its_memory": Clause.LAUNCH,
        "test_a_simdgroup_reduces_its_32_lanes": Clause.LAUNCH,
    },
    broken.TestReuses: {"test_a_launch_gives_fresh_outputs": Clause.LAUNCH},
}
"""For each broken class the tests that must fail, and the clause that they must name."""


@pytest.mark.parametrize("kit", FAULTS, ids=lambda kit: kit.__name__)
def test_what_is_broken_fails_where_it_is_broken(kit, pytester):
    reported = reports(pytester, kit)
    for test, clause in FAULTS[kit].items():
        told = failures(reported, test)
        assert told, f"{test} passed"
        assert all(f"broken: {clause.value}" in text for text in told), told


def test_a_backend_that_this_machine_cannot_run_is_skipped(pytester):
    reported = reports(pytester, broken.TestAbsent)
    outcomes = {report.outcome for told in reported.values() for report in told}
    assert outcomes == {"skipped", "passed"}
    assert [name for name, told in reported.items() if told[0].passed] == [
        "test_a_backend_says_what_it_is"
    ]

"""A cache that breaks the contract fails the kit, in the test and with the clause it broke."""

import pytest

from pagedkv_protocols.conformance import Clause
from tests.kits import failures, reports
from tests.numpy_cache import broken

pytest_plugins = ["pytester"]

FAULTS = {
    broken.TestTopLeft: {
        "test_a_window_on_a_warm_cache_is_aligned_bottom_right": Clause.WINDOW,
        "test_a_window_of_any_length_to_33_sees_its_history": Clause.WINDOW,
        "test_a_window_answers_as_its_positions_one_by_one": Clause.WINDOW,
    },
    broken.TestStaleView: {
        "test_a_window_read_is_of_the_moment_of_its_append": Clause.AS_OF_APPEND,
        "test_a_decode_read_is_of_the_moment_of_its_append": Clause.AS_OF_APPEND,
        "test_many_reads_live_at_once": Clause.AS_OF_APPEND,
        "test_caches_and_reads_are_as_their_rows_say_whatever_is_done": Clause.AS_OF_APPEND,
    },
    broken.TestTrimKeepsRows: {
        "test_trim_then_append_is_as_if_the_trimmed_had_never_been": Clause.TRIM,
        "test_trim_drops_the_last_positions_and_says_how_many": Clause.TRIM,
        "test_exported_rows_are_the_live_ones": Clause.EXPORT,
        "test_donor_rows_are_the_stored_positions": Clause.DONOR,
    },
    broken.TestMaskDropped: {
        "test_no_mask_lets_every_query_see_every_position": Clause.MASK,
        "test_a_bool_mask_takes_the_place_of_the_rule": Clause.MASK,
        "test_an_additive_mask_takes_the_place_of_the_rule": Clause.MASK,
        "test_each_query_head_is_masked_by_its_own_plane": Clause.MASK_HEAD,
    },
}
"""For each broken cache the tests that must fail, and the clause that they must name."""

SOUND = {
    broken.TestTopLeft: ["test_the_first_window_is_causal", "test_exported_rows_are_the_live_ones"],
    broken.TestStaleView: [
        "test_a_window_on_a_warm_cache_is_aligned_bottom_right",
        "test_trim_then_append_is_as_if_the_trimmed_had_never_been",
    ],
    broken.TestTrimKeepsRows: [
        "test_a_window_on_a_warm_cache_is_aligned_bottom_right",
        "test_a_bool_mask_takes_the_place_of_the_rule",
    ],
    broken.TestMaskDropped: [
        "test_a_window_on_a_warm_cache_is_aligned_bottom_right",
        "test_caches_and_reads_are_as_their_rows_say_whatever_is_done",
    ],
}
"""For each broken cache some of the tests that its fault must not reach."""


@pytest.mark.parametrize("kit", FAULTS, ids=lambda kit: kit.__name__)
def test_a_broken_cache_fails_where_it_is_broken(kit, pytester):
    reported = reports(pytester, kit)
    for test, clause in FAULTS[kit].items():
        told = failures(reported, test)
        assert told, f"{test} passed"
        assert all(f"broken: {clause.value}" in text for text in told), told
    for test in SOUND[kit]:
        assert {report.outcome for report in reported[test]} == {"passed"}, test

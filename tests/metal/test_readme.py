"""The README of pagedkv-metal."""

from tests.readme import examples_that_hold


def test_the_readme_shows_what_happens():
    assert examples_that_hold("packages/pagedkv-metal/README.md") > 0

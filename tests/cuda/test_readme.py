"""The README of pagedkv-cuda."""

from tests.readme import examples_that_hold


def test_the_readme_shows_what_happens():
    assert examples_that_hold("packages/pagedkv-cuda/README.md") > 0

"""What can be refused."""

import builtins

import pytest

import pagedkv_protocols
from pagedkv_protocols import PagedKVError, errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_one_of_ours_and_public(kind):
    assert issubclass(kind, PagedKVError)
    assert getattr(pagedkv_protocols, kind.__name__) is kind


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_what_it_is_in_one_sentence(kind):
    sentence = kind.__doc__
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert ". " not in sentence


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not PagedKVError])
def test_every_kind_of_error_is_a_builtin_one_too(kind):
    ours, builtin = kind.__bases__
    assert ours is PagedKVError
    assert getattr(builtins, builtin.__name__) is builtin
    assert builtin is not Exception


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_carries_its_message(kind):
    assert str(kind("wanted 2 blocks, 1 of 4 are free")) == "wanted 2 blocks, 1 of 4 are free"

"""Capabilities, asked at run time."""

import inspect

import pytest

from pagedkv_protocols import (
    BIDIRECTIONAL,
    BLOCK_READ,
    COMMITTED,
    COMPILED_DECODE,
    DONOR,
    ENCODER,
    FORK,
    BidirectionalCache,
    BlockReadCache,
    Cache,
    CommittedCache,
    CompiledDecodeCache,
    DonorCache,
    EncoderCache,
    ForkableCache,
    supports,
)

PROTOCOLS = {
    COMMITTED: CommittedCache,
    BIDIRECTIONAL: BidirectionalCache,
    ENCODER: EncoderCache,
    BLOCK_READ: BlockReadCache,
    DONOR: DonorCache,
    FORK: ForkableCache,
    COMPILED_DECODE: CompiledDecodeCache,
}


def own_methods(protocol):
    """What ``protocol`` adds to ``Cache``."""
    return {name for name, _ in inspect.getmembers(protocol, inspect.isfunction)} - {
        name for name, _ in inspect.getmembers(Cache, inspect.isfunction)
    }


def cache_with(methods):
    return type("SomeCache", (), {name: lambda self: None for name in methods})()


@pytest.mark.parametrize("capability", PROTOCOLS, ids=str)
def test_a_capability_names_the_methods_that_its_protocol_adds(capability):
    assert set(capability.methods) == own_methods(PROTOCOLS[capability])


@pytest.mark.parametrize("capability", PROTOCOLS, ids=str)
def test_a_cache_with_every_method_has_the_capability_and_no_other(capability):
    cache = cache_with(capability.methods)
    assert [other for other in PROTOCOLS if supports(cache, other)] == [capability]


@pytest.mark.parametrize("capability", PROTOCOLS, ids=str)
def test_a_cache_without_one_of_the_methods_has_it_not(capability):
    for left_out in capability.methods:
        assert not supports(cache_with(set(capability.methods) - {left_out}), capability)


def test_a_method_that_is_set_to_none_is_not_there():
    cache = cache_with(["fork"])
    cache.fork = None
    assert not supports(cache, FORK)


def test_a_capability_shows_its_name_and_methods():
    assert repr(DONOR) == "<capability donor: capture_donor_rows>"

"""What ``pagedkv_cuda`` offers: nothing yet, and it says so."""

import pagedkv_cuda


def test_the_package_imports_without_a_gpu_and_offers_no_name_yet():
    assert pagedkv_cuda.__all__ == []

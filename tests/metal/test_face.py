"""What ``pagedkv_metal`` offers: nothing yet, and it says so."""

import pagedkv_metal


def test_the_package_imports_without_a_gpu_and_offers_no_name_yet():
    assert pagedkv_metal.__all__ == []

"""What ``pagedkv_metal`` offers."""

import pagedkv_metal


def test_the_package_imports_without_a_gpu_and_offers_its_emulator():
    assert {"EmulatorBackend", "EmulatorFault"} <= set(pagedkv_metal.__all__)

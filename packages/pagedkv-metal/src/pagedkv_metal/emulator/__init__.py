"""The kernels of this package executed on a CPU, every access checked."""

from pagedkv_metal.emulator.backend import EmulatorBackend

__all__ = ["EmulatorBackend"]

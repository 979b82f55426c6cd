"""Kernels that read the pages of a key/value cache where they lie, and where to run them.

``EmulatorBackend`` executes a kernel of the Metal language on a CPU.
"""

from pagedkv_metal.emulator import EmulatorBackend
from pagedkv_metal.errors import EmulatorFault

__all__ = ["EmulatorBackend", "EmulatorFault"]

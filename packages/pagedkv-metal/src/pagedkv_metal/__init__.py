"""Kernels that read the pages of a key/value cache where they lie, and where to run them.

``DirectRead`` attends from pages on any kernel backend. ``MetalBackend`` compiles kernels for
Apple's GPUs; ``EmulatorBackend`` executes the same text on a CPU, every access checked.
"""

from pagedkv_metal.backend import MetalBackend
from pagedkv_metal.emulator import EmulatorBackend
from pagedkv_metal.errors import EmulatorFault
from pagedkv_metal.launch import MaskKind, PageShape, can_read_directly, why_not_direct
from pagedkv_metal.read import DirectRead
from pagedkv_metal.rows import Rows

__all__ = [
    "DirectRead",
    "EmulatorBackend",
    "EmulatorFault",
    "MaskKind",
    "MetalBackend",
    "PageShape",
    "Rows",
    "can_read_directly",
    "why_not_direct",
]

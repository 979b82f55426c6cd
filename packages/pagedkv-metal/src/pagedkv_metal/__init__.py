"""Kernels that read the pages of a key/value cache where they lie.

There is no kernel in this package yet, and no public name: both arrive with the direct reads.
"""

__all__: list[str] = []

"""TurboQuant: vectors at 1 to 8 bits a number, near the least distortion there is."""

from pagedkv_formats.turboquant.codec import PagedTurboQuant

__all__ = ["PagedTurboQuant"]

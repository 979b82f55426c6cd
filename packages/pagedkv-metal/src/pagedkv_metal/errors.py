"""What a kernel can do wrong."""

from pagedkv_protocols import PagedKVError


class EmulatorFault(PagedKVError, RuntimeError):
    """A checked run found that a kernel is wrong; the message says what, where and which thread."""

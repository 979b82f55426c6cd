"""What can be refused: every error says what was asked, what is legal, and changed nothing."""


class PagedKVError(Exception):
    """Any refusal of this family of packages; nothing was changed when it is raised."""


class InvalidArgument(PagedKVError, ValueError):
    """An argument has a value that is never legal, such as a block size of 0."""


class InvalidType(PagedKVError, TypeError):
    """An argument is of a type that is never legal, such as ``trim(True)``."""


class ShapeMismatch(PagedKVError, ValueError):
    """An array's rank, batch, head count or dims do not fit the cache or each other."""


class DtypeMismatch(PagedKVError, TypeError):
    """An array's dtype cannot be stored or attended."""


class IllegalFormat(PagedKVError, ValueError):
    """A page format has no such setting, or cannot hold vectors of this dim."""


class Unsupported(PagedKVError, NotImplementedError):
    """What was asked exists, but not on this path, machine or cache."""


class Disposed(PagedKVError, RuntimeError):
    """A cache or read was used after ``dispose()``."""


class NotTrimmable(PagedKVError, RuntimeError):
    """A trim needs positions that were already given back."""


class PoolExhausted(PagedKVError, MemoryError):
    """The pool's limit leaves fewer free blocks than were wanted."""


class BlockNotHeld(PagedKVError, LookupError):
    """A block was released, shared or pinned that nobody holds, or that does not exist."""


class UnsupportedModel(PagedKVError, ValueError):
    """A model file has an architecture, tensor type or tokenizer that is not known here."""


class ModelNotFound(PagedKVError, FileNotFoundError):
    """A model was named that is not on this machine."""

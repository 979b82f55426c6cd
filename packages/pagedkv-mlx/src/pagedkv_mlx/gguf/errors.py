"""What can be refused besides the model itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagedkv_protocols import PagedKVError


class CacheFolderError(PagedKVError, OSError):
    """The folder for converted models cannot be written: rights, space, or a file in its place."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What goes wrong inside is a :class:`CacheFolderError` that names ``path`` and the way out.

    MLX reports a failed write as a ``RuntimeError``.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        advice = "free space or name another folder: cache_folder=... or PAGEDKV_CACHE"
        reason = error.strerror if isinstance(error, OSError) else error
        raise CacheFolderError(f"cannot write {path}: {reason}; {advice}") from error

"""Cache: compiled files by what they were compiled from, shared by any number of processes."""

from __future__ import annotations

import hashlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable


class Cache:
    """Files named by a digest of everything they depend on.

    - A file is complete from the moment it has its name: it is made beside and renamed.
    - Two processes that make the same file at once both succeed.
    """

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        self.folder: pathlib.Path = folder or _users_folder()

    def file(self, parts: Iterable[str], suffix: str, make: Callable[[pathlib.Path], None]) -> str:
        """The path of the file that ``parts`` name, made by ``make`` if it is not there."""
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
        path = self.folder / (digest + suffix)
        if not path.exists():
            self._make(path, make)
        return str(path)

    def _make(self, path: pathlib.Path, make: Callable[[pathlib.Path], None]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as beside:
            made = pathlib.Path(beside, path.name)
            make(made)
            made.replace(path)


def _users_folder() -> pathlib.Path:
    """``$XDG_CACHE_HOME/pagedkv/emulator``, or the same under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME")
    above = pathlib.Path(root) if root else pathlib.Path.home() / ".cache"
    return above / "pagedkv" / "emulator"

"""Report: what the runner says went wrong, code addresses made lines of the kernel."""

from __future__ import annotations

import re
import shutil
import subprocess

from pagedkv_metal.emulator.compiler import DIALECT

_CODE = re.compile(r"<@([0-9a-f]+)>")


def sentence(report: str, library: str) -> str:
    """``kind: what happened``, every place as ``file:line``."""
    kind, _, text = report.partition("\n")
    return f"{kind}: {_CODE.sub(lambda found: _line(found[1], library), text)}"


def _line(offset: str, library: str) -> str:
    """The innermost line that is not the dialect's own; an offset where no tool knows it."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return f"code offset 0x{offset}"
    words = [tool, "-i", "-e", library, f"0x{offset}"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout  # noqa: S603
    lines = [line.partition(" (")[0].rpartition("./")[2] for line in shown.splitlines()]
    ours = [line for line in lines if DIALECT not in line and "?" not in line]
    return ours[0] if ours else f"code offset 0x{offset}"

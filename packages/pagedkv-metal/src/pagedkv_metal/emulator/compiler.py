"""Compiler: the host's C++ compiler, and what it is told."""

from __future__ import annotations

import functools
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import NamedTuple

from pagedkv_metal.errors import EmulatorFault
from pagedkv_protocols import Unsupported

RUNTIME = pathlib.Path(__file__).parent / "runtime"
"""The dialect's headers and the sources of the runner."""

DIALECT = "<metal>"
"""What the folder of the dialect's headers is called in a report."""

RUNNER_FLAGS = ("-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti")
RUNNER_LINKS = ("-rdynamic", "-Wl,--no-as-needed", "-ldl", "-lm")
"""What kernels may call is offered to them: the hooks, and C's mathematics."""

KERNEL_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-ftrivial-auto-var-init=pattern",
    # A stack that overflows meets its guard page by page.
    "-fstack-clash-protection",
    "-fvisibility=hidden",
    # Every load and store calls the runner first, and so does what has no defined result.
    "-fsanitize=thread",
    "-fsanitize=alignment,shift,signed-integer-overflow,integer-divide-by-zero,return",
    "-w",
    "-pipe",
    # Neither the sanitizers' libraries nor any other: the runner offers all that a kernel calls.
    "-shared",
    "-nostdlib",
    "-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset",
)
GCC_FLAGS = ("-fsanitize=bounds", "-fno-gnu-unique", "--param=tsan-instrument-func-entry-exit=0")
CLANG_FLAGS = ("-fsanitize=array-bounds", "-mllvm", "-tsan-instrument-func-entry-exit=0")


class Compiler(NamedTuple):
    """A program that compiles C++17, and what it calls itself."""

    path: str
    version: str

    @property
    def kernel_flags(self) -> tuple[str, ...]:
        """What a kernel is compiled with."""
        return (*KERNEL_FLAGS, *(CLANG_FLAGS if "clang" in self.version else GCC_FLAGS))

    def runner(self, target: pathlib.Path) -> None:
        """Compile the process that runs kernels."""
        sources = map(str, sorted(RUNTIME.glob("*.cpp")))
        words = [*RUNNER_FLAGS, *sources, "-o", str(target), *RUNNER_LINKS]
        self._run(words, target.parent, "the runner")

    def kernel(self, unit: str, name: str, target: pathlib.Path) -> None:
        """Compile a kernel's unit to a shared object; raises ``EmulatorFault`` with its words."""
        maps = [f"-ffile-prefix-map={RUNTIME}={DIALECT}", f"-ffile-prefix-map={target.parent}=."]
        words = [*self.kernel_flags, *maps, "-I", str(RUNTIME), "-x", "c++", "-"]
        self._run([*words, "-o", str(target)], target.parent, f"kernel {name}", unit)

    def _run(self, words: list[str], folder: pathlib.Path, what: str, text: str = "") -> None:
        done = subprocess.run(  # noqa: S603
            [self.path, *words], cwd=folder, input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EmulatorFault(f"{what} does not compile: {_errors(done.stderr)}")


def _errors(printed: str) -> str:
    """The lines that name an error, the first few of them."""
    lines = [line for line in printed.splitlines() if "error:" in line or "undefined" in line]
    return "; ".join(lines[:4]) or printed[:2000]


@functools.cache
def find_compiler() -> Compiler:
    """``$CXX``, ``g++``, ``clang++`` or ``c++``; raises ``Unsupported`` where there is none."""
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        raise Unsupported(
            f"the emulator runs on Linux, x86_64 or aarch64, and this is {sys.platform} on "
            f"{platform.machine()}; use such a machine, or a backend of this one's GPU"
        )
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    found = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if found is None:
        raise Unsupported("no C++ compiler was found in PATH; install g++ or clang++, or set CXX")
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return Compiler(found, shown.stdout)


@functools.cache
def runtime_text() -> str:
    """Every file of the run-time: what it compiles to is a new one when they change."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted(RUNTIME.iterdir()))


@functools.cache
def own_text() -> str:
    """The run-time, and the modules that write kernels for it."""
    modules = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    return runtime_text() + "".join(path.read_text(encoding="utf-8") for path in modules)

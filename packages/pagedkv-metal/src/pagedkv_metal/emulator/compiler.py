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

RUNNER_SOURCES = ("fibers.cpp", "main.cpp", "memory.cpp", "report.cpp", "threads.cpp")

RUNNER_FLAGS = ("-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", "-rdynamic")

KERNEL_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-shared",
    "-nostdlib",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-w",
)


class Compiler(NamedTuple):
    """A program that compiles C++17, and what it calls itself."""

    path: str
    version: str

    def runner(self, target: pathlib.Path) -> None:
        """Compile the process that runs kernels."""
        sources = [str(RUNTIME / name) for name in RUNNER_SOURCES]
        self._run([*RUNNER_FLAGS, *sources, "-o", str(target), "-ldl", "-lm"], "the runner")

    def kernel(self, unit: str, name: str, target: pathlib.Path) -> None:
        """Compile a kernel's unit to a shared object; raises ``EmulatorFault`` with its words."""
        words = [*KERNEL_FLAGS, "-I", str(RUNTIME), "-x", "c++", "-", "-o", str(target)]
        self._run(words, f"kernel {name}", unit)

    def _run(self, words: list[str], what: str, text: str = "") -> None:
        done = subprocess.run(  # noqa: S603
            [self.path, *words], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EmulatorFault(f"{what} does not compile: {done.stderr.strip()[:4000]}")


@functools.cache
def find_compiler() -> Compiler:
    """``$CXX``, ``g++``, ``clang++`` or ``c++``; raises ``Unsupported`` where there is none."""
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        raise Unsupported(
            f"the emulator runs on Linux, x86_64 or aarch64, and this is {sys.platform} on "
            f"{platform.machine()}; use a machine with one of these, or a GPU backend"
        )
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    found = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if found is None:
        raise Unsupported("no C++ compiler was found in PATH; install g++ or clang++, or set CXX")
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return Compiler(found, shown.stdout)

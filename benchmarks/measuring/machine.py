"""The machine and the versions that figures were taken with."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

REPOSITORY = Path(__file__).resolve().parents[2]
VERSIONED = ("mlx", "mlx-lm", "pagedkv-mlx")


def facts() -> dict[str, str]:
    """Device, processor, cores, versions and commit, as a report begins with them."""
    versions = [f"{name} {version(name)}" for name in VERSIONED]
    return {
        "device": f"{mx.default_device()}, {processor()}, {cores()} cores",
        "versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
        "commit": commit(),
    }


def processor() -> str:
    """The processor's model by its own name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit() -> str:
    """The commit that is checked out, and whether packages/ or benchmarks/ differ from it.

    Where the files were copied without their history, ``PAGEDKV_COMMIT`` says it.
    """
    if "PAGEDKV_COMMIT" in os.environ:
        return os.environ["PAGEDKV_COMMIT"]
    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "none"
    watched = ("packages", "benchmarks", ":!benchmarks/results")
    changed = git("status", "--porcelain", "--", *watched)
    return f"{head}, with uncommitted changes" if changed else head


def git(*words: str) -> str:
    """What git says about this repository; nothing where it cannot be asked."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()

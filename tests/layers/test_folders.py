"""Every package folder has what a package needs to be lifted out of here."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = sorted(folder for folder in (ROOT / "packages").iterdir() if folder.is_dir())
FILES = ["CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"]
FACES = sorted((ROOT / "packages").glob("*/src/**/__init__.py"))


def parsed(source: pathlib.Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


def short(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT / "packages"))


def listed(statement: ast.stmt) -> list[str] | None:
    """The names of an ``__all__``, or nothing if the statement is not one."""
    match statement:
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
            return [ast.literal_eval(name) for name in names]
        case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List(elts=[])):
            return []
        case _:
            return None


def isort_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name: what Ruff calls sorted."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_a_package_has_its_files_and_is_typed(folder):
    inside = folder / "src" / folder.name.replace("-", "_")
    assert [name for name in FILES if not (folder / name).is_file()] == []
    assert (inside / "__init__.py").is_file()
    assert (inside / "py.typed").is_file()


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_a_package_carries_the_licence_of_the_repository(folder):
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("source", FACES, ids=short)
def test_an_init_file_is_a_docstring_imports_and_a_sorted_list(source):
    tree = parsed(source)
    *imports, last = tree.body[1:]
    names = listed(last)
    assert ast.get_docstring(tree)
    assert all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in imports)
    assert names is not None
    assert names == sorted(names, key=isort_order)


@pytest.mark.parametrize("source", FACES, ids=short)
def test_an_init_file_lists_what_it_imports(source):
    tree = parsed(source)
    imported = [
        alias.asname or alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module != "__future__"
        for alias in statement.names
    ]
    assert sorted(imported) == sorted(listed(tree.body[-1]) or [])


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_a_changelog_has_a_place_for_what_comes_next(folder):
    lines = (folder / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# Changelog of {folder.name}"
    assert lines[2].startswith("## Unreleased")

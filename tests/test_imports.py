"""Imports have a direction: there are no import cycles, including imports inside functions. Imports
for annotations alone do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import zoo

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT, "zoo"), (ROOT / "plugins", "zoo_components"), (ROOT / "plugins", "zoo_sources")


def modules() -> dict[str, Path]:
    """Return the files of the zoo and of its plugins, by module name."""
    found: dict[str, Path] = {}
    for root, package in SOURCES:
        for path in (root / package).rglob("*.py"):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Return the names that a module imports at runtime: `a.b`, and `a.b.c` for `c` from `a.b`. The
    use of a public name, such as `zoo.load`, imports the module that has it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "zoo":
            yield f"zoo.{zoo._HOMES.get(node.attr)}"
        yield from imported(node)


def graph() -> dict[str, set[str]]:
    """Return the imports of each module. The package `zoo` itself, from which all take the version,
    imports modules only when one of its names is used."""
    files = modules()
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        names = set(imported(ast.parse(path.read_text())))
        homes = names | {one.rpartition(".")[0] for one in names}
        edges[name] = {one for one in homes & files.keys() if one not in ("zoo", name)}
    return edges


def test_no_imports_run_in_a_circle() -> None:
    edges = graph()
    assert len(edges) > 200
    assert "zoo.fill" in edges["zoo.initial"], "imports are found"
    tuple(TopologicalSorter(edges).static_order())  # raises CycleError with the cycle


def test_no_packages_and_root_modules_of_the_core_import_each_other_in_a_circle() -> None:
    """A package and a module at the root of `zoo` are one node each."""

    def node(module: str) -> str:
        return ".".join(module.split(".")[:2])

    edges: dict[str, set[str]] = {}
    for importer, found in graph().items():
        if importer.startswith("zoo."):
            inside = {node(one) for one in found if one.startswith("zoo.")} - {node(importer)}
            edges.setdefault(node(importer), set()).update(inside)
    assert "zoo.weights" in edges["zoo.store"], "imports between packages are found"
    assert "zoo.store" in edges["zoo.loading"], "imports of packages by root modules are found"
    tuple(TopologicalSorter(edges).static_order())


def test_the_core_imports_no_plugin() -> None:
    core = {name: found for name, found in graph().items() if name.split(".")[0] == "zoo"}
    assert not {
        (name, one) for name, found in core.items() for one in found if not one.startswith("zoo.")
    }

"""docs/code.md is a map of the code as it is: its files and functions are there, and a build runs
through them in the order of the page."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import zoo

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "code.md").read_text()
STEPS = re.findall(r"^\|[^|]*\| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, flags=re.MULTILINE)
SECTIONS = re.findall(
    r"^\| [\d.]+ \|[^|]*\| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, flags=re.MULTILINE
)
WORDS = re.findall(r"^\| (`[A-Z][^|]*) \| `([\w/]+\.py)` \|", PAGE, flags=re.MULTILINE)
TINY = {
    "format": 1,
    "name": "tiny",
    "builder": "decoder",
    "vocab": 10,
    "n_layers": 1,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 8,
}


def defined(file: str) -> set[str]:
    """The functions and classes of a file, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            inner = (item for item in node.body if isinstance(item, ast.FunctionDef))
            found |= {node.name, *(f"{node.name}.{method.name}" for method in inner)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def test_what_the_page_names_is_there() -> None:
    paths = re.findall(r"`((?:zoo|plugins|tests)/[\w/.]*)`", PAGE)
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert len(STEPS) == 9
    assert len(WORDS) == 15
    assert len(SECTIONS) == 19
    for file, function in STEPS + SECTIONS:
        assert function in defined(file), file
    for words, file in WORDS:
        assert set(re.findall(r"`(\w+)`", words)) <= defined(file), file


def test_a_build_runs_through_the_steps_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text("\n".join(f"{key} = {value!r}" for key, value in TINY.items()))
    called: dict[tuple[str, str], None] = {}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            path = Path(code.co_filename).relative_to(ROOT)
            called[str(path), code.co_qualname] = None

    sys.setprofile(watch)
    try:
        zoo.build(file)
    finally:
        sys.setprofile(None)
    assert [step for step in called if step in STEPS] == STEPS
    assert len({file for file, _ in STEPS if file.startswith("zoo/")}) == 6


def test_no_part_of_the_core_is_missing() -> None:
    packages = {path.parent.name for path in (ROOT / "zoo").glob("*/__init__.py")}
    assert packages == set(re.findall(r"`zoo/(\w+)/\w+\.py`", PAGE))


def test_a_package_that_lists_its_files_lists_all() -> None:
    listing = 0
    for package in (ROOT / "zoo").glob("*/__init__.py"):
        named = set(
            re.findall(r"\w+\.py\b", ast.get_docstring(ast.parse(package.read_text())) or "")
        )
        files = {path.name for path in package.parent.glob("*.py")} - {"__init__.py"}
        if named:
            listing += 1
            assert (package.parent.name, named) == (package.parent.name, files)
        else:
            assert len(files) < 15, f"zoo/{package.parent.name} has many files and lists none"
    assert listing > 5

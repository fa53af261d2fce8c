"""The cost of starting: commands that build nothing import neither torch nor other unused packages.

Times are measured by `python -m benchmarks startup`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from trials import python

import zoo
from zoo.bundle import write_bundle
from zoo.component import Component
from zoo.provenance.card import CardFields
from zoo.registering.registry_file import SLOT_NAMES
from zoo.slots import SLOTS

# Runs commands, and prints after each which of the modules in the last argument are imported.
RUN = """
import sys
from zoo.cli import run

for command in sys.argv[1:-1]:
    assert run(command.split()) == 0, command
    found = [name for name in sys.argv[-1].split() if name in sys.modules]
    print("imported:", *found, file=sys.stderr)
"""
HEAVY = ("torch", "numpy", "scipy", "transformers", "rich", "typer", "safetensors.torch")
# Modules that only other commands need: TOML with comments, drawings, places, initial weights.
OTHERS = (
    "tomlkit",
    "zoo.drawing",
    "zoo.schema.specs",
    "zoo.reports.diff",
    "tree_sitter",
    "difflib",
    "zoo.fill",
    "zoo.distribution",
)


def imported(folder: Path, *commands: str, among: tuple[str, ...]) -> dict[str, set[str]]:
    """Which of these modules are imported after each of the commands, one after the other in a
    process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *commands, " ".join(among)],
        cwd=folder,
        env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("imported:")]
    return {one: {*line.split()[1:]} for one, line in zip(commands, told, strict=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a spec, a spec that extends it, a weights file, and a bundle."""
    made = tmp_path_factory.mktemp("startup")
    (made / "tiny.toml").write_text(
        'format = 1\nname = "tiny"\nbuilder = "decoder"\nvocab = 9\nn_layers = 2\nd_model = 8\n'
        'n_heads = 2\nd_ff = 8\nposition = "rotary"\nnorm = "rms_norm"\nffn = "glu"\n'
    )
    (made / "more.toml").write_text('extends = "tiny"\nname = "more"\nn_layers = 3\n')
    zoo.save(zoo.build(made / "tiny.toml"), made / "weights")
    registry = zoo.load_registry()
    write_bundle(made / "weights", made / "bundle", registry=registry, card=CardFields())
    return made


def test_commands_that_build_nothing_import_nothing_heavy(folder: Path) -> None:
    commands = (
        "--help",
        "list",
        "list components rot* --json",
        "validate tiny.toml more.toml vaswani-base",
        "validate tiny.toml --json",
        "show vaswani-base",
        "show more.toml --json",
        "show tiny.toml --tensors",
        "show weights",
        "show ffn.glu",
        "lock tiny.toml --output lock",
        "bundle verify bundle",
    )
    found = imported(folder, *commands, among=HEAVY + OTHERS)
    assert found == {command: set() for command in commands}


def test_neither_do_those_that_print_more(folder: Path) -> None:
    commands = (
        "show tiny.toml --resolved",
        "show tiny.toml --svg tiny.svg",
        "schema",
        "schema recipe",
        "families llama*",
    )
    assert imported(folder, *commands, among=HEAVY) == {command: set() for command in commands}


def test_a_list_needs_the_registries_only(folder: Path) -> None:
    """And does not pay for the other commands."""
    among = ("pydantic", "stevedore", "zoo_components", "zoo.slots", "hashlib", "json", "fractions")
    of_others = ("zoo.cli.bundles", "zoo.cli.families", "zoo.cli.store")
    found = imported(folder, "list", among=(*among, *of_others, "zoo.cli.specs"))
    assert found == {"list": {"zoo.cli.specs"}}


def test_what_the_check_looks_for_is_there_to_be_found(folder: Path) -> None:
    """Otherwise the names above could be misspelled."""
    among = (*HEAVY, *OTHERS)
    found = imported(folder, "build tiny.toml -o built", among=among)
    (names,) = found.values()
    assert names == {"torch", "numpy", "zoo.fill", "zoo.distribution", "difflib"}
    python("import " + ", ".join(among))


@pytest.mark.parametrize("code", ["import zoo", "from zoo import ZooError, read_spec"])
def test_the_package_imports_on_use(code: str) -> None:
    among = ["torch", "typer", "click", "rich", "numpy"]
    among += ["pydantic", "stevedore"] if code == "import zoo" else []
    told = f"{code}\nimport sys\nprint(*(name for name in {among} if name in sys.modules))"
    assert python(told) == "\n"


def test_the_slots_have_one_list_of_names() -> None:
    """The registry has their names without importing their classes."""
    assert tuple(SLOTS) == SLOT_NAMES


def test_pydantic_compiles_no_annotation_of_a_shipped_description() -> None:
    """It would compile a string again for each class that inherits it."""
    registry = zoo.load_registry()
    plugins = {registry.plugin(slot, kind) for slot in SLOTS for kind in registry.plugins[slot]}
    classes = {base for plugin in plugins for base in plugin.__mro__ if issubclass(base, Component)}
    assert Component in classes
    strings = {
        f"{cls.__name__}.{name}"
        for cls in classes
        for name, annotation in vars(cls).get("__annotations__", {}).items()
        if isinstance(annotation, str)
    }
    assert strings == set()


def test_an_interrupt_in_the_first_moment_shows_no_traceback() -> None:
    """What the command imports before it handles interrupts is there already; the next import is
    where one comes."""
    code = (
        "import builtins, os, sys; started = set(sys.modules); import zoo.__main__; "
        "assert set(sys.modules) - started <= {'zoo', 'zoo.__main__', '__future__'}; "
        "imported = builtins.__import__\n"
        "def interrupted(name, *more):\n"
        "    if name == 'signal': raise KeyboardInterrupt\n"
        "    return imported(name, *more)\n"
        "builtins.__import__ = interrupted; zoo.__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")

"""docs/plugins.md, followed word by word from an empty folder.

TOML and Python blocks are saved under the file name in the paragraph before them; those without one
are run as scripts. Shell blocks run line by line; one marked `sh fails` must end with status 2. A
text block is the output of the command before it. A diff block is the change of a file.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.registry import read_layers, shipped_registry

ROOT = Path(__file__).parent.parent
AROUND = os.environ.get("PYTHONPATH", "").split(os.pathsep) if "PYTHONPATH" in os.environ else []
FILE = re.compile(r"`([\w./-]+\.(?:toml|py))`")


class Reader:
    """A reader who follows the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        self.path: list[str] = []
        self.ran: list[str] = []

    def follow(self, page: str) -> None:
        parts = re.split(r"^```(\w[\w ]*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
        for before, kind, body in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
            names = FILE.findall(before.strip().split("\n\n")[-1])
            if kind == "sh" or kind == "sh fails":
                for line in body.splitlines():
                    self.run(line, status=2 if kind == "sh fails" else 0)
            elif kind == "text":
                assert self.printed.strip() == body.strip()
            elif kind == "diff":
                self.check_diff(body, self.folder / names[-1])
            elif names:
                (self.folder / names[-1]).write_text(body)
            else:
                (self.folder / "script.py").write_text(body)
                self.run("python script.py", status=0)

    def run(self, line: str, *, status: int) -> None:
        self.ran.append(line)
        command, *words = line.split()
        if command == "cd":
            self.folder = (self.folder / words[0]).resolve()
            return
        if command == "pip":  # stands for the installation, without an index
            self.path.append(str((self.folder / words[-1]).resolve()))
            return
        if command in ("zoo", "python"):
            module = ["-m", "zoo"] if command == "zoo" else []
            line = " ".join([sys.executable, *module, *words])
        done = subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*self.path, *AROUND])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        self.printed = done.stdout
        assert done.returncode == status, f"{line}\n{done.stdout}"
        assert "Traceback" not in done.stdout
        if words == ["init", "my-zoo"]:
            self.fresh = files(self.folder / "my-zoo")

    def check_diff(self, body: str, path: Path) -> None:
        """Check that the block is the change since `zoo init`, with one new file in `plugins`."""
        now = files(self.folder)
        changed = [name for name, text in self.fresh.items() if now[name] != text]
        assert changed == [path.name]
        lines = [text.splitlines() for text in (self.fresh[path.name], path.read_text())]
        difference = list(difflib.unified_diff(*lines, n=2, lineterm=""))[3:]
        assert difference == body.splitlines()
        new = {name for name in now if name.startswith("plugins/")} - self.fresh.keys()
        assert new == {"plugins/gated_bottleneck.py"}


def files(folder: Path) -> dict[str, str]:
    """Return the text files of a folder."""
    found = (p for p in folder.rglob("*") if p.suffix in (".py", ".toml"))
    return {str(path.relative_to(folder)): path.read_text() for path in found}


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    reader = Reader(tmp_path)
    reader.follow(page)
    stated = re.findall(r"^(?:zoo|python|pip|cd|cp|mkdir|touch) .*$", page, flags=re.MULTILINE)
    assert [line for line in reader.ran if line != "python script.py"] == stated
    assert files(tmp_path / "elsewhere") == {
        "registry.toml": 'format = 1\ninclude = ["my_components"]\n'
    }


def test_the_component_is_not_in_the_catalogue() -> None:
    shipped = read_layers([shipped_registry()])
    assert "mlp" in shipped.plugins["ffn"]
    assert "gated_bottleneck" not in shipped.plugins["ffn"]


def test_type_checkers_read_the_annotations_of_the_zoo() -> None:
    """Without these files (PEP 561), all imports from an installed zoo would be `Any`."""
    for package in ("zoo", "plugins/zoo_components", "plugins/zoo_sources"):
        assert (ROOT / package / "py.typed").is_file()

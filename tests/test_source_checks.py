"""`zoo plugin check` of sources: the template keeps all promises, and each broken one is told."""

from __future__ import annotations

import runpy
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trials import Refused

from zoo.cli import run
from zoo.plugin_kit.check import check_plugins
from zoo.plugin_kit.project import new_plugin
from zoo.plugin_kit.report import Report
from zoo.registry import read_layers, shipped_registry
from zoo.testing import check_plugin

OF_THE_CLASS = ["imports", "schema", "addresses"]
OF_A_PLACE = ["pinned", "files", "read", "resumed", "missing"]
WEIGHTS = bytes(range(256)) * 20
PLACE = {"path": "model.zip"}


@pytest.fixture
def place(project: Path) -> Path:
    """A project with an archive to read."""
    (project / "registry.toml").write_text("format = 1\n")
    with zipfile.ZipFile(project / "model.zip", "w") as archive:
        archive.writestr("model.safetensors", WEIGHTS)
        archive.writestr("README.md", "A model.")
    return project


def report(
    folder: Path, changes: Mapping[str, str] = {}, values: Mapping[str, Any] | None = PLACE
) -> Report:
    """Check the template of a source after these changes of its text."""
    path, _ = new_plugin("source", "mine", folder / "registry.toml")
    text = path.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    registry = read_layers([shipped_registry(), folder / "registry.toml"])
    [found] = check_plugins(["source.mine"], registry, values=values)
    return found


def test_the_template_keeps_all_promises(place: Path) -> None:
    found = report(place)
    assert found.ok, found.text()
    assert [check.name for check in found.checks] == OF_THE_CLASS + OF_A_PLACE
    assert found.text().endswith("missing)")
    test = runpy.run_path("tests/test_mine.py")["test_it_passes_all_checks"]
    (place / "of_test").mkdir()
    test(place / "of_test")


def test_without_a_place_the_class_is_checked(place: Path) -> None:
    found = report(place, values=None)
    assert found.ok
    assert [check.name for check in found.checks] == OF_THE_CLASS
    assert found.text().endswith("`--values` with the keys of a place that can be read checks more")


NOT_THERE = {
    "            if path not in archive.namelist():\n"
    '                raise SourceError(f"there is no file {path!r} in {self.path}")\n': "",
    "archive.open(path)": "archive.open(archive.namelist()[0])",
}
CONNECTS = {
    "        with self._opened(access) as archive:\n            return": (
        "        import contextlib, socket\n"
        "        with contextlib.suppress(OSError):\n"
        '            socket.create_connection(("127.0.0.1", 9), 1)\n'
        "        with self._opened(access) as archive:\n            return"
    )
}
AT = "    def files("
BROKEN: dict[str, tuple[str, dict[str, str], str]] = {
    "torch": ("imports", {"import zlib": "import zlib\nimport torch"}, "imports torch"),
    "no files": ("imports", {"def files(": "def sizes("}, "it does not define `files`"),
    "no at": (
        "imports",
        {AT: "    def write(self, folder, paths, access):\n        return self\n\n" + AT},
        "it defines `write`, and no `at`",
    ),
    "kind": ("schema", {'Literal["mine"]': 'Literal["other"]'}, "it is registered by, `mine`"),
    "any kind": ("schema", {'kind: Literal["mine"]': "kind: str"}, 'write `kind: Literal["mine"]`'),
    "type": (
        "schema",
        {'path: str\n    """': 'path: str\n    other: type(zlib) | None = None\n    """'},
        "a field has a type that TOML does not have",
    ),
    "all addresses": (
        "addresses",
        {
            AT: "    @classmethod\n    def at(cls, address):\n        "
            'return cls(kind="mine", path=address)\n\n' + AT
        },
        "`at` takes addresses of other sources: `folder/model`, `hf://owner/name`",
    ),
    "an address": (
        "addresses",
        {
            AT: "    @classmethod\n    def at(cls, address):\n        "
            'return cls(kind="mine", path=address.split("://")[1])\n\n' + AT
        },
        "IndexError",
    ),
    "pinned anew": (
        "pinned",
        {
            AT: "    def pinned(self, access):\n        "
            'return self.model_copy(update={"path": f"../{access.folder.name}/{self.path}"})\n\n'
            + AT
        },
        "what is pinned is pinned to something else again",
    ),
    "not of access": (
        "files",
        {"ZipFile(access.folder / self.path)": "ZipFile(self.path)"},
        "No such file or directory: `model.zip`",
    ),
    "a size": ("files", {"one.file_size for": "str(one.file_size) for"}, "sizes in bytes by paths"),
    "a path": (
        "files",
        {"{one.filename:": '{f"/{one.filename}":'},
        "the path `/model.safetensors`",
    ),
    "connects": ("files", CONNECTS, "it connects to `127.0.0.1`, and `remote` is False"),
    "short": ("read", {"yield chunk": "yield chunk[1:]"}, "`read` yields 5,119 from byte 0 on"),
    "text": ("read", {"yield chunk": "yield str(chunk)"}, "a chunk is of str, and not of bytes"),
    "no stream": ("read", {"Stream(self._chunks(file), start)": "file"}, "no `zoo.source.Stream`"),
    "from 0": ("resumed", {"file.seek(start)": ""}, "from byte 2,560 on, `model.safetensors` has"),
    "too late": (
        "resumed",
        {"Stream(self._chunks(file), start)": "Stream(self._chunks(file), 2 * start)"},
        "asked for byte 2,560, it begins at byte 5,120",
    ),
    "another file": ("missing", NOT_THERE, "reads `no-such-file.safetensors`, which `files` does"),
    "a key error": (
        "missing",
        {
            "            if path not in archive.namelist():\n"
            '                raise SourceError(f"there is no file {path!r} in {self.path}")\n': ""
        },
        "KeyError",
    ),
}
"""Changes of the template, the check that finds each, and what it says."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_told(name: str, place: Path) -> None:
    check, changes, told = BROKEN[name]
    found = report(place, changes)
    failed = [one for one in found.checks if one.ok is False]
    assert [one.name for one in failed] == [check], found.text()
    assert told in failed[0].reason


def test_each_check_fails_on_something() -> None:
    assert {check for check, _, _ in BROKEN.values()} == {*OF_THE_CLASS, *OF_A_PLACE}


def test_offline_nothing_elsewhere_is_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_OFFLINE", "1")
    assert report(place).ok
    with pytest.raises(AssertionError, match="pinned      FAILED  ZOO_OFFLINE forbids to reach it"):
        check_plugin("source", "https", values={"url": "https://127.0.0.1:1/model"})


def test_wrong_keys_of_a_place_are_told(place: Path) -> None:
    told = report(place, values={"paths": "model.zip"}).text()
    assert "the key `path` is missing; unknown key `paths`\n" in told
    assert "help: did you mean `path`?" in told


def test_a_source_that_begins_anew_is_right(place: Path) -> None:
    """It need not be able to read from the middle."""
    changes = {"file.seek(start)": "", "self._chunks(file), start": "self._chunks(file)"}
    assert report(place, changes).ok


def test_check_plugin_takes_a_source(place: Path) -> None:
    folder = {"path": "."}
    (place / "model.safetensors").write_bytes(WEIGHTS)
    check_plugin("source", "local", values=folder)
    with pytest.raises(AssertionError, match="files       FAILED"):
        check_plugin("source", "local", values={"path": "absent"})


def test_sources_are_checked_by_name(
    place: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    assert run(["plugin", "check", "source.lo*"]) == 0
    assert capsys.readouterr().out.startswith("source.local: ok (imports, schema, addresses);")
    assert "did you mean `source.local`?" in refused("plugin", "check", "source.locl")

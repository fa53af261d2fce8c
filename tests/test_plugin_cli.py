"""`zoo init`, `zoo plugin new` and `zoo plugin check` on the command line."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from broken_plugins import BROKEN
from trials import Command, Refused, on_terminal, process, python

from zoo.errors import ZooError
from zoo.plugin_kit.project import new_plugin

pytestmark = pytest.mark.usefixtures("kit_processes")

PROJECT = ["my_model.toml", "plugins/my_ffn.py", "registry.toml", "tests/test_my_ffn.py"]
Zoo = Callable[..., tuple[int, str, str]]
LINE = 'mine = "plugins/mine.py:Mine"'

PRINTS = '''
from zoo.slots import FeedForward


print("imported")


class Prints(FeedForward):
    """x."""

    def build(self):
        from torch import nn

        print("built")

        class Module(nn.Module):
            def forward(self, x):
                return x

        return Module()
'''


@pytest.fixture
def zoo(command: Command, monkeypatch: pytest.MonkeyPatch) -> Zoo:
    """Return a function that runs a command in a folder, as the fixture `command` does."""

    def call(*arguments: str, cwd: Path) -> tuple[int, str, str]:
        monkeypatch.chdir(cwd)
        return command(*arguments)

    return call


@pytest.fixture
def refused(zoo: Zoo) -> Refused:
    """Return a function that returns the message of a command that must fail with the status of a
    user's mistake and change no file."""

    def check(*arguments: str, cwd: Path) -> str:
        before = contents(cwd)
        status, out, err = zoo(*arguments, cwd=cwd)
        assert status == 2, out + err
        assert contents(cwd) == before
        return err

    return check


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): path.read_bytes().decode() for path in files}


def project(folder: Path, text: str = "format = 1\n\n[ffn]\n") -> Path:
    (folder / "registry.toml").write_bytes(text.encode())
    return folder


# --- init ---------------------------------------------------------------------------------------


def test_init_makes_a_project_that_works(tmp_path: Path, zoo: Zoo) -> None:
    folder = tmp_path / "new" / "project"
    assert zoo("init", str(folder), cwd=tmp_path)[0] == 0
    assert sorted(contents(folder)) == PROJECT
    assert zoo("validate", "my_model.toml", cwd=folder)[0] == 0
    shown = json.loads(zoo("build", "my-model", "--device", "meta", "--json", cwd=folder)[1])
    # embedding 1000 * 64; per layer 4 * (64 * 64 + 64), 2 * 64 * 256 + 256 + 64 and two norms;
    # final norm; head
    layer = 4 * (64 * 64 + 64) + (2 * 64 * 256 + 256 + 64) + 2 * 128
    assert shown["parameters"] == 1000 * 64 + 2 * layer + 128 + 64 * 1000


@pytest.mark.parametrize("name", PROJECT)
def test_init_overwrites_nothing(name: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    message = refused("init", cwd=tmp_path)
    assert f"`{name}` is there already" in message


def test_init_in_a_folder_of_a_name_that_is_too_long(tmp_path: Path, refused: Refused) -> None:
    told = refused("init", "x" * 300, cwd=tmp_path)
    assert "error: cannot write" in told
    assert "File name too long" in told


def test_init_where_nothing_can_be_written(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write `file/registry.toml`" in refused("init", "file", cwd=tmp_path)


def test_init_leaves_nothing_where_its_last_file_cannot_be_written(
    tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "tests").write_text("a file in the place of the folder")
    assert "cannot write `tests/test_my_ffn.py`" in refused("init", cwd=tmp_path)


# --- plugin new ---------------------------------------------------------------------------------

KEPT = {
    "comments": (
        "# one\nformat = 1\n\n[ffn] # two\n# three\na = 'x.py:A' # four\n",
        "\n# five\n[norm]\nb = 'x.py:B'\n",
    ),
    "a table for a line": (
        "format = 1\n[ffn]\na = 'x.py:A'\n\nb = { target = 'x.py:B' }\n",
        "\n\n",
    ),
    "no lines": ("format = 1\n[ffn]\n", "[norm]\nb = 'x.py:B'\n"),
    "no table": ("format = 1\n\n[norm]\nb = 'x.py:B'\n", ""),
    "no end": ("format = 1\n[ffn]\na = 'x.py:A'", ""),
    "Windows": ("format = 1\r\n[ffn]\r\na = 'x.py:A'\r\n", "\r\n# five\r\n"),
}
"""The text of a registry before the new line and after it."""
ADDED = {"no table": f"\n[ffn]\n{LINE}\n", "no end": f"\n{LINE}", "Windows": f"{LINE}\r\n"}


@pytest.mark.parametrize("name", KEPT)
def test_new_adds_a_line_and_keeps_the_others(name: str, tmp_path: Path, zoo: Zoo) -> None:
    before, after = KEPT[name]
    project(tmp_path, before + after)
    assert zoo("plugin", "new", "ffn", "mine", cwd=tmp_path)[0] == 0
    found = contents(tmp_path)
    assert found["registry.toml"] == before + ADDED.get(name, f"{LINE}\n") + after
    assert sorted(found) == ["plugins/mine.py", "registry.toml", "tests/test_mine.py"]


@pytest.mark.parametrize(
    "text", ["format = 1\nffn = { a = 'x.py:A' }\n", "format = 1\nffn.a = 'x.py:A'\n"]
)
def test_new_leaves_a_table_alone_that_has_no_lines(
    text: str, tmp_path: Path, refused: Refused
) -> None:
    message = refused("plugin", "new", "ffn", "mine", cwd=project(tmp_path, text))
    assert "registry.toml:2:1" in message
    assert f"add it there: {LINE}" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fnn", "mine"), "did you mean `ffn`"),
        (("ffn", "Mine"), "names are made of lower-case letters"),
        (("ffn", "../mine"), "`../mine` is not a valid name"),
        (("ffn", "mlp"), ":1: error: ffn `mlp` is registered already"),
        (("ffn", "there"), "`plugins/there.py` is there already"),
    ],
)
def test_new_refuses(
    arguments: tuple[str, str], message: str, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "there.py").write_text("mine")
    assert message in refused("plugin", "new", *arguments, cwd=project(tmp_path))


def test_new_leaves_nothing_where_the_registry_cannot_be_written(tmp_path: Path) -> None:
    """The disk has room for the new files and none for the registry."""
    registry = project(tmp_path, f"format = 1\n# {'x' * 100_000}\n[ffn]\n") / "registry.toml"
    before = contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(ZooError, match="File too large"):
            new_plugin("ffn", "mine", registry)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path) == before


def test_new_tells_of_a_broken_registry(tmp_path: Path, refused: Refused) -> None:
    text = "format = 1\n[ffn]\na = 3\n"
    assert "registry.toml:3:5" in refused(
        "plugin", "new", "ffn", "mine", cwd=project(tmp_path, text)
    )


def test_new_needs_a_registry(tmp_path: Path, refused: Refused) -> None:
    assert "`zoo init` makes a project" in refused("plugin", "new", "ffn", "mine", cwd=tmp_path)


def test_new_uses_the_registry_above_or_the_one_named(tmp_path: Path, zoo: Zoo) -> None:
    above, named = tmp_path / "above", tmp_path / "named"
    inner = above / "inner"
    inner.mkdir(parents=True)
    named.mkdir()
    project(above)
    project(named)
    assert zoo("plugin", "new", "ffn", "one", cwd=inner)[0] == 0
    registry = str(named / "registry.toml")
    assert zoo("--registry", registry, "plugin", "new", "ffn", "two", cwd=inner)[0] == 0
    assert "one" in contents(above)["registry.toml"]
    assert "two" in contents(named)["registry.toml"]
    assert contents(inner) == {}


@pytest.mark.parametrize("name", ["layout", "module", "feed_forward", "true", "false", "size"])
def test_a_name_that_the_template_uses_gets_another_class(
    name: str, tmp_path: Path, zoo: Zoo
) -> None:
    project(tmp_path)
    assert zoo("plugin", "new", "ffn", name, cwd=tmp_path)[0] == 0
    source = (tmp_path / "plugins" / f"{name}.py").read_text()
    camel = "".join(part.capitalize() for part in name.split("_"))
    assert f"class {camel}Ffn(FeedForward):" in source
    compile(source, name, "exec")


# --- plugin check -------------------------------------------------------------------------------


def test_check_says_what_holds(tmp_path: Path) -> None:
    done = process("plugin", "check", "norm.rms_norm", "init.normal", cwd=project(tmp_path))
    assert done.returncode == 0
    assert done.stdout == (
        "norm.rms_norm: ok (imports, schema, example, meta, layout, interface, determinism, "
        "rows, saving, modes, gradients, precision, devices, compiles, tokens)\n"
        "init.normal: ok (imports, schema, example, meta, layout, determinism, saving)\n"
    )
    assert done.stderr == ""


def test_check_takes_patterns(tmp_path: Path, zoo: Zoo) -> None:
    text = 'format = 1\n[ffn]\nmine = "x.py:A"\n[norm]\nmine = "x.py:A"\nmine_too = "x.py:A"\n'
    project(tmp_path, text)

    def checked(*patterns: str) -> list[str]:
        found = json.loads(zoo("plugin", "check", *patterns, "--json", cwd=tmp_path)[1])
        return [report["plugin"] for report in found]

    assert checked("*.mine*") == ["ffn.mine", "norm.mine", "norm.mine_too"]
    assert checked("norm.m*", "mine") == ["norm.mine", "norm.mine_too", "ffn.mine"]
    listed = json.loads(zoo("list", "components", "norm.m*", "--json", cwd=tmp_path)[1])
    assert [row["name"] for row in listed["components"]] == ["mine", "mine_too"]


def test_check_takes_values(tmp_path: Path, zoo: Zoo, refused: Refused) -> None:
    check = ("plugin", "check", "init.normal", "--values")
    assert zoo(*check, "{ std = 0.5 }", cwd=project(tmp_path))[0] == 0
    status, out, _ = zoo(*check, "{ std = -0.5 }", cwd=tmp_path)
    assert status == 2
    assert "    example     FAILED  `std` must be greater than 0" in out
    for text in ("std = 0.5", "0.5"):
        assert "is no table of TOML" in refused(*check, text, cwd=tmp_path)
    told = refused(*check, "{ std = 0.5 }", "init.torch", cwd=tmp_path)
    assert "--values are those of one plugin, not of 2" in told


def test_check_says_what_fails_and_why(tmp_path: Path, zoo: Zoo) -> None:
    project(tmp_path)
    zoo("plugin", "new", "ffn", "half", cwd=tmp_path)
    path = tmp_path / "plugins" / "half.py"
    text = path.read_text()
    for old, new in BROKEN["half"].change.items():
        text = text.replace(old, new)
    path.write_text(text)
    status, out, _ = zoo("plugin", "check", "norm.none", "ffn.half", cwd=tmp_path)
    assert status == 2
    lines = out.splitlines()
    assert lines[0].startswith("norm.none: ok")
    assert lines[1] == "ffn.half: FAILED (plugins/half.py:Half)"
    assert "    imports     ok" in lines
    assert any(line.startswith("    precision   FAILED  a model in float64") for line in lines)
    assert lines[-1] == "1 of 2 plugins failed: ffn.half"

    status, out, _ = zoo("plugin", "check", "ffn.half", "--json", cwd=tmp_path)
    assert status == 2
    [report] = json.loads(out)
    assert (report["ok"], report["plugin"]) == (False, "ffn.half")
    failed = {c["name"]: c["reason"] for c in report["checks"] if not c["ok"]}
    assert list(failed) == ["precision"]
    assert "float64" in failed["precision"]


def test_an_interrupt_leaves_the_reports_that_are_complete(tmp_path: Path, zoo: Zoo) -> None:
    project(tmp_path, 'format = 1\n[ffn]\nprints = "prints.py:Prints"\n')
    (tmp_path / "prints.py").write_text(
        PRINTS.replace('print("built")', "raise KeyboardInterrupt").replace('print("imported")', "")
    )
    done = process("plugin", "check", "source.local", "ffn.prints", cwd=tmp_path)
    assert done.returncode not in (0, 2)
    assert done.stdout.startswith("source.local: ok (imports, ")
    assert done.stdout.count("\n") == 1
    status, out, _ = zoo("plugin", "check", "source.local", "ffn.prints", "--json", cwd=tmp_path)
    assert status not in (0, 2)
    assert out == ""  # one document, or none


def test_what_a_plugin_prints_leaves_the_report_alone(tmp_path: Path, zoo: Zoo) -> None:
    project(tmp_path, 'format = 1\n[ffn]\nprints = "prints.py:Prints"\n')
    (tmp_path / "prints.py").write_text(PRINTS)
    _, out, err = zoo("plugin", "check", "ffn.prints", "--json", cwd=tmp_path)
    [report] = json.loads(out)
    failed = {c["name"]: c["reason"] for c in report["checks"] if c["ok"] is False}
    assert list(failed) == ["meta"]
    assert failed["meta"].startswith("it prints, into the output of commands")
    assert "built" in err


def test_what_a_plugin_prints_on_import_leaves_the_output_of_commands_alone(tmp_path: Path) -> None:
    project(tmp_path, 'format = 1\n[ffn]\nprints = "prints.py:Prints"\n')
    (tmp_path / "prints.py").write_text(PRINTS)
    spec = 'format = 1\nname = "a"\nbuilder = "decoder"\nvocab = 5\nn_layers = 1\n'
    (tmp_path / "a.toml").write_text(f'{spec}d_model = 4\nn_heads = 1\nffn = "prints"\n')
    done = process("show", "a.toml", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["name"] == "a"
    assert done.stderr == "imported\n"


def test_progress_is_shown_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, on_screen = on_terminal("plugin", "check", "source.local")
    assert b"checking" in on_screen
    assert out.startswith("source.local: ok (imports")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ffn.mpl", "`ffn.mlp`"),
        ("mpl", "`mlp`"),
        ("fnn.mlp", "`ffn.mlp`"),
    ],
)
def test_check_of_an_unknown_name(name: str, meant: str, tmp_path: Path, refused: Refused) -> None:
    told = refused("plugin", "check", name, cwd=tmp_path)
    assert f"unknown plugin `{name}`" in told
    assert f"did you mean {meant}" in told


def test_other_commands_do_not_load_the_kit(tmp_path: Path) -> None:
    script = (
        "import sys, zoo.cli.plugins\n"
        "kit = ('torch', 'zoo.plugin_kit.torch_free', 'zoo.plugin_kit')\n"
        "print([name for name in sys.modules if name.startswith(kit)])"
    )
    assert python(script) == "[]\n"

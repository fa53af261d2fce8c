"""Registries: their layers, what they include, and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_models import SPEC
from trials import write

import zoo
from zoo.cli import run
from zoo.document import Document
from zoo.registering import registry_file
from zoo.registry import find_registries, read_layers, shipped_registry

# --- layers -------------------------------------------------------------------------------------


@pytest.fixture
def layers(project: Path, config: Path) -> Callable[..., Path]:
    """Return a function that writes the registry of a layer, with a norm of its own name and the
    given lines."""
    homes = {
        "user": config / "zoo" / "registry.toml",
        "near": project / "registry.toml",
        "extra": project / "deeper" / "extra.toml",
    }

    def layer(name: str, *lines: str) -> Path:
        text = "\n".join(["format = 1", "[norm]", f'of_{name} = "{name}.py:Norm"', *lines])
        return write(homes[name], text + "\n")

    return layer


def test_the_layers_are_merged_first_to_last(
    layers: Callable[..., Path], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, near, extra = (layers(name) for name in ("user", "near", "extra"))
    assert find_registries(extra) == [shipped_registry(), user, near, extra]
    norms = zoo.load_registry(str(extra)).plugins["norm"]
    folders = {f"of_{path}": norms[f"of_{path}"].folder for path in ("user", "near", "extra")}
    assert folders == {
        "of_user": user.parent,
        "of_near": near.parent,
        "of_extra": extra.parent,
    }
    assert norms["layer_norm"].folder == shipped_registry().parent
    # Only the nearest at or above the working directory.
    below = project / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_registries() == [shipped_registry(), user, near]
    nearer = write(project / "a" / "registry.toml", "format = 1\n")
    assert find_registries() == [shipped_registry(), user, nearer]


def test_a_prompt_of_python_shows_a_registry_in_a_line(layers: Callable[..., Path]) -> None:
    registry = read_layers([layers("near", "[models]", 'mine = "mine.toml"')])
    assert repr(registry) == "<Registry of 1 component and 1 spec>"


def test_the_registry_of_another_copy_of_the_zoo_is_no_layer(
    project: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every name that both ship would be registered twice, for any command run there."""
    write(project / "registry.toml", shipped_registry().read_text() + '\nnewer = "newer.toml"\n')
    assert run(["list"]) == 2  # for a project that only repeats the names
    assert "`residual` is registered twice" in capsys.readouterr().err
    write(project / "zoo" / "registry.py", "")
    assert run(["list"]) == 0
    assert find_registries() == [shipped_registry()]
    # With `--registry`, it is a layer.
    assert run(["--registry", "registry.toml", "list"]) == 2


def test_a_path_in_the_place_of_a_registry_is_refused() -> None:
    path: Any = "registry.toml"
    calls: list[Callable[[], object]] = [
        lambda: zoo.build({"format": 1, "name": "m"}, registry=path),
        lambda: zoo.load("m", registry=path),
        lambda: zoo.list_models(registry=path),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"`zoo\.load_registry\(path\)` returns, not a str"):
            call()
    wrong: Any = 5
    with pytest.raises(TypeError, match="a registry is the path of its file, not int"):
        zoo.load_registry(wrong)


def test_the_command_line_takes_a_further_registry(
    layers: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    extra = layers("extra")
    assert run(["list", "components", "of_*"]) == 2
    assert "no component matches `of_*`" in capsys.readouterr().err
    assert run(["--registry", str(extra), "list", "components", "of_*"]) == 0
    assert "of_extra" in capsys.readouterr().out


def test_a_registry_that_is_two_layers_counts_once(project: Path) -> None:
    near = write(project / "registry.toml", "format = 1\n[norm]\nmine = 'm.py:M'\n")
    assert find_registries(near) == [shipped_registry(), near]
    zoo.load_registry(near)


def test_a_registry_is_parsed_once_and_again_if_it_is_another(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    parse = registry_file.parse

    def counted(text: str, name: str) -> Document:
        parsed.append(text)
        return parse(text, name)

    monkeypatch.setattr(registry_file, "parse", counted)
    texts = [f'format = 1\n[ffn]\n{name} = "own.py:Own"\n' for name in ("one", "two")]
    for text, name in zip(texts, ("one", "two"), strict=True):
        (project / "registry.toml").write_text(text)
        for _ in range(3):
            assert {"one", "two"} & zoo.load_registry().plugins["ffn"].keys() == {name}
    assert [text for text in parsed if text in texts] == texts


@pytest.mark.parametrize("later", ["near", "extra"])
@pytest.mark.parametrize(
    ("lines", "message", "help_"),
    [
        (
            ['twice = "b.py:B"'],
            "norm `twice` is registered twice",
            'twice = { target = "b.py:B", override = true }',
        ),
        (
            ["[models]", 'twice = "b.toml"'],
            "model `twice` is registered twice",
            'twice = { spec = "b.toml", override = true }',
        ),
    ],
)
def test_a_name_in_two_layers_names_both_places(
    later: str, lines: list[str], message: str, help_: str, layers: Callable[..., Path]
) -> None:
    """And the change that the message proposes solves it."""
    first, second = layers("user", *lines), layers(later, *lines)
    with pytest.raises(zoo.RegistryError) as caught:
        zoo.load_registry(second)
    at = f"{3 + len(lines)}:1"
    shown = {"near": "registry.toml", "extra": "deeper/extra.toml"}[later]
    quote = f"    {3 + len(lines)} | {lines[-1]}\n      | ^^^^^\n"
    assert str(caught.value) == (
        f"{shown}:{at}: error: {message}\n{quote}"
        f"{first}:{at}: note: first registered here\n{quote}"
        f"      = help: rename one, or say that this one goes over the first: {help_}"
    )
    layers(later, *lines[:-1], help_)
    registry = zoo.load_registry(second)
    entries = registry.models if "[models]" in lines else registry.plugins["norm"]
    assert entries["twice"].folder == second.parent


def test_a_default_is_changed_by_override_alone(project: Path) -> None:
    write(project / "registry.toml", 'format = 1\n[defaults]\nffn = "glu"\n')
    with pytest.raises(zoo.RegistryError) as caught:
        zoo.load_registry()
    (problem,) = caught.value.problems
    assert problem.message == "the default of `ffn` is registered twice"
    assert [place.file for _, place in problem.related] == [str(shipped_registry())]
    line = 'ffn = { kind = "glu", override = true }'
    assert problem.help is not None
    assert problem.help.endswith(line)
    write(project / "registry.toml", f"format = 1\n[defaults]\n{line}\n")
    assert zoo.read_spec(SPEC).to_dict()["decoder"]["block"]["ffn"]["kind"] == "glu"


def test_a_name_twice_in_one_registry(project: Path) -> None:
    write(project / "registry.toml", 'format = 1\n[norm]\na = "a.py:A"\na = "b.py:B"\n')
    with pytest.raises(zoo.RegistryError) as caught:
        zoo.load_registry()
    assert str(caught.value) == (
        "registry.toml:4:1: error: `norm.a` is written twice\n"
        '    4 | a = "b.py:B"\n'
        "      | ^\n"
        "registry.toml:3:1: note: first written here\n"
        '    3 | a = "a.py:A"\n'
        "      | ^\n"
        "      = help: keep one of the two"
    )


def test_every_mistake_of_a_registry_is_told_in_one_pass(project: Path) -> None:
    write(
        project / "registry.toml",
        """\
        formt = 1
        norms = 3
        [ffn]
        Mine = "a.py:A"
        mine = { targt = "a.py:A", override = 1 }
        other = 3
        above = "../a.py:A"
        no_class = "a.py"
        [defaults]
        nrm = "x"
        attention = 3
        [models]
        "a b" = "x.toml"
        abs = "/etc/x.toml"
        [norm]
        q = nan
        """,
    )
    with pytest.raises(zoo.RegistryError) as caught:
        zoo.load_registry()
    target = 'needs a target: "package.module:Class", '
    target += 'or "plugins/file.py:Class" below its own folder'
    spec_file = "needs the name of a spec file in the registry's folder or below"
    assert [
        (p.place.line, p.place.column, p.message) for p in caught.value.problems if p.place
    ] == [
        (1, 1, "a registry states `format = 1`"),
        (1, 1, "unknown key `formt`"),
        (2, 1, "unknown key `norms`"),
        (4, 1, "`Mine` is not a valid name in a registry"),
        (5, 8, f"ffn `mine` {target}"),
        (5, 10, "unknown key `targt`"),
        (5, 39, "`override` must be `true` or `false`"),
        (6, 9, f"ffn `other` {target}"),
        (7, 9, f"ffn `above` {target}"),
        (8, 12, f"ffn `no_class` {target}"),
        (10, 1, "there is no slot `nrm`"),
        (11, 13, "the default of `attention` must be the name of a plugin"),
        (13, 1, "`a b` is not a valid name in a registry"),
        (14, 7, f"model `abs` {spec_file}"),
        (16, 5, f"norm `q` {target}"),
    ]


@pytest.mark.parametrize("key", ["families", "catalog"])
@pytest.mark.parametrize("name", ["missing", "a" * 300])
def test_a_folder_that_is_not_there(key: str, name: str, project: Path) -> None:
    write(project / "registry.toml", f'format = 1\n{key} = "{name}"\n')
    with pytest.raises(zoo.RegistryError, match=f"there is no folder `{name[:20]}") as caught:
        zoo.load_registry()
    (problem,) = caught.value.problems
    assert problem.place is not None
    assert (problem.place.line, problem.place.column) == (2, len(key) + 4)


# --- include ------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with a registry, whose import raises an error."""
    site = tmp_path / "site"
    folder = site / "zoo_extras"
    write(folder / "__init__.py", "raise RuntimeError('imported')\n")
    write(
        folder / "registry.toml",
        """\
        format = 1
        [norm]
        packaged = "norms.py:Packaged"
        [models]
        packaged = "packaged.toml"
        """,
    )
    write(
        folder / "norms.py",
        "from zoo.slots import Norm\nclass Packaged(Norm):\n    'A norm.'\n",
    )
    write(folder / "packaged.toml", SPEC + 'norm = "packaged"\n')
    # A second package with standard entry points, which must be ignored.
    write(site / "other.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    write(site / "other.dist-info" / "entry_points.txt", "[norm]\nother = zoo_extras:Nothing\n")
    monkeypatch.syspath_prepend(str(site))
    return folder


def test_an_installed_package_takes_no_part_unless_it_is_included(
    package: Path, project: Path
) -> None:
    assert not {"packaged", "other"} & set(zoo.load_registry().plugins["norm"])
    for include in ('"zoo_extras"', '["zoo_extras"]', '["zoo_extras", "zoo_extras"]'):
        write(project / "registry.toml", f"format = 1\ninclude = {include}\n")
        registry = zoo.load_registry()
        assert registry.plugins["norm"]["packaged"].folder == package
        assert "other" not in registry.plugins["norm"]
        spec = zoo.read_spec("packaged", registry=registry)
        assert type(spec.model).__name__ == "Decoder"
        assert spec.to_dict()["decoder"]["norm"]["kind"] == "packaged"


def test_a_registry_goes_over_what_it_includes(package: Path, project: Path) -> None:
    lines = 'format = 1\ninclude = ["zoo_extras"]\n[norm]\npackaged = '
    write(project / "registry.toml", lines + '"mine.py:Mine"\n')
    with pytest.raises(zoo.RegistryError, match="norm `packaged` is registered twice"):
        zoo.load_registry()
    write(project / "registry.toml", lines + '{ target = "mine.py:Mine", override = true }\n')
    assert zoo.load_registry().plugins["norm"]["packaged"].folder == project


def test_who_includes_packages_decides_between_their_names(package: Path, project: Path) -> None:
    """Nobody could use a package any more as soon as another, or the zoo, had one of its names."""
    (package / "registry.toml").write_text(
        "format = 1\n[norm]\nlayer_norm = 'parts/norms.py:Packaged'\n"
        "[defaults]\nnorm = 'layer_norm'\n"
    )
    (package / "parts").mkdir()
    (package / "norms.py").rename(package / "parts" / "norms.py")
    include = "format = 1\ninclude = ['zoo_extras']\n"
    write(project / "registry.toml", include)
    with pytest.raises(zoo.RegistryError) as caught:
        zoo.load_registry()
    lines = {
        'layer_norm = { target = "zoo_extras.parts.norms:Packaged", override = true }': "norm",
        'norm = { kind = "layer_norm", override = true }': "defaults",
    }
    assert [problem.help for problem in caught.value.problems] == [
        f"rename one, or decide in `registry.toml`, below `[{table}]`: {line}"
        for line, table in lines.items()
    ]
    tables = [f"[{table}]\n{line}\n" for line, table in lines.items()]
    write(project / "registry.toml", include + "".join(tables))
    # A module of this name, for whoever imports it.
    assert (package / "parts" / "norms.py").is_file()
    target = zoo.load_registry().plugins["norm"]["layer_norm"].target
    assert target == "zoo_extras.parts.norms:Packaged"


def test_packages_that_include_each_other(package: Path, project: Path) -> None:
    text = (package / "registry.toml").read_text()
    (package / "registry.toml").write_text(text.replace("[norm]", 'include = "zoo_extras"\n[norm]'))
    write(project / "registry.toml", 'format = 1\ninclude = "zoo_extras"\n')
    assert "packaged" in zoo.load_registry().plugins["norm"]


def test_what_cannot_be_included(package: Path, project: Path) -> None:
    (package / "registry.toml").unlink()
    text = 'format = 1\ninclude = [3, "zoo_extras", "os", "a.b"]\n'
    write(project / "registry.toml", text)
    with pytest.raises(zoo.RegistryError) as caught:
        zoo.load_registry()
    expected = {
        "3": "`include` must be the name of an installed package, or an array of names",
        '"zoo_extras"': "the package `zoo_extras` ships no registry.toml",
        '"os"': "`os` is a module, and no package",
        '"a.b"': "`include` must be the name of an installed package, or an array of names",
    }
    line = text.split("\n")[1]
    assert [
        (p.place.column, p.place.width, p.message) for p in caught.value.problems if p.place
    ] == [(line.index(item) + 1, len(item), message) for item, message in expected.items()]
    helps = {p.message: p.help for p in caught.value.problems}
    assert str(package) in str(helps["the package `zoo_extras` ships no registry.toml"])


def test_a_missing_package_is_an_error_only_where_it_may_be_needed(
    package: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as for `python -c`
    absent = ["zoo_nothing", "__main__"]
    text = f"format = 1\ninclude = {['zoo_nothing', 'zoo_extras', *absent[1:]]}\n"
    write(project / "registry.toml", text)
    with pytest.warns(zoo.registry.MissingPackageWarning) as told:
        registry = zoo.load_registry()
    assert [str(one.message).partition(" is not installed")[0] for one in told] == [
        f"registry.toml:2:{text.split(chr(10))[1].index(name)}: the package `{name}`"
        for name in absent
    ]
    assert all(sys.executable in str(one.message) for one in told)
    assert "packaged" in registry.plugins["norm"]
    zoo.read_spec(SPEC, registry=registry)
    write(project / "mine.toml", SPEC + 'norm = "layer_nrm"\n')
    with pytest.raises(zoo.SpecError, match="unknown norm `layer_nrm`") as caught:
        zoo.read_spec("mine.toml", registry=registry)
    (problem,) = caught.value.problems
    assert problem.help == "did you mean `layer_norm`?"
    assert [note for note, _ in problem.related] == [
        f"the package `{name}` is not installed, and may register it" for name in absent
    ]


@pytest.mark.filterwarnings("ignore::zoo.registry.MissingPackageWarning")
@pytest.mark.parametrize(
    "arguments",
    [
        "show absent",
        "load absent",
        "pull absent",
        "list models absent",
        "families absent",
        "plugin check ffn.absent",
        "show extends.toml",
    ],
)
def test_what_is_not_known_may_be_in_a_missing_package(
    arguments: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project / "registry.toml", "format = 1\ninclude = 'zoo_nothing'\n")
    write(project / "extends.toml", SPEC + "extends = 'absent'\n")
    assert run(arguments.split()) == 2
    told = "registry.toml:2:11: note: the package `zoo_nothing` is not installed, and may register"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ["zoo-extras", "of-a-wheel", "of_a_wheel"])
def test_a_package_is_included_by_the_name_that_it_is_imported_by(
    name: str, project: Path, package: Path
) -> None:
    """Also where pip knows it by quite another name, which files of its models state."""
    installed = package.parent / "of_a_wheel-1.dist-info"
    write(installed / "METADATA", "Metadata-Version: 2.1\nName: of-a-wheel\nVersion: 1\n")
    write(installed / "RECORD", "zoo_extras/__init__.py,,\nzoo_extras/registry.toml,,\n")
    write(project / "registry.toml", f'format = 1\ninclude = ["{name}"]\n')
    with pytest.raises(zoo.RegistryError, match="= help: as it is imported: `zoo_extras`"):
        zoo.load_registry()

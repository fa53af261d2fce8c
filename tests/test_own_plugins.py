"""The plugin mechanism that the zoo's own plugins and those of a project share."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
import sys
import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from published_models import SPEC
from torch.nn.functional import linear
from trials import process, python, write

import zoo
from zoo.cli import run
from zoo.provenance.lock import read_lock
from zoo.provenance.plugins import (
    ReplacedPluginWarning,
    changed_plugins,
    plugin_versions,
    replaced_code,
    replaced_plugins,
)
from zoo.registering.plugin_loading import PluginEntryPoint, PluginManager
from zoo.registry import read_layers
from zoo.testing import check_plugin
from zoo.weights.reader import read_header

pytestmark = pytest.mark.usefixtures("kit_processes")
ROOT = Path(__file__).parent.parent
PROJECTS = Path(__file__).parent / "projects"


# --- what is imported ---------------------------------------------------------------------------


def test_only_the_plugins_that_a_spec_names_are_imported(project: Path) -> None:
    for name in ("used", "unused"):
        write(
            project / f"{name}.py",
            f"""\
            from zoo.slots import Norm
            with open("imported", "a") as file:
                file.write("{name} ")
            class Mine(Norm):
                "A norm."
            """,
        )
    write(
        project / "registry.toml",
        'format = 1\n[norm]\nused = "used.py:Mine"\nunused = "unused.py:Mine"\n',
    )
    write(project / "spec.toml", SPEC + 'norm = "used"\n')
    code = """
    import sys, zoo
    spec = zoo.read_spec("spec.toml")
    shipped = {m.partition(".")[2] for m in sys.modules if m.startswith("zoo_components.")}
    assert {"builders", "attention", "ffn"} <= shipped, shipped
    assert not shipped & {"moe", "latent", "rotary", "classifier"}, shipped
    assert "torch" not in sys.modules
    """
    python(code, cwd=project)
    assert (project / "imported").read_text() == "used "
    listing = (
        "import zoo.cli, sys; zoo.cli.run(['list']); assert 'zoo_components' not in sys.modules"
    )
    python(listing, cwd=project)
    assert (project / "imported").read_text() == "used "


def test_stevedore_loads_every_plugin_from_our_entry_points_alone(project: Path) -> None:
    """Neither packaging metadata nor stevedore's on-disk cache of it is read."""
    write(project / "spec.toml", SPEC)
    code = """
    import importlib.metadata, os
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # as the command does
    import stevedore._cache, stevedore.driver
    import zoo
    from zoo.registering.plugin_loading import PluginManager

    def forbidden(*args, **kwargs):
        raise RuntimeError("packaging metadata")

    importlib.metadata.entry_points = forbidden
    stevedore._cache.get_group_all = stevedore._cache.get_by_name = forbidden
    stevedore._cache._c._get_data_for_path = forbidden
    loaded = []
    load = stevedore.driver.DriverManager._load_one_plugin

    def watched(manager, point, *args, **kwargs):
        assert isinstance(manager, PluginManager)
        loaded.append((manager.namespace, point.name, point.value))
        return load(manager, point, *args, **kwargs)

    stevedore.driver.DriverManager._load_one_plugin = watched
    zoo.read_spec("spec.toml")
    for line in sorted(loaded):
        print(*line)
    """
    told = python(code, cwd=project).split("\n")
    assert "builder decoder zoo_components.builders:Decoder" in told
    assert "attention multi_head zoo_components.attention:MultiHead" in told
    assert "init xavier zoo_components.initial:XavierInit" in told
    assert len(told) == len(set(told))  # once each, regardless of the number of uses


def test_the_manager_gives_what_the_entry_point_loads(project: Path) -> None:
    point = PluginEntryPoint.make("norm", "mine", "mine.py:Mine", project)
    write(project / "mine.py", "class Mine:\n    pass\n")
    manager = PluginManager(point)
    assert manager.list_entry_points() == [point]
    assert manager.driver is point.load()


def test_files_of_like_names_are_different_modules(project: Path) -> None:
    """A module is named by its whole path: `a-b.py` differs from `a_b.py`, and from the file of
    another project."""
    found = set()
    for folder in ("one", "two"):
        for name in ("a-b", "a_b", "a.b"):
            write(project / folder / f"{name}.py", f"class Mine:\n    at = '{folder}/{name}'\n")
            point = PluginEntryPoint.make("norm", "mine", f"{name}.py:Mine", project / folder)
            found.add(PluginManager(point).driver.at)
    assert len(found) == 6


def test_a_file_is_imported_once_for_several_threads(project: Path) -> None:
    """Threads that come meanwhile wait, as for any other module."""
    write(project / "mine.py", "import time\n\ntime.sleep(0.2)\n\nclass Mine:\n    pass\n")
    point = PluginEntryPoint.make("norm", "mine", "mine.py:Mine", project)
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: point.load(), range(4))
    assert others == [first] * 3


# --- the same door for everybody ----------------------------------------------------------------


def test_a_project_with_a_component_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is validated, shown, built, saved and loaded like the shipped ones, and computes its
    formula."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(PROJECTS / "own_ffn")
    assert run(["build", "spec.toml", "-o", str(tmp_path / "out"), "--dtype", "float64"]) == 0
    capsys.readouterr()
    for source in ("spec.toml", str(tmp_path / "out")):
        assert run(["show", source]) == 0
        assert re.search(r"ffn +304 +bilinear, d_ff 12\n", capsys.readouterr().out)  # 3 x 96 + 16
        assert run(["show", source, "--tensors", "--json"]) == 0
        shapes = {row["name"]: row["shape"] for row in json.loads(capsys.readouterr().out)}
        assert shapes["decoder.layers.1.ffn.right_proj.weight"] == [12, 8]
    assert run(["list", "components", "bilinear"]) == 0
    assert "bilinear  The bilinear gated linear unit\n" in capsys.readouterr().out

    model = zoo.load(tmp_path / "out")
    assert model.spec.digest == zoo.read_spec("spec.toml").digest
    built = zoo.build("spec.toml", dtype=torch.float64)
    for name, tensor in built.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    branch = model.decoder.layers[1].ffn
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, right, down = (
        model.state_dict()[f"decoder.layers.1.ffn.{name}_proj.weight"]
        for name in ("left", "right", "down")
    )
    torch.testing.assert_close(branch(x), (x @ left.T * (x @ right.T)) @ down.T)
    torch.testing.assert_close(branch(x), linear(linear(x, left) * linear(x, right), down))
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(built(ids), model(ids))


def test_a_project_with_two_encoders_that_are_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part whose tensors are all tied is told by its name, and not by that of one tensor."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(PROJECTS / "siamese")
    check_plugin("builder", "siamese", registry=Path("registry.toml"))
    assert run(["show", "spec.toml"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"norm +16 += document.norm\n", shown)
    assert re.search(r"tokens +88 += document.embed.tokens\n", shown)
    patches = {"kind": "patches", "image_size": 8, "patch_size": 4}
    pixels = {**tomllib.loads(Path("spec.toml").read_text()), "embedding": patches}
    del pixels["vocab"]
    assert re.search(r" embed +400 += document.embed\n", str(zoo.read_spec(pixels)))

    zoo.save(zoo.build("spec.toml", dtype=torch.float64), tmp_path / "m.safetensors")
    model = zoo.load(tmp_path / "m.safetensors").eval()
    assert not [name for name in model.spec.tensors if name.startswith("query.")]
    alone = zoo.build(
        {
            "format": 1,
            "name": "alone",
            "builder": "encoder",
            "vocab": 11,
            "encoder": model.spec.to_dict()["document"],
            "head": "none",
        },
        dtype=torch.float64,
    )
    alone.encoder.load_state_dict(model.document.state_dict())
    asked, told = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7, 8], [9, 10]])
    expected = alone(asked)[:, 0] @ alone(told)[:, 0].T
    torch.testing.assert_close(model(asked, told), expected, rtol=0, atol=1e-12)


def test_a_project_that_decodes_with_two_stacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each has its own part of the cache, which beams reorder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(PROJECTS / "two_decoders")
    check_plugin("builder", "two_decoders", registry=Path("registry.toml"))
    model = zoo.build("spec.toml", dtype=torch.float64)
    prompts = [[1, 2, 3], [4]]
    for found, prompt in zip(
        zoo.generate(model, prompts, max_new_tokens=4, method=zoo.Beam(size=3, length_penalty=0.0)),
        prompts,
        strict=True,
    ):
        logits = model(torch.tensor([[*prompt, *found.ids]]))[0, len(prompt) - 1 : -1]
        chosen = logits.log_softmax(-1).gather(-1, torch.tensor(found.ids)[:, None])
        assert found.score == pytest.approx(chosen.sum().item(), abs=1e-12)


def test_a_project_in_a_process_of_its_own(tmp_path: Path) -> None:
    code = """
    import sys, zoo.cli
    assert zoo.cli.run(["build", "spec.toml", "-o", sys.argv[1]]) == 0
    assert zoo.cli.run(["validate", "spec.toml"]) == 0
    """
    told = python(code, str(tmp_path / "out"), cwd=PROJECTS / "own_ffn")
    assert "own-ffn" in told
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_what_is_not_registered_is_told_as_that_alone() -> None:
    registry = zoo.load_registry()
    for kind in ("mlp", "glu"):
        registry.plugin("ffn", kind)
    before = {"ffn.mlp": "mine 1.0", "ffn.glu": f"zoo {zoo.__version__}"}
    assert changed_plugins(registry, before) == ["ffn.mlp"]
    for gone in ("ffn.gone", "gone.mlp"):
        assert changed_plugins(registry, {**before, gone: "mine 1.0"}) == []


def test_a_component_that_was_changed_after_saving_is_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is loaded, since it can be built; but the changed plugin is reported."""
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    capsys.readouterr()
    assert run(["load", "out"]) == 0
    assert "made with" not in capsys.readouterr().out
    file = project / "plugins" / "bilinear.py"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_text(file.read_text() + "# Changed.\n")
    after = hashlib.sha256(file.read_bytes()).hexdigest()
    for name in [name for name in sys.modules if name.startswith("zoo_plugin_file_bilinear")]:
        del sys.modules[name]  # as in another process
    replaced = {"made_with": f"sha256:{before}", "now": f"sha256:{after}"}
    for view in ([], ["--report"]):
        assert run(["load", "out", *view]) == 0
        told = f"made with sha256:{before}, loaded with sha256:{after}: ffn.bilinear\n"
        assert capsys.readouterr().out.endswith(told)
        assert run(["load", "out", *view, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["replaced_plugins"] == [{"plugin": "ffn.bilinear", **replaced}]
    file.write_text(file.read_text().replace("left_proj", "first_proj"))
    for name in [name for name in sys.modules if name.startswith("zoo_plugin_file_bilinear")]:
        del sys.modules[name]
    assert run(["load", "out"]) == 2
    told = capsys.readouterr().err
    assert "no place for the tensor `decoder.layers.0.ffn.left_proj.weight`\n" in told
    assert told.endswith("= help: the weights were made with other code of `ffn.bilinear`\n")


def test_zoo_load_warns_of_a_component_that_was_changed_after_saving(project: Path) -> None:
    """Once, with the line of the call; the report of `zoo load` tells it without a warning."""
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    zoo.save(zoo.build("spec.toml"), "out")
    with warnings.catch_warnings(action="error"):
        zoo.load("out")
    file = project / "plugins" / "bilinear.py"
    file.write_text(file.read_text() + "# Changed.\n")
    for name in [name for name in sys.modules if name.startswith("zoo_plugin_file_bilinear")]:
        del sys.modules[name]  # as in another process
    with pytest.warns(ReplacedPluginWarning) as told:
        zoo.load("out")
    (warning,) = told
    assert str(warning.message) == (
        "out/model.safetensors: the weights were made with other code of `ffn.bilinear`, which may "
        "compute something else"
    )
    assert warning.filename == __file__
    with warnings.catch_warnings(action="error"):
        assert run(["load", "out"]) == 0


RENAMING = """
from pydantic import Field
from zoo.component import PositiveFloat
from zoo_components.ffn import Mlp


class Mine(Mlp):
    slope: PositiveFloat = 0.1
"""


def test_a_renamed_key_begins_with_the_value_of_the_former_one(project: Path) -> None:
    """As the page on plugins says: files that state the former key are read, under a name of the
    component that is no longer used in specs too."""
    (project / "mine.py").write_text(RENAMING)
    (project / "registry.toml").write_text('format = 1\n[ffn]\nformer = "mine.py:Mine"\n')
    (project / "spec.toml").write_text(SPEC + 'ffn = { kind = "former", slope = 0.3 }\n')
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    lines = (
        '    negative_slope: PositiveFloat = Field(default_factory=lambda data: data["slope"])\n'
    )
    (project / "mine.py").write_text(RENAMING + lines)
    with (project / "registry.toml").open("a") as file:
        file.write('renamed = "mine.py:Mine"\n')
    for name in [name for name in sys.modules if name.startswith("zoo_plugin_file_mine")]:
        del sys.modules[name]  # as in another process
    with pytest.warns(ReplacedPluginWarning):
        ffn = zoo.load("out").spec.model.decoder.block.ffn
    assert (ffn.kind, ffn.negative_slope) == ("former", 0.3)
    stated = {"kind": "renamed", "negative_slope": 0.4}
    spec = zoo.read_spec({"extends": "spec", "name": "other", "ffn": stated})
    ffn = spec.model.decoder.block.ffn
    assert (ffn.kind, ffn.negative_slope) == ("renamed", 0.4)


def test_the_shipped_registry_is_read_once_for_all_versions(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    spec = zoo.read_spec("spec.toml")
    first = plugin_versions(spec)
    monkeypatch.setattr("zoo.provenance.plugins.read_document", None)
    assert plugin_versions(spec) == first


def test_another_version_of_the_zoo_is_no_other_code(project: Path) -> None:
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    spec = zoo.read_spec("spec.toml")
    before = {
        name: "zoo 0.0" if "zoo " in now else now for name, now in plugin_versions(spec).items()
    }
    assert len(replaced_plugins(spec, before)) > 3
    assert replaced_code(spec, before) == []
    assert replaced_code(spec, {**before, "attention.multi_head": "mine 1.0"}) == [
        "attention.multi_head"
    ]


def test_a_component_that_is_changed_in_a_session_is_told(project: Path) -> None:
    """Its old code goes on: a user who edits it beside a notebook would not see why."""
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    with warnings.catch_warnings(action="error"):
        zoo.build("spec.toml")
        zoo.build("spec.toml")
    file = project / "plugins" / "bilinear.py"
    file.write_text(file.read_text() + "# Changed.\n")
    with pytest.warns(UserWarning, match=r"bilinear\.py` has changed .*: restart Python"):
        zoo.build("spec.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    d_ff: Shared[Size]\n",
            "    d_ff: Shared[Size]\n    power: Size\n",
            "`power` is missing",
        ),
        ("d_ff: Shared[Size]", "width: Shared[Size]", "unknown key `d_ff`"),
        ("d_ff: Shared[Size]", "d_ff: Shared[str]", "`d_ff` must be a string"),
    ],
)
def test_a_component_that_no_longer_takes_the_spec_of_weights_is_told(
    old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody can mend the spec in a weights file: the help says what has changed."""
    shutil.copytree(PROJECTS / "own_ffn", tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    zoo.save(zoo.build("spec.toml"), "m.safetensors")
    shutil.copytree(tmp_path / "mine", tmp_path / "theirs")
    monkeypatch.chdir(tmp_path / "theirs")
    plugin = Path("plugins/bilinear.py")
    assert old in plugin.read_text()
    plugin.write_text(plugin.read_text().replace(old, new).replace("self.d_ff", "8"))
    with pytest.raises(zoo.SpecError) as caught:
        zoo.load("m.safetensors")
    assert message in str(caught.value)
    help_ = "= help: the weights were made with other code of `ffn.bilinear`"
    assert str(caught.value).endswith(help_)
    assert "add `power" not in str(caught.value)


def test_weights_that_do_not_say_what_they_were_made_with(project: Path) -> None:
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    spec = zoo.read_spec("spec.toml")
    told = {**plugin_versions(spec)}
    del told["ffn.bilinear"]
    (found,) = replaced_plugins(spec, told)
    assert (found.plugin, found.made_with) == ("ffn.bilinear", None)


def test_a_plugin_of_an_installed_package_is_told_by_its_version(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "own_ffn", tmp_path / "project")
    (tmp_path / "site" / "their_parts").mkdir(parents=True)
    file = tmp_path / "project" / "plugins" / "bilinear.py"
    file.rename(tmp_path / "site" / "their_parts" / "__init__.py")
    registry = tmp_path / "project" / "registry.toml"
    registry.write_text(registry.read_text().replace("plugins/bilinear.py", "their_parts"))
    about = tmp_path / "site" / "their_zoo_parts-1.2.dist-info"
    write(about / "METADATA", "Metadata-Version: 2.1\nName: their-zoo-parts\nVersion: 1.2\n")
    write(about / "top_level.txt", "their_parts\n")
    save = """
    import sys
    sys.path.append("../site")
    import zoo
    zoo.save(zoo.build("spec.toml"), "../elsewhere.safetensors")
    """
    python(save, cwd=tmp_path / "project")
    with pytest.raises(zoo.SpecError, match=r"`their-zoo-parts 1\.2`: if you trust"):
        zoo.load(tmp_path / "elsewhere.safetensors")
    code = """
    import sys
    sys.path.append("../site")
    from zoo.cli import run
    assert run(["lock", "spec.toml"]) == 0
    """
    python(code, cwd=tmp_path / "project")
    plugins = read_lock(tmp_path / "project").plugins
    assert plugins["ffn.bilinear"] == "their-zoo-parts 1.2"
    # As `pip install -e` leaves it: the version says nothing of the code.
    write(about / "direct_url.json", '{"dir_info": {"editable": true}, "url": "file:///site"}')
    python(code, cwd=tmp_path / "project")
    code_of = tmp_path / "site" / "their_parts" / "__init__.py"
    now = f"sha256:{hashlib.sha256(code_of.read_bytes()).hexdigest()}"
    assert read_lock(tmp_path / "project").plugins["ffn.bilinear"] == now


def test_what_is_told_of_a_file_is_of_the_code_that_ran(project: Path) -> None:
    """At the end of a training, the file may have been changed or removed."""
    shutil.copytree(PROJECTS / "own_ffn", project, dirs_exist_ok=True)
    file = project / "plugins" / "bilinear.py"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    model = zoo.build("spec.toml")
    file.write_text("# Changed.\n")
    zoo.save(model, "changed.safetensors")
    file.unlink()
    zoo.save(model, "gone.safetensors")
    for name in ("changed", "gone"):
        plugins = read_header(Path(f"{name}.safetensors")).plugins
        assert plugins["ffn.bilinear"] == f"sha256:{before}"


def test_the_core_works_with_other_plugins_than_its_own(tmp_path: Path) -> None:
    """A registry with one builder replaces the shipped one."""
    code = """
    import sys
    from pathlib import Path
    sys.modules["zoo_components"] = None
    import torch, zoo
    from zoo.registry import read_layers
    registry = read_layers([Path("registry.toml")])
    assert [kind for kinds in registry.plugins.values() for kind in kinds] == ["bigram", "constant"]
    model = zoo.build("spec.toml", registry=registry)
    zoo.save(model, sys.argv[1])
    loaded = zoo.load(sys.argv[1], registry=registry)
    assert loaded.spec == model.spec
    assert loaded(torch.tensor([[1, 2]])).tolist() == [[[0.25] * 5] * 2]
    print(model.spec.n_parameters, *model.spec.tensors)
    assert not [name for name in sys.modules if name.startswith("zoo_components.")]
    """
    told = python(code, str(tmp_path / "m.safetensors"), cwd=PROJECTS / "own_builder")
    assert told == "25 table.weight\n"


def test_layers_that_are_given_are_the_only_ones() -> None:
    registry = read_layers([PROJECTS / "own_builder" / "registry.toml"])
    assert registry.models == {}
    with pytest.raises(zoo.SpecError, match="unknown builder `decoder`"):
        zoo.read_spec(SPEC, registry=registry)


def test_the_core_imports_no_plugin() -> None:
    plugins = {path.name for path in (ROOT / "plugins").iterdir() if path.is_dir()}
    assert "zoo_components" in plugins
    files = list((ROOT / "zoo").rglob("*.py"))
    assert len(files) > 20
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [node.value]  # also not by its name as text
            for name in names:
                assert name.partition(".")[0] not in plugins, f"{file}: {name}"


OWN_FFN = """
from typing import Annotated, Literal

from pydantic import Field

from zoo.slots import FeedForward


class Mine(FeedForward):
    \"\"\"A network.\"\"\"

    pair: tuple[float, float] = (0.0, 1.0)
    word: Annotated[str, Field(min_length=2, max_length=4)] = "abc"
    taps: Literal[1, 2, 4] = 1
    each: tuple[Literal[1, 2], ...] = ()
    size: Literal[1, "all"] = 1
"""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("pair = [1.0]", "`pair` must have 2 items, not 1"),
        ("pair = []", "`pair` must have 2 items, not 0"),
        ("pair = [1.0, 2.0, 3.0]", "`pair` must have at most 2 items, not 3"),
        ('word = "a"', "`word` must have at least 2 characters, not 1"),
        ('word = "abcde"', "`word` must have at most 4 characters, not 5"),
        ("taps = 3", "`taps` must be one of `1`, `2`, `4`, not the integer `3`"),
        ("taps = true", "`taps` must be one of `1`, `2`, `4`, not the boolean `true`"),
        ("taps = 2.0", "`taps` must be one of `1`, `2`, `4`, not the float `2.0`"),
        ("each = [2, true]", "`each` must be one of `1`, `2`, not the boolean `true`"),
        ("size = true", "`size` must be one of `1`, `all`, not the boolean `true`"),
    ],
)
def test_a_value_of_a_wrong_length_or_of_no_choice(value: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "registry.toml").write_text('format = 1\n[ffn]\nmine = "mine.py:Mine"\n')
    (tmp_path / "mine.py").write_text(OWN_FFN)
    registry = zoo.load_registry(tmp_path / "registry.toml")
    text = f"{SPEC.replace('d_ff = 16', '')}ffn = {{ kind = 'mine', {value} }}\n"
    with pytest.raises(zoo.SpecError, match=f"error: {told}\n") as error:
        zoo.read_spec(text, registry=registry)
    assert len(error.value.problems) == 1
    assert error.value.problems[0].place.line == 9


def test_a_mistake_runs_no_files_that_the_spec_does_not_name(tmp_path: Path) -> None:
    """Not even for a hint with the kinds that have a key: a file may be in the making."""
    names = 'mine = "mine.py:Mine"\nother = "other.py:Other"\n'
    (tmp_path / "registry.toml").write_text(f"format = 1\n[ffn]\n{names}")
    (tmp_path / "mine.py").write_text(OWN_FFN)
    (tmp_path / "other.py").write_text("from pathlib import Path\n\nPath('run').touch()\n")
    spec = f"{SPEC}ffn = {{ kind = 'mine', n_experts = 2 }}\n"
    (tmp_path / "spec.toml").write_text(spec)
    done = process("validate", "spec.toml", cwd=tmp_path)
    assert "`n_experts` is a key of the ffn `hash_moe`, `moe` or `normed_moe`" in done.stderr
    assert not (tmp_path / "run").exists()

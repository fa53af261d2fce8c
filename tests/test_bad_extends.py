"""Error messages for an invalid `extends`, and for mistakes across files."""

from __future__ import annotations

from pathlib import Path

import pytest
from trials import Refused, spec

import zoo
from zoo.cli import run


def test_keys_of_two_files_that_contradict(refused: Refused, project: Path) -> None:
    (project / "base.toml").write_text(spec())
    (project / "spec.toml").write_text('extends = "base"\nname = "child"\nn_heads = 3\n')
    assert refused("validate", "spec.toml") == (
        "spec.toml:3:11: error: d_model = 8 is not divisible by n_heads = 3; state `head_dim`, or "
        "change one of the two\n"
        "    3 | n_heads = 3\n"
        "      |           ^\n"
        "base.toml:7:11: note: `d_model` is here\n"
        "    7 | d_model = 8\n"
        "      |           ^\n"
    )


@pytest.mark.parametrize(
    ("line", "at", "told"),
    [
        ("encoder.layers = [{ at = [1] }]", "[1]", "there is no layer 1: they are 0 to 0"),
        ("encoder.d_ff = { per_layer = [8, 4] }", "[8", "`d_ff` has 2 values, one for each layer"),
    ],
)
def test_fewer_layers_than_the_spec_that_is_extended_speaks_of(
    line: str, at: str, told: str, refused: Refused, project: Path
) -> None:
    """The file at fault may be the other one, which states their number."""
    (project / "base.toml").write_text(spec(line))
    (project / "spec.toml").write_text('extends = "base"\nname = "child"\nn_layers = 1\n')
    message = refused("validate", "spec.toml")
    assert message.startswith(f"base.toml:10:{line.index(at) + 1}: error: {told}")
    assert message.endswith(
        "spec.toml:3:12: note: the number of layers is stated here\n"
        "    3 | n_layers = 1\n"
        "      |            ^\n"
    )


def test_settings_over_values_for_each_layer(refused: Refused, project: Path) -> None:
    """In the place of the list, they would give all layers the default kind."""
    (project / "base.toml").write_text(spec('ffn = { per_layer = ["glu", "mlp"] }'))
    child = 'extends = "base"\nname = "child"\nffn = { activation = "relu" }\n'
    (project / "spec.toml").write_text(child)
    message = refused("validate", "spec.toml")
    assert message.startswith("spec.toml:3:9: error: unknown key `activation` in `ffn`\n")
    hint = "help: `activation` is a key of `ffn.per_layer.0` and of `ffn.per_layer.1`\n"
    assert message.endswith(hint)


def test_a_wrong_rule_of_the_spec_that_is_extended(refused: Refused, project: Path) -> None:
    (project / "base.toml").write_text(spec("encoder.layers = [{ at = 1 }]"))
    (project / "spec.toml").write_text('extends = "base"\nname = "child"\nn_layers = 1\n')
    assert "note" not in refused("validate", "spec.toml")


@pytest.mark.parametrize("ring", [("a",), ("a", "b"), ("a", "b", "c")])
def test_extends_in_a_circle(ring: tuple[str, ...], refused: Refused, project: Path) -> None:
    for name, parent in zip(ring, (*ring[1:], ring[0]), strict=True):
        (project / f"{name}.toml").write_text(f'extends = "{parent}"\n')
    story = " -> ".join(f"{name}.toml" for name in (*ring, ring[0]))
    assert refused("validate", "a.toml") == (
        f"{ring[-1]}.toml:1:11: error: cyclic `extends`: {story}\n"
        '    1 | extends = "a"\n'
        "      |           ^^^\n"
    )


def test_extends_without_end(refused: Refused, project: Path) -> None:
    for i in range(40):
        (project / f"s{i}.toml").write_text(f'extends = "s{i + 1}"\n')
    told = refused("validate", "s0.toml")
    assert told.startswith("s32.toml:1:11: error: `extends` leads through more than 32 specs\n")


@pytest.mark.parametrize(
    "value", ['"../spec"', '"/etc/passwd"', '"sub/spec"', '".."', '""', "3", '["a"]', "{}"]
)
def test_extends_names_no_path(value: str, refused: Refused, project: Path) -> None:
    (project.parent / "spec.toml").write_text(spec())
    (project / "spec.toml").write_text(f"extends = {value}\n")
    assert refused("validate", "spec.toml") == (
        "spec.toml:1:11: error: `extends` names one spec, without folders or an ending\n"
        f"    1 | extends = {value}\n"
        f"      |           {'^' * len(value)}\n"
        "      = help: a spec file or a saved model beside this one, or a model of the registry\n"
    )


@pytest.mark.parametrize("name", ["my model", "späc", "-a", ".a", "a" * 129])
def test_extends_tells_what_a_name_has(name: str, refused: Refused, project: Path) -> None:
    """A file may have such a name."""
    (project / "child.toml").write_text(f'extends = "{name}"\nname = "child"\n')
    told = refused("validate", "child.toml")
    assert f"child.toml:1:11: error: `extends` cannot name `{name[:70]}" in told
    assert "the name of a spec has up to 128 of the letters A to Z and a to z, digits" in told
    assert "help: rename the file" in told


def test_extends_of_what_is_not_there(refused: Refused, project: Path) -> None:
    (project / "base.toml").write_text(spec())
    (project / "spec.toml").write_text('extends = "bsae"\n')
    assert refused("validate", "spec.toml") == (
        "spec.toml:1:11: error: there is no spec `bsae` beside this one or in the registry\n"
        '    1 | extends = "bsae"\n'
        "      |           ^^^^^^\n"
        "      = help: did you mean `base`?\n"
    )
    (project / "spec.toml").write_text('extends = "base.toml"\n')
    assert "help: did you mean `base`?" in refused("validate", "spec.toml")
    (project / "registry.toml").write_text('format = 1\n[models]\ngone = "gone.toml"\n')
    (project / "spec.toml").write_text('extends = "gone"\n')
    told = refused("validate", "spec.toml")
    assert told.startswith("registry.toml:3:1: error: `")
    assert 'gone.toml` does not exist\n    3 | gone = "gone.toml"\n      | ^^^^\n' in told


def test_mistakes_of_a_parent_are_told_in_its_file(refused: Refused, project: Path) -> None:
    (project / "base.toml").write_text(spec("n_head = 2"))
    (project / "spec.toml").write_text('extends = "base"\nname = "child"\nn_layer = 3\n')
    told = refused("validate", "spec.toml")
    assert [line for line in told.split("\n") if "error" in line] == [
        "base.toml:10:1: error: unknown key `n_head`",
        "spec.toml:3:1: error: unknown key `n_layer`",
    ]


def test_extends_follows_no_link(refused: Refused, project: Path) -> None:
    (project / "elsewhere").write_text(spec())
    (project / "base.toml").symlink_to("elsewhere")
    (project / "spec.toml").write_text('format = 1\nname = "a"\nextends = "base"\n')
    assert "`base.toml` is a link, which `extends` does not follow" in refused(
        "validate", "spec.toml"
    )


def test_a_value_that_a_saved_spec_states_nearer(refused: Refused, project: Path) -> None:
    """A saved spec is a full form, in which each value stands where it counts."""
    (project / "base.toml").write_text(spec())
    assert run(["build", "base.toml", "-o", "run"]) == 0
    (project / "spec.toml").write_text('extends = "run"\nname = "a"\nd_ff = 64\n')
    assert refused("validate", "spec.toml") == (
        "spec.toml:3:1: error: `d_ff` has no effect: all that read it state their own\n"
        "    3 | d_ff = 64\n"
        "      | ^^^^\n"
        "run/model.safetensors: encoder.block.ffn.d_ff: note: `d_ff` is stated nearer here\n"
        "run/model.safetensors: decoder.block.ffn.d_ff: note: `d_ff` is stated nearer here\n"
        "      = help: a saved spec states each value in its own table: write it there, "
        "`encoder.block.ffn.d_ff` and `decoder.block.ffn.d_ff`\n"
    )


def test_a_placement_that_the_norms_of_a_saved_spec_go_over(
    refused: Refused, project: Path
) -> None:
    """They are stated for each sublayer there, and so the placement would change nothing."""
    (project / "base.toml").write_text(spec())
    assert run(["build", "base.toml", "-o", "run"]) == 0
    child = 'extends = "run"\nname = "a"\n[decoder]\nnorm_placement = "post"\n'
    (project / "spec.toml").write_text(child)
    assert refused("validate", "spec.toml") == (
        "spec.toml:4:18: error: `norm_placement` changes nothing: the saved spec that this one "
        "extends states the norms of each sublayer\n"
        '    4 | norm_placement = "post"\n'
        "      |                  ^^^^^^\n"
        "      = help: state these, such as `decoder.block.ffn.norms`, and `final_norm`; or extend "
        "the short form\n"
    )
    for name in ("self_attn", "cross_attn", "ffn"):
        child += f'block.{name}.norms = ["out"]\n'
    (project / "spec.toml").write_text(child + "final_norm = false\n")
    (project / "post.toml").write_text(
        'extends = "base"\nname = "a"\n[decoder]\nnorm_placement = "post"\n'
    )
    assert zoo.read_spec("spec.toml").digest == zoo.read_spec("post.toml").digest


def test_a_damaged_model_in_the_place_of_a_parent(refused: Refused, project: Path) -> None:
    (project / "run.safetensors").write_bytes(b"\x08" + bytes(30))
    (project / "spec.toml").write_text('extends = "run"\nname = "a"\n')
    told = refused("validate", "spec.toml")
    assert told.startswith("run.safetensors: error: ")
    assert 'spec.toml:1:11: note: named here\n    1 | extends = "run"\n' in told


@pytest.mark.parametrize("of", ["folder", "weights"])
def test_extends_follows_no_link_to_a_saved_model(of: str, refused: Refused, project: Path) -> None:
    (project / "base.toml").write_text(spec())
    assert run(["build", "base.toml", "-o", "elsewhere"]) == 0
    if of == "folder":
        (project / "run").symlink_to("elsewhere")
    else:
        (project / "run").mkdir()
        (project / "run" / "model.safetensors").symlink_to("../elsewhere/model.safetensors")
    (project / "spec.toml").write_text('extends = "run"\nname = "a"\n')
    assert "there is no spec `run` beside this one or in the reg" in refused(
        "validate", "spec.toml"
    )


def test_a_model_with_the_name_of_its_parent_does_not_take_its_folder(
    refused: Refused, project: Path
) -> None:
    (project / "base.toml").write_text(spec())
    (project / "child.toml").write_text('extends = "base"\nn_layers = 3\n')
    assert run(["build", "base.toml"]) == 0
    assert refused("build", "child.toml") == (
        "base.toml:2:8: error: `bad` is the name of a spec that this one extends\n"
        '    2 | name = "bad"\n'
        "      |        ^^^^^\n"
        "      = help: state a `name` in `child.toml`, or a folder: `-o DIR`\n"
    )
    assert run(["build", "child.toml", "--device", "meta"]) == 0
    assert run(["build", "child.toml", "-o", "child"]) == 0
    assert zoo.load("child").spec.to_dict()["decoder"]["n_layers"] == 3

"""`zoo lint` finds mistakes in a family, with their places, without a checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from trials import Refused

import zoo
from zoo.cli import run
from zoo.families.family import read_family
from zoo.families.lint import Linted, lint
from zoo.families.registered import Families
from zoo.json_files import JsonFile
from zoo.registry import load_registry

PAGE = Path(__file__).parent.parent / "docs/write-a-family.md"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Return the family of the docs, which is valid."""
    text = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text is not None
    path = tmp_path / "toy.toml"
    path.write_text(text[1])
    return path


@pytest.fixture
def own_families(project: Path) -> Path:
    """Return the folder of families that the project's registry names."""
    (project / "registry.toml").write_text('format = 1\nfamilies = "families"\n')
    (project / "families").mkdir()
    return project / "families"


def change(toy: Path, old: str, new: str) -> int:
    """Change a family file; return the line of the change."""
    text = toy.read_text()
    assert text.count(old) == 1
    toy.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


def told(toy: Path) -> str:
    with pytest.raises(zoo.SpecError) as error:
        lint(read_family(toy), load_registry())
    return str(error.value)


def test_sound(toy: Path) -> None:
    assert lint(read_family(toy), load_registry()) == Linted("toy", 1, 6, 1)


def test_a_family_that_extends_itself(toy: Path) -> None:
    other = toy.with_name("other.toml")
    other.write_text(toy.read_text().replace("format = 1", 'format = 1\nextends = "toy"'))
    change(toy, "format = 1", 'format = 1\nextends = "other"')
    with pytest.raises(zoo.SpecError, match="cyclic `extends`: toy -> other -> toy"):
        read_family(toy)


def test_a_family_extends_one_beside_it_before_one_of_a_registry(
    toy: Path, own_families: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a family of the registry extends those beside itself, not beside what extends it."""
    (own_families / "base.toml").write_text("no TOML")
    (own_families / "shared.toml").write_text(
        toy.read_text().replace("format = 1", 'format = 1\nextends = "middle"')
    )
    (own_families / "middle.toml").write_text('format = 1\nmodel_type = []\nprefix = ["a."]\n')
    toy.with_name("middle.toml").write_text("no TOML")
    toy.with_name("base.toml").write_text('format = 1\nmodel_type = []\nextends = "shared"\n')
    toy.write_text('format = 1\nmodel_type = ["toy"]\nextends = "base"\n')
    assert run(["lint", str(toy)]) == 0
    assert "toy: 6 rules hold" in capsys.readouterr().out


def test_a_parent_that_no_registry_has(toy: Path, own_families: Path, refused: Refused) -> None:
    change(toy, "format = 1", 'format = 1\nextends = "lama"')
    place = f"{toy}:2:11: error: "
    told = refused("lint", str(toy))
    assert f"{place}there is no family `lama`" in told
    assert "help: did you mean `llama`?" in told
    for name in ("../toy", "sub/toy", "a" * 300, "vocabulary"):
        toy.write_text(f'format = 1\nextends = "{name}"\nmodel_type = []\n')
        assert f"{place}there is no family `{name[:70]}" in refused("lint", str(toy))


def test_settings_of_generation_that_no_configuration_states(toy: Path) -> None:
    with toy.open("a") as file:
        file.write('\n[generation]\neos_token_id = "= hidden_siz"\n')
    line = toy.read_text().count("\n")
    message = told(toy)
    assert f"{toy}:{line}:" in message
    assert "hidden_siz" in message


def test_a_named_value_that_is_made_of_itself(toy: Path) -> None:
    change(toy, "[let]", '[let]\na = "= 1 + b"\nb = "= a"\n#')
    with toy.open("a") as file:
        file.write('\n[generation]\neos_token_id = "= a"\n')
    assert "`a` is made of itself: a -> b" in told(toy)


def test_a_named_value_without_a_value_is_told_alike_each_time(toy: Path) -> None:
    """The first failure leaves nothing behind that would be taken for a value made of itself."""
    change(toy, "[let]", "[let]\na = \"= refuse('it is too wide')\"\n#")
    families = Families(load_registry())
    config = JsonFile(Path("config.json"), {"model_type": "toy"}, "")
    scope = families.scope(read_family(toy), config, frozenset())
    for _ in range(2):
        with pytest.raises(zoo.SpecError, match="it is too wide"):
            scope["a"]


@pytest.mark.parametrize("version", ["2", "true", "1.0"])
def test_another_format(toy: Path, version: str) -> None:
    change(toy, "format = 1", f"format = {version}")
    assert f"{toy}:1:10: error: `format` must be `1`, not the" in told(toy)


def test_a_value_of_another_type(toy: Path) -> None:
    change(toy, 'model_type = ["toy"]', 'model_type = "toy"')
    line = change(toy, "norm = { hf", 'norm = { zoo = 4, missing = "zero", hf')
    change(toy, 'zoo = "decoder.norm.{w}"', "axes = [1]")
    message = told(toy)
    assert "error: `model_type` must be an array, not the string `toy`" in message
    assert f"{toy}:{line}:16: error: `zoo` must be a string or an array, not the inte" in message
    assert "`missing` must be one of `error`, `zeros`, not the string `zero`" in message
    assert "help: did you mean `zeros`?" in message
    assert "`axes` must be a string, not an array" in message
    assert message.count("error:") == 4


def test_a_missing_key(toy: Path) -> None:
    change(toy, 'model_type = ["toy"]', "")
    line = change(toy, 'hf = "{@}norm.{w}", ', "")
    message = told(toy)
    assert f"{toy}:1:1: error: the key `model_type` is missing\n" in message
    assert f"{toy}:{line}:8: error: the key `hf` is missing\n" in message


def test_missing_rule(toy: Path) -> None:
    change(toy, "norm = { hf", "# norm = { hf")
    message = told(toy)
    assert f"{toy}: error: the checkpoint has no tensor that becomes `decoder.norm.bias`" in message
    assert "`decoder.norm.weight`" in message


def test_missing_part_of_a_rule(toy: Path) -> None:
    change(toy, "{p:q|k|v|out=o}", "{p:q|k|v}")
    assert "no tensor that becomes `decoder.layers.0.self_attn.o_proj.bias`" in told(toy)


def test_missing_tensors_of_many_layers_are_told_in_one_line(toy: Path) -> None:
    change(toy, "num_hidden_layers = 2", "num_hidden_layers = 12")
    change(toy, "{p:norm1=self_attn|norm2=ffn}", "{p:norm1=self_attn}")
    message = told(toy)
    more = ", and none for 11 more that differ from it only in numbers"
    for word in ("bias", "weight"):
        assert f"no tensor that becomes `decoder.layers.0.ffn.pre_norm.{word}`{more}" in message
    assert message.count("error:") == 2


def test_doubled_rule(toy: Path) -> None:
    line = change(
        toy, "head = { hf", 'again = { hf = "n.{w}", zoo = "decoder.norm.{w}" }\nhead = { hf'
    )
    message = told(toy)
    assert f"{toy}:{line}:1: error: two rules make the tensor `decoder.norm.bias`" in message
    assert f"{toy}:{line - 1}:1: note: the other rule" in message


def test_a_part_that_another_rule_makes(toy: Path) -> None:
    """It is told whichever of the parts it is."""
    norms = "norms = { hf"
    fused = (
        'fused = { hf = "{@}layers.{i}.norms.{w}", axes = "(p) ...", parts = [32, 32], zoo = '
        '["decoder.layers.{i}.ffn.pre_norm.{w}", "decoder.layers.{i}.self_attn.pre_norm.{w}"] }\n'
    )
    change(toy, "{p:norm1=self_attn|norm2=ffn}", "{p:norm1=self_attn}")
    line = change(toy, norms, f"{fused}{norms}")
    made = "two rules make the tensor `decoder.layers.0.self_attn.pre_norm.bias`"
    assert f"{toy}:{line + 1}:1: error: {made}" in told(toy)
    text = toy.read_text().replace(fused, "")
    toy.write_text(text.replace("norm = { hf", f"{fused}norm = {{ hf"))
    assert f"{toy}:{line + 1}:1: error: {made}" in told(toy)


def test_two_rules_of_one_name(toy: Path) -> None:
    line = change(toy, "head = { hf", 'more = { hf = "{@}norm.{w}", drop = true }\nhead = { hf')
    message = told(toy)
    assert f"{toy}:{line}:1: error: two rules speak of the tensor `model.norm." in message


def test_a_rule_that_drops_the_rest_of_names_comes_first(toy: Path) -> None:
    """Then the model's norm is missing, whose rule gets no tensor."""
    change(toy, "head = { hf", 'more = { hf = "{@}norm.{rest}", drop = true }\nhead = { hf')
    assert "the checkpoint has no tensor that becomes `decoder.norm.weight`" in told(toy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{@}norm.{w}", "{@}norm.weight", "`w` is not in the name in the checkpoint"),
        ("{p:up|down}", "{p:up|down=up}", "two words of `p` mean the same"),
        ("{@}norm.{w}", "{@}norm.{a}.{b}.{w}", "only one number can be stacked, not a, b"),
        ("{@}norm.{w}", "{@}norm.{rest}", "`{rest}` is no name that can be made again"),
    ],
)
def test_rule_that_cannot_be_undone(toy: Path, old: str, new: str, message: str) -> None:
    line = change(toy, old, new)
    assert f"{toy}:{line}:1: error: {message}" in told(toy)


def test_layout_that_cannot_be_undone(toy: Path) -> None:
    axes = 'axes = "(a b) -> a b", sizes = { a = 5 } }'
    line = change(toy, 'zoo = "decoder.norm.{w}" }', f'zoo = "decoder.norm.{{w}}", {axes}')
    assert f"{toy}:{line}:1: error: " in told(toy)


@pytest.mark.parametrize("size", ["-1", "'n_heads - 5'", "'n_heads / 2'"])
def test_a_size_that_is_none(toy: Path, size: str) -> None:
    new = f'zoo = "decoder.norm.{{w}}", axes = "(a b) -> (a b)", sizes = {{ a = {size} }} }}'
    line = change(toy, 'zoo = "decoder.norm.{w}" }', new)
    message = told(toy)
    assert f"{toy}:{line}:" in message
    assert re.search(r"`.*` is (-1|2\.0), which is no size", message)


@pytest.mark.parametrize("name", ["c", "'('", "ab"])
def test_a_size_of_no_axis(toy: Path, name: str) -> None:
    new = f'zoo = "decoder.norm.{{w}}", axes = "(a b) ...", sizes = {{ {name} = 4 }} }}'
    line = change(toy, 'zoo = "decoder.norm.{w}" }', new)
    message = f"error: `sizes` has `{name.strip(chr(39))}`, which is no axis in `axes`"
    assert f"{toy}:{line}:8: {message}" in told(toy)


def test_a_named_value_that_nothing_reads(toy: Path) -> None:
    """Its name in a pattern or as a key is not read; one in `${}` or in a size is."""
    line = change(toy, 'n_heads = "= num', 'norm = "= norm"\nn_headz = 3\nn_heads = "= num')
    message = told(toy)
    assert f"{toy}:{line}:1: error: nothing reads `norm`\n" in message
    assert "= help: leave it out" in message
    assert f"{toy}:{line + 1}:1: error: nothing reads `n_headz`\n" in message
    assert "help: did you mean `n_heads`?" in message
    change(
        toy,
        'hf = "{@}norm.{w}"',
        "hf = \"${norm}.{w}\", axes = '(a b) -> (a b)', sizes = { a = 'n_headz' }",
    )
    change(toy, 'norm = "= norm"', "norm = 'norm'")
    assert "nothing reads" not in told(toy)
    toy.write_text(toy.read_text().replace('["toy"]', "[]").replace("n_headz'", "n_heads'"))
    assert lint(read_family(toy), load_registry()).forms == 0


def test_zeros_of_several_parts(toy: Path) -> None:
    zeros = 'axes = "p ...", parts = [1, 1], missing = "zeros", zoo = ["a.{w}", "b.{w}"] }'
    line = change(toy, 'zoo = "decoder.norm.{w}" }', zeros)
    message = '`missing = "zeros"` is for a rule with one name in `zoo`'
    assert f"{toy}:{line}:8: error: {message}" in told(toy)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("}", "a rule has `zoo`, or else `computed` or `drop` or both"),
        (', zoo = "decoder.norm.{w}", drop = true }', "a rule has `zoo`, or else `computed` or"),
        (', zoo = ["a.{w}", "b.{w}"] }', "several names in `zoo` need `axes`, and as many `parts`"),
        (', zoo = "decoder.norm.{w}", axes = "p ...", parts = [1] }', "several names in `zoo`"),
        (', zoo = ["a.{w}", "b.{w}"], axes = "p ...", parts = [1] }', "several names in `zoo`"),
    ],
)
def test_a_rule_that_contradicts_itself(toy: Path, keys: str, message: str) -> None:
    line = change(toy, ', zoo = "decoder.norm.{w}" }', keys)
    assert f"{toy}:{line}:8: error: {message}" in told(toy)


@pytest.mark.parametrize("key", ["let", "defaults", "spec"])
def test_what_should_be_a_table(toy: Path, key: str) -> None:
    toy.write_text(f"format = 1\nmodel_type = []\n{key} = 3\n")
    assert f"{toy}:3:{len(key) + 4}: error: `{key}` must be a table, not the integer `3`" in told(
        toy
    )


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_tensor_that_a_checkpoint_may_have(toy: Path, quote: str) -> None:
    """It is checked with and without the tensor, however the expression writes its name."""
    head = f"= 'linear' if present({quote}head.weight{quote}) else 'none'"
    old = 'head = { kind = "linear", tied = "= tie_word_embeddings" }'
    change(toy, old, f"head = {json.dumps(head)}")
    assert lint(read_family(toy), load_registry()).forms == 2


def test_class_that_a_checkpoint_is_saved_by(toy: Path) -> None:
    """Both forms are checked, and the one without rules is found."""
    change(
        toy,
        'head = { kind = "linear", tied = "= tie_word_embeddings" }',
        "head = \"= 'none' if architecture == 'ToyModel' else 'linear'\"",
    )
    assert lint(read_family(toy), load_registry()).forms > 1
    change(toy, 'zoo = "head.out.{w}" }', 'zoo = "head.out.{w}", when = "false" }')
    assert "no tensor that becomes `head.out.weight`" in told(toy)


def test_on_the_command_line(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", str(toy)]) == 0
    assert "toy: 6 rules hold for 1 form of checkpoints" in capsys.readouterr().out
    line = change(toy, "{p:up|down}", "{p:up|down=up}")
    assert run(["lint", str(toy)]) == 2
    assert f"{toy}:{line}:1: error: two words of `p` mean the same" in capsys.readouterr().err


def test_every_family_is_told(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = toy.with_name("sound.toml")
    sound.write_text(toy.read_text())
    change(toy, "{p:up|down}", "{p:up|down=up}")
    assert run(["lint", "unknown", str(sound), str(toy)]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("sound: 6 rules hold")
    assert "unknown" in shown.err
    assert "two words of `p` mean the same" in shown.err
    assert run(["lint", str(toy), "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == []


def test_a_word_that_is_written_twice(toy: Path, own_families: Path, refused: Refused) -> None:
    words = '[activations]\nmine = "relu"\nmine = "gelu"\n'
    (own_families / "vocabulary.toml").write_text(words)
    told = refused("lint", str(toy))
    assert "vocabulary.toml:3:1: error: `activations.mine` is written twice" in told


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "[activations]\nmine = 3": ":2:8: error: `activations.mine` must be a string",
        "inert = 3": ":1:9: error: `inert` must be a",
        "[rope.mine]\nfields = {}": ":1:7: error: `rope.mine.kind` is missing",
        "[ropes]\nx = 3": ":1:2: error: `ropes` is an unknown key",
    }.items(),
)
def test_words_of_another_form(
    text: str, message: str, toy: Path, own_families: Path, refused: Refused
) -> None:
    (own_families / "vocabulary.toml").write_text(f"{text}\n")
    assert f"vocabulary.toml{message}" in refused("lint", str(toy))


def test_defaults_that_are_no_json(toy: Path, own_families: Path, refused: Refused) -> None:
    (own_families / "defaults.json").write_text('{\n"toy": }')
    assert "families/defaults.json:2:8: error: not JSON: Expecting value" in refused(
        "lint", str(toy)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    {
        '[["toy"]]': "defaults.json: error: an object is expected",
        '{\n"toy": 1}': "defaults.json:2:1: error: `toy` must be a table of `defaults`",
        '{\n"toy": {"defaults": 1}}': "defaults.json:2:9: error: `toy.defaults` must be a table",
        '{\n"toy": {"attribute_map": ["x"]}}': "2:9: error: `toy.attribute_map` must be a table",
        '{\n"toy": {"attribute_map": {"x": []}}}': "`toy.attribute_map.x` must be a string",
        '{\n"toy": {"nullable": 7}}': "2:9: error: `toy.nullable` must be an array",
        '{\n"toy": {"nullable": [{}]}}': "2:9: error: `toy.nullable.0` must be a string",
        '{\n"toy": {"mixed": "x"}}': "2:9: error: `toy.mixed` must be an array",
        '{\n"toy": {"default": {}}}': "2:9: error: `toy.default` is unknown: an entry",
    }.items(),
)
def test_defaults_of_another_form(
    text: str, message: str, toy: Path, own_families: Path, refused: Refused
) -> None:
    (own_families / "defaults.json").write_text(text)
    assert message in refused("lint", str(toy))

"""Error messages for invalid specs: every error of a file in one pass, at its place."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import struct
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import CASES, plain, rendered
from trials import KEYS, Refused, spec

import zoo
from zoo.budget import Budget
from zoo.cli import run
from zoo.files.hints import inside, near
from zoo.registry import load_registry
from zoo.reports.component import component_data, component_text
from zoo.resolving.usage import MAX_NOTES


@pytest.mark.parametrize(("marked", "expected"), CASES.values(), ids=CASES)
def test_each_mistake_is_told_at_its_place(
    marked: str, expected: list[tuple[str, ...]], refused: Refused
) -> None:
    Path("spec.toml").write_text(plain(marked))
    wanted = rendered(marked, expected)
    assert refused("validate", "spec.toml") == wanted
    assert refused("show", "spec.toml") == wanted


def test_a_name_that_is_too_long(refused: Refused) -> None:
    Path("spec.toml").write_text(spec(name=f'"{"a" * 128}"'))
    assert zoo.read_spec("spec.toml").name == "a" * 128
    Path("spec.toml").write_text(spec(name=f'"{"a" * 129}"'))
    assert "`name` has up to 128 of the letters A to Z and a to z, digits" in refused(
        "validate", "spec.toml"
    )


def test_all_that_one_key_breaks_is_told_once(refused: Refused) -> None:
    """`dropout` is read by every attention, feed-forward network, block and embedding."""
    Path("spec.toml").write_text(spec('dropout = "none"'))
    assert refused("validate", "spec.toml").count("error:") == 1


def test_a_wrong_value_hides_no_other_mistake(refused: Refused) -> None:
    """Errors that depend on a wrong value are not reported; all others are."""
    lines = ["dropout = nan", "share_embeddings = true", "[encoder]", "n_heads = 3"]
    Path("spec.toml").write_text(spec(*lines, source_vocab="12", n_layers="true"))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == [
        "`n_layers` must be an integer, not the boolean `true`",
        "`nan` is not a finite number",
        "d_model = 8 is not divisible by n_heads = 3; state `head_dim`, or change one of the two",
    ]
    Path("spec.toml").write_text(spec(*lines, source_vocab="12"))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == [
        "`nan` is not a finite number",
        "d_model = 8 is not divisible by n_heads = 3; state `head_dim`, or change one of the two",
    ]
    Path("spec.toml").write_text(spec(*lines[:2], source_vocab="12"))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == [
        "`nan` is not a finite number",
        "one token table cannot serve source_vocab = 12 and target_vocab = 11",
    ]


def test_what_only_follows_from_a_mistake_is_not_told(refused: Refused) -> None:
    """Rotary positions need the width of a head, which is unknown here."""
    Path("spec.toml").write_text(spec('position = "rotary"', n_heads="true", d_model="true"))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == [
        "`d_model` must be an integer, not the boolean `true`",
        "`n_heads` must be an integer, not the boolean `true`",
    ]
    Path("spec.toml").write_text(spec('attention = "mlti_hed"', 'position = "rotary"', 'ffn = "x"'))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == ["unknown attention `mlti_hed`", "unknown ffn `x`"]


def test_a_default_in_the_place_of_a_wrong_value_is_blamed_for_nothing(refused: Refused) -> None:
    """Without a share of tokens, `mask_id` would have no use; but a (wrong) share is stated."""
    Path("spec.toml").write_text(spec("[encoder.embedding]", "token_dropout = true", "mask_id = 3"))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == ["`token_dropout` must be a number, not the boolean `true`"]


def test_a_shared_key_is_missing_whatever_the_kind_should_be(refused: Refused) -> None:
    Path("spec.toml").write_text(spec('ffn = "mpl"', without="d_ff"))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == [
        "unknown ffn `mpl`",
        "the key `d_ff` is missing: `encoder.block.ffn.d_ff` and `decoder.block.ffn.d_ff` need it",
    ]


def test_one_vocabulary_for_a_model_with_two(refused: Refused) -> None:
    Path("spec.toml").write_text(spec(without="source_vocab").replace("target_", ""))
    told = re.findall("error: (.*)\n.*\n.*\n *= help: (.*)", refused("validate", "spec.toml"))
    assert told == [
        (
            "the key `source_vocab` is missing: `encoder.embedding` needs it",
            "add `source_vocab = ...`",
        ),
        (
            "the key `target_vocab` is missing: `decoder.embedding` needs it",
            "add `target_vocab = ...`",
        ),
        (
            "unknown key `vocab`",
            "`vocab` is a key of the builder `adapted_image_text_decoder`, "
            "`bidirectional_image_text_decoder`, `decoder`, "
            "`deepstack_image_text_decoder`, `encoder`, `glu_image_text_decoder`, "
            "`image_text_decoder`, `native_image_text_decoder`, `sound_text_decoder` or "
            "`tiled_image_text_decoder`",
        ),
    ]


def test_of_all_that_need_a_missing_key_two_are_named(refused: Refused) -> None:
    """Two self-attentions and a cross-attention have heads."""
    Path("spec.toml").write_text(spec(without="n_heads"))
    assert (
        "error: the key `n_heads` is missing: `encoder.block.self_attn.n_heads` and "
        "`decoder.block.self_attn.n_heads` and 1 more need it\n"
    ) in refused("validate", "spec.toml")


def test_the_names_that_are_allowed_are_listed_when_none_is_near(refused: Refused) -> None:
    Path("spec.toml").write_text(spec('init = "zzz"', "zzz = 1"))
    told = refused("validate", "spec.toml")
    kinds = zoo.load_registry().plugins["init"]
    listed = ", ".join(f"`{kind}`" for kind in sorted(kinds))
    assert 'error: unknown init `zzz`\n   10 | init = "zzz"\n      |        ^^^^^\n' in told
    assert f"      = help: allowed here: {listed}\n" in told
    keys = told.split("unknown key `zzz`")[1]
    assert all(f"`{key}`" in keys for key in KEYS)


ATTENTION = "`self_attn` and of `cross_attn`"


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("N = 6", "did you mean `n_layers`?"),
        ("h = 8", "did you mean `n_heads`?"),
        ("heads = 8", "did you mean `n_heads`?"),
        ("d_k = 4", "did you mean `head_dim`?"),
        ("d_v = 4", f"`v_head_dim` is a key of {ATTENTION}\n"),
        ("norm_first = true", "did you mean `norm_placement`?"),
        ("pre_norm = true", "did you mean `norm_placement`?"),
        (
            "hidden_act = 'gelu'",
            "`activation` is a key of `ffn`: write `ffn = { activation = ... }`",
        ),
        ("weight_tying = true", "`tied` is a key of `head`: write `head = { tied = ... }`"),
        (
            "scale = 1.0",
            f"`scale` is a key of `embedding` and of {ATTENTION} and of `head`\n",
        ),
        ('positional_encoding = "sinusoidal"', "did you mean `position`?"),
        ('attention = "mha"', "did you mean `multi_head`?"),
        ('attention = "mla"', "did you mean `latent`?"),
        ('builder = "transformer"', "did you mean `encoder_decoder`?"),
        ("num_encoder_layers = 6", "write `encoder = { n_layers = ... }`"),
        ("n_decoder_layers = 1", "write `decoder = { n_layers = ... }`"),
        ("parallel_residual = true", "did you mean `norm_placement`?"),
        ('norm_placement = "pre_norm"', "did you mean `pre`?"),
        ('position = { kind = "rotary", rotary_pct = 0.5 }', "did you mean `fraction`?"),
        ('position = { kind = "rotary", interleaved = true }', "did you mean `pairs`?"),
        ('position = "t5"', "did you mean `t5_buckets`?"),
        ('norm = "t5_norm"', "did you mean `rms_norm`?"),
        ('ffn = "relu"', "did you mean `mlp`?"),
        ("num_experts = 8", "`n_experts` is a key of the ffn `hash_moe`, `moe` or `normed_moe`"),
        (
            "final_logit_softcapping = 3.0",
            "`softcap` is a key of `self_attn` and of `cross_attn` and of `head`",
        ),
    ],
)
def test_words_of_papers_and_other_libraries(line: str, help: str, refused: Refused) -> None:
    text = spec(line)
    if line.startswith("builder"):
        text = re.sub("^builder = .*$", line, spec(), flags=re.MULTILINE)
    Path("spec.toml").write_text(text)
    assert f"      = help: {help}" in refused("validate", "spec.toml")


def test_a_key_with_dots_is_told_as_tables(project: Path) -> None:
    """TOML splits `decoder.n_layers`, and a dict of Python does not."""
    base = tomllib.loads(spec())
    for key, help in {
        "decoder.n_layers": "write `decoder = { n_layers = ... }`",
        "decoder.share_layers": "write `decoder = { share_layers = ... }`",
        "decoder.block.ffn.d_ff": "write `decoder = { block = { ffn = { d_ff = ... } } }`",
        "decoder.n_layer": "did you mean `decoder`?",
    }.items():
        with pytest.raises(zoo.SpecError) as raised:
            zoo.read_spec({**base, key: 3})
        (problem,) = raised.value.problems
        assert (problem.message, problem.help) == (f"unknown key `{key}`", help)


def test_of_many_nearer_values_the_first_are_told(refused: Refused) -> None:
    rule = ("[[encoder.layers]]", "first = 1", "block.ffn.d_ff = 6")
    stacks = ("[encoder.block.ffn]", "d_ff = 4", "[decoder.block.ffn]", "d_ff = 5")
    (Path("spec.toml")).write_text(spec(*stacks, *rule))
    told = refused("validate", "spec.toml")
    assert "`d_ff` has no effect" in told
    assert told.count("note: `d_ff` is stated nearer here") == MAX_NOTES


def test_mistakes_of_one_line_are_told_from_left_to_right(refused: Refused) -> None:
    """Also the unknown key, which is found before any value is checked."""
    line = 'ffn = { kind = "mlp", d_ff = "wide", zz = 1 }'
    Path("spec.toml").write_text(spec(line, without="d_ff"))
    told = re.findall(r"error: (.*)", refused("validate", "spec.toml"))
    assert told == [
        "`d_ff` must be an integer, not the string `wide`",
        "unknown key `zz` in `ffn`",
    ]


def test_several_specs_are_all_reported(refused: Refused, project: Path) -> None:
    for name, heads in {"a": "3", "b": "5"}.items():
        (project / f"{name}.toml").write_text(spec(n_heads=heads))
    told = refused("validate", "a.toml", "b.toml")
    assert [line for line in told.split("\n") if ": error: " in line] == [
        f"{name}.toml:8:11: error: d_model = 8 is not divisible by n_heads = {heads}; "
        "state `head_dim`, or change one of the two"
        for name, heads in (("a", 3), ("b", 5))
    ]


# --- texts --------------------------------------------------------------------------------------


def test_the_caret_stands_below_its_word_in_a_terminal(refused: Refused) -> None:
    """A tab counts as one column, a wide character as two, an accent as zero."""
    text = spec('\tffn\t=\t{ "日本" = 1, "e\u0301" = 1, activatoin = "relu" }')
    Path("spec.toml").write_text(text)
    told = refused("validate", "spec.toml").split("\n")
    column = text.split("\n")[9].index("activatoin")
    at = told.index(f"spec.toml:10:{column + 1}: error: unknown key `activatoin` in `ffn`")
    assert told[at + 1] == '   10 |  ffn = { "日本" = 1, "e\u0301" = 1, activatoin = "relu" }'
    # The two ideographs take two columns more than they have characters, the accent one less.
    assert told[at + 2] == "      | " + " " * (column + 2 - 1) + "^" * len("activatoin")


def test_line_ends_of_windows_and_a_byte_order_mark(refused: Refused, project: Path) -> None:
    text = spec("n_head = 2")
    (project / "spec.toml").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert refused("validate", "spec.toml") == (
        "spec.toml:10:1: error: unknown key `n_head`\n"
        "   10 | n_head = 2\n"
        "      | ^^^^^^\n"
        "      = help: did you mean `n_heads`?\n"
    )
    good = b"\xef\xbb\xbf" + spec().replace("\n", "\r\n").encode()
    (project / "spec.toml").write_bytes(good)
    assert zoo.read_spec("spec.toml").digest == zoo.read_spec(spec()).digest


def test_no_character_of_a_file_commands_the_terminal(refused: Refused, project: Path) -> None:
    """Quoted lines and names hold no escape character, and a NUL is refused."""
    (project / "spec.toml").write_bytes(spec('"a\\u001b[2J\\u0000b" = 1').encode())
    told = refused("validate", "spec.toml")
    assert "unknown key `a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b`" in told
    for raw in (b"\x00", b"\x1b[2J", b"\x7f"):
        (project / "spec.toml").write_bytes(spec().encode() + b"# a" + raw + b"b\n")
        told = refused("validate", "spec.toml")
        assert told.startswith("spec.toml:10:4: error: not TOML: found invalid character")
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", told)


def test_not_utf_8(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_bytes(spec().encode() + b"# \xc3\xa9 \xe9\n")
    assert refused("validate", "spec.toml").startswith("spec.toml:10:5: error: not UTF-8: ")
    (project / "spec.toml").write_bytes(spec().encode() + b"# caf\xe9\n")
    assert refused("validate", "spec.toml") == (
        "spec.toml:10:6: error: not UTF-8: the byte 0xe9\n"
        "   10 | # caf\N{REPLACEMENT CHARACTER}\n"
        "      |      ^\n"
        "      = help: save the file as UTF-8\n"
    )
    (project / "spec.toml").write_bytes(spec().encode("utf-16"))
    assert refused("validate", "spec.toml").startswith("spec.toml:1:1: error: not UTF-8: ")


@pytest.mark.parametrize("content", [b"", b"\n\n  \n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("command", ["validate X", "train X -o out", "--registry X list"])
def test_an_empty_file(content: bytes, command: str, refused: Refused, project: Path) -> None:
    """A spec, a recipe or a registry."""
    (project / "my.toml").write_bytes(content)
    told = refused(*command.replace("X", "my.toml").split())
    assert told.startswith("my.toml:1:1: error: the file is empty\n")
    assert "help: add `format = 1`; a spec also states a `name` and a `builder`" in told


def test_a_file_of_comments_misses_every_key(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text("# nothing\n")
    told = refused("validate", "spec.toml")
    missing = [
        f"spec.toml:1:1: error: the key `{key}` is missing" for key in ("name", "format", "builder")
    ]
    assert [line for line in told.split("\n") if "error" in line] == missing


def test_files_that_are_not_there(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(spec())
    (project / "folder").mkdir()
    assert refused("validate", "speck.toml") == (
        "error: `speck.toml` does not exist\n      = help: did you mean `spec.toml`?\n"
    )
    assert refused("show", "spec") == (
        "error: there is no file and no model `spec`\n      = help: did you mean `spec.toml`?\n"
    )
    (project / "dangling.toml").symlink_to("nothing")
    (project / "base.toml").write_text(spec())  # a nearer name than `t5-base`, which is registered
    assert "did you mean `base.toml`?" in refused("show", "base")
    (project / "folder.toml").mkdir()
    assert refused("validate", "dangling.toml") == (
        "error: `dangling.toml` is a link that leads nowhere\n"
    )
    for other in ("dangling", "folder"):  # only files are proposed
        assert f"did you mean `{other}" not in refused("validate", f"{other}s.toml")
        (project / "child.toml").write_text(f'format = 1\nname = "a"\nextends = "{other}"\n')
        assert f"did you mean `{other}" not in refused("validate", "child.toml")
    assert "did you mean `vaswani-base`?" in refused("validate", "vaswani_base")
    assert refused("validate", "spec.toml/x.toml") == (
        "error: `spec.toml/x.toml` cannot be read: Not a directory\n"
    )
    for command in ("table", "load"):
        told = refused(command, "vaswani*")
        assert "help: a pattern is for `zoo list models 'vaswani*'`, which lists" in told
    assert "there is no file and no model" in refused("show", "x" * 5000)
    assert "cannot be read: File name too long" in refused("validate", "x" * 5000 + ".toml")
    with pytest.raises(zoo.SpecError, match="is not a path"):
        zoo.read_spec("a\0b.toml")


@pytest.mark.parametrize(
    "command",
    [
        "load {}",
        "run {} text",
        "verify {}",
        "push {} to --license MIT",
        "import {} -o to",
        "bundle verify {}",
        "bundle make {} to",
    ],
)
@pytest.mark.parametrize("ending", ["", ".safetensors"])
def test_names_that_are_too_long_for_the_system(
    command: str, ending: str, refused: Refused
) -> None:
    assert "error" in refused(*command.format("x" * 300 + ending).split())


@pytest.mark.parametrize(
    "command",
    [
        ("show",),
        ("validate",),
        ("run",),
        ("load",),
        ("score",),
        ("verify",),
        ("rm",),
        ("pull",),
        ("import",),
        ("build", "-o", "out"),
        ("export", "--to", "hf", "-o", "out"),
    ],
    ids=lambda command: command[0],
)
def test_the_end_of_a_long_path_is_told(command: tuple[str, ...], refused: Refused) -> None:
    """That is where a typo would be."""
    path = "/".join(["nowhere" * 3] * 6)
    assert f"{path}/end" in refused(command[0], f"{path}/end", *command[1:])


def test_a_registry_that_is_a_link_to_itself(refused: Refused, project: Path) -> None:
    (project / "loop.toml").symlink_to("loop.toml")
    told = refused("--registry", "loop.toml", "list")
    assert told == "error: `loop.toml` cannot be read: Too many levels of symbolic links\n"


def test_a_folder_in_the_place_of_a_file(refused: Refused, project: Path) -> None:
    """The message lists the files in it."""
    (project / "folder").mkdir()

    def told(help: str) -> None:
        for command in ("show", "validate", "train"):
            assert refused(command, "folder") == (
                f"error: `folder` is a directory\n      = help: {help}\n"
            )
        assert refused("load", "folder") == (
            "folder/model.safetensors: error: there is no such weights file\n"
            f"      = help: {help}\n"
        )

    told("the folder is empty")
    for name in (".hidden", "registry.toml", "a.txt", "b.txt", "c.txt", "d.txt"):
        (project / "folder" / name).write_text("")
    told(
        "there is no spec (.toml) and no .safetensors in it, but `a.txt`, `b.txt`, `c.txt`, "
        "`d.txt` and 1 more"
    )
    (project / "folder" / "config.json").write_text("{}")
    told("`zoo import folder` makes a model of a published checkpoint")
    (project / "folder" / "a.toml").write_text(spec())
    (project / "folder" / "deeper").mkdir()
    told("name what is meant: `folder/a.toml`")
    zoo.save(zoo.build("folder/a.toml"), "folder/deeper")
    told("name what is meant: `folder/a.toml`, `folder/deeper`")
    assert "did you mean `folder/deeper/model.safetensors`?" in refused(
        "show", "folder/deeper/modle.safetensors"
    )


def test_a_saved_model_in_the_place_of_a_spec(refused: Refused, project: Path) -> None:
    zoo.save(zoo.build(spec()), "tiny/model.safetensors")
    for command in ("build", "validate", "train", "lock", "import"):
        told = refused(command, "tiny")
        assert "help: `tiny` holds weights; if the zoo has saved them, `zoo show tiny --" in told
        assert told.endswith("spec, which in Python is `zoo.load(...).spec`\n")
    told = refused("build", "tiny/model.safetensors")
    assert told.startswith("tiny/model.safetensors: error: this is not a TOML file\n")
    assert "`zoo show tiny/model.safetensors --resolved` prints their spec" in told


def test_shards_in_the_place_of_a_spec(refused: Refused, project: Path) -> None:
    zoo.save(zoo.build(spec()), "around/shards", max_shard_bytes=2000)
    assert not (project / "around" / "shards" / "model.safetensors").exists()
    assert "help: `around/shards` holds weights; if" in refused("build", "around/shards")
    assert "help: name what is meant: `around/shards`\n" in refused("build", "around")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("d_head", "did you mean `head_dim`?"),  # and neither `head`
        ("dim_head", "did you mean `head_dim`?"),  # nor `n_heads`
        ("d_mlp", "did you mean `d_ff`?"),  # nor `d_model`
        ("window_size", "`window` is a key of "),
    ],
)
def test_what_other_libraries_call_a_key(
    written: str, told: str, refused: Refused, project: Path
) -> None:
    (project / "spec.toml").write_text(f"{written} = 4\n{spec()}")
    assert told in refused("validate", "spec.toml")


def test_a_text_that_ends_too_early(refused: Refused, project: Path) -> None:
    """The line after the end is not quoted."""
    (project / "spec.toml").write_text("format = 1\na = [1,\n\n")
    told = refused("validate", "spec.toml")
    assert told.startswith("spec.toml:2:8: error: not TOML: ")
    assert told.splitlines()[1:3] == ["    2 | a = [1,", "      |        ^"]


OTHER_FORMATS = {
    "prose": ("# A model\n\nIt is small.\n- 2 layers\n- [width](#width) 64\n> done\n", 3),
    "YAML": ("model:\n  layers: 2\n  width: 64\nname: small\n", 1),
    "SVG": ('<svg xmlns="http://www.w3.org/2000/svg">\n<title>a</title>\n<rect/>\n</svg>\n', 1),
    "Python": ("import torch\n\n\ndef build(n):\n    layers = n\n    return layers\n", 1),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_a_file_of_another_format_is_one_mistake(
    name: str, refused: Refused, project: Path
) -> None:
    text, line = OTHER_FORMATS[name]
    (project / "notes.md").write_text(text)
    told = refused("validate", "notes.md")
    assert told.startswith(f"notes.md:{line}:1: error: this is not TOML\n")
    assert told.count("error:") == 1


def test_a_picture_in_the_place_of_a_spec(refused: Refused, project: Path) -> None:
    (project / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert refused("validate", "a.png") == "a.png: error: this is not TOML, but a binary file\n"


WEIGHTS_ELSEWHERE = {  # the first bytes, as the descriptions of these formats have them
    "a GGUF file": b"GGUF" + struct.pack("<IQQ", 3, 291, 24),
    "an HDF5 file, as Keras writes": b"\x89HDF\r\n\x1a\n" + bytes(8),
    "an archive, as `torch.save` writes": b"PK\x03\x04" + bytes(26),
    "a pickle": pickle.dumps({"weight": bytes(8)}, protocol=2),
    "an ONNX file": b"\x08\x0a\x12\x07pytorch\x1a\x052.9.0" + bytes(8),
}


@pytest.mark.parametrize("name", WEIGHTS_ELSEWHERE)
def test_weights_in_another_format(name: str, refused: Refused, project: Path) -> None:
    """Wherever such a file is named, it is called what it is, with what to do."""
    (project / "model").write_bytes(WEIGHTS_ELSEWHERE[name])
    told = {
        "show": "this is not TOML",
        "load": "not a safetensors file",
        "import": "this is not a folder",
    }
    for command, message in told.items():
        output = ("-o", "out") if command == "import" else ()
        error = refused(command, "model", *output)
        assert error.startswith(f"model: error: {message}, but {name}\n      = help: ")
        assert "`zoo import` reads" in error


def test_a_text_that_begins_as_another_format_does(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(f"GGUF = 1\nPK = 2\n{spec()}")
    told = refused("validate", "spec.toml")
    assert "spec.toml:1:1: error: unknown key `GGUF`" in told


def test_a_spec_in_yaml(refused: Refused, project: Path) -> None:
    (project / "spec.yaml").write_text("format: 1\nname: x\n")
    told = refused("validate", "spec.yaml")
    assert "help: a key and its value have `=` between them: `format = ...`" in told
    assert "help: a key and its value have `=` between them: `name = ...`" in told


def test_a_spec_in_json(refused: Refused, project: Path) -> None:
    text = json.dumps(tomllib.loads(spec()))
    (project / "spec.json").write_text(text)
    told = refused("validate", "spec.json")
    assert "`zoo.read_spec(json.load(file)).to_toml()` makes TOML of a spec" in told
    (project / "spec.toml").write_text(zoo.read_spec(json.loads(text)).to_toml())
    assert zoo.read_spec("spec.toml") == zoo.read_spec(json.loads(text))


def test_a_text_before_the_model(refused: Refused, project: Path) -> None:
    (project / "a b").mkdir()
    (project / "a b" / "model.safetensors").touch()
    told = refused("run", "Hello there", "a b")
    assert "Error: MODEL comes before TEXT: `zoo run 'a b' 'Hello there'`" in told
    # Of a model that is there, the text may be anything.
    assert "comes before" not in refused("run", "gpt2", "a b")
    assert "comes before" not in refused("run", "a b", "a b")


def test_a_spec_with_many_mistakes_is_told_all_of_them(refused: Refused, project: Path) -> None:
    """As one with the quotes of a text processor."""
    words = ["name", "builder", "position", "norm", "ffn"]
    text = "\n\n\n".join(f"{word} = \u201cx\u201d" for word in words)
    (project / "spec.toml").write_text(f"{text}\nn_layers 2\n", "utf-8")
    told = refused("validate", "spec.toml")
    assert told.count("error: not TOML: ") == len(words) + 1


def test_a_file_may_be_as_large_as_the_budget_says(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(text := spec())
    assert run(["--budget", f"file_size={len(text)}", "validate", "spec.toml"]) == 0
    told = refused("--budget", f"file_size={len(text) - 1}", "validate", "spec.toml")
    assert told.startswith(f"spec.toml: error: larger than {len(text) - 1} bytes\n")


def test_a_last_line_without_an_end_is_quoted(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(spec("zzz = 1").rstrip("\n"))
    assert "   10 | zzz = 1\n      | ^^^\n" in refused("validate", "spec.toml")


def test_a_folder_that_is_named_as_weights(refused: Refused, project: Path) -> None:
    (project / "out.safetensors").mkdir()
    assert refused("validate", "out.safetensors") == (
        "error: `out.safetensors` is a directory\n      = help: the folder is empty\n"
    )


@pytest.mark.parametrize(
    ("line", "column", "what"), [("a.b.c = 1", 4, "keys"), ("a = [[[1]]]", 7, "values")]
)
def test_the_budget_says_how_deep_keys_nest(
    line: str, column: int, what: str, refused: Refused, project: Path
) -> None:
    """In a file, and in data."""
    (project / "spec.toml").write_text(spec(line))
    told = refused("--budget", "key_depth=2", "validate", "spec.toml")
    assert told.startswith(f"spec.toml:10:{column}: error: {what} are nested more than 2 deep\n")
    assert told.count("error:") == 1
    assert "unknown key `a`" in refused("--budget", "key_depth=3", "validate", "spec.toml")
    shallow = zoo.load_registry(budget=Budget(key_depth=2))
    with pytest.raises(zoo.SpecError, match="keys are nested more than 2 deep"):
        zoo.read_spec({"a": {"b": {"c": 1}}}, registry=shallow)


def test_of_the_keys_of_an_unknown_kind_nothing_is_said(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(spec('ffn = { kind = "qqqqqqqq", width = 5 }'))
    told = refused("validate", "spec.toml")
    assert "unknown ffn `qqqqqqqq`" in told
    assert told.count("error:") == 1


def test_the_budget_says_how_deep_components_nest(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(spec())
    told = refused("--budget", "key_depth=3", "validate", "spec.toml")
    assert "components are nested more than 3 deep: `encoder.block.self_attn.norm" in told
    assert run(["--budget", "key_depth=4", "validate", "spec.toml"]) == 0


def test_a_folder_with_the_name_of_a_file_is_not_meant(tmp_path: Path) -> None:
    for name in ("spec.toml", "weights.safetensors"):
        (tmp_path / name).mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("")
    held = "`a.txt`, `b.txt`, `spec.toml`, `weights.safetensors`"
    told = f"there is no spec (.toml) and no .safetensors in it, but {held}"
    assert inside(tmp_path) == near(tmp_path / "wights.safetensors") == told
    assert near(tmp_path / "spec.toml") == "the folder is empty"


def test_a_folder_that_is_gone_meanwhile(tmp_path: Path) -> None:
    assert inside(tmp_path / "gone") == "the folder cannot be read: No such file or directory"


def test_a_published_checkpoint_in_the_place_of_a_spec(refused: Refused, project: Path) -> None:
    (project / "theirs").mkdir()
    (project / "theirs" / "model.safetensors").write_bytes(b"")
    (project / "theirs" / "config.json").write_text("{}")
    for command in ("build", "validate", "train"):
        assert "help: `zoo import theirs` makes a model of a" in refused(command, "theirs")


def test_a_command_that_is_advised_can_be_typed(refused: Refused, project: Path) -> None:
    zoo.save(zoo.build(spec()), "a model")
    told = refused("build", "a model")
    (advised,) = re.findall("`zoo (show .*?)`", told)
    assert shlex.split(advised) == ["show", "a model", "--resolved"]


def test_the_nearest_of_what_there_is(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(spec())
    model = zoo.build("spec.toml")
    zoo.save(model, "mine")
    zoo.save(model, "other/weights.safetensors")
    for command, *rest in (["show"], ["load"], ["run", "text"]):
        assert "did you mean `mine`?" in refused(command, "mien", *rest)
        told = refused(command, "other/weights.safetensor", *rest)
        assert "did you mean `other/weights.safetensors`?" in told
        assert "did you mean `gpt2.openai`?" in refused(command, "gpt2.openi", *rest)
    told = refused("bundle", "make", "nowhere", "made")
    assert "no such weights file\n      = help: there is no folder `nowhere`" in told
    assert "did you mean `spec.toml`?" in refused("lock", "spec.tml")
    assert "no file `vaswani-base`\n      = help: it is the name of a model" in refused(
        "lock", "vaswani-base"
    )
    assert "did you mean `bert`?" in refused("lint", "bertt")
    assert "`zoo load gpt2.openai` loads it" in refused("build", "gpt2.openai")
    told = refused("build", "ffn.glu")
    assert "`ffn.glu` is a component, not a model\n      = help: `zoo show ffn.glu` says" in told


def test_a_key_in_the_place_of_a_model(refused: Refused) -> None:
    """It is told which command explains it, and that one does."""
    meanings = {
        "d_model": "The width of the residual stream.",
        "n_heads": "The number of query heads.",
    }
    for key, meaning in meanings.items():
        told = refused("show", key)
        assert told.startswith(
            f"error: `{key}` is a key of specs, not a model\n      = help: `zoo show "
        )
        (component, *_) = re.findall("`zoo show (.*?)`", told)
        slot, kind = component.split(".")
        described = component_text(component_data(load_registry(), slot, kind), load_registry())
        assert re.search(rf"  {key}: .*\n(?:      .*\n)*? +{meaning}", described)


def test_an_error_is_the_same_in_another_process(project: Path) -> None:
    """For example from a worker that loads data, or from a test run by xdist."""
    (project / "spec.toml").write_text(spec("typo = 1", n_layers="0"))
    with pytest.raises(zoo.SpecError) as raised:
        zoo.read_spec("spec.toml")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), again.problems) == (zoo.SpecError, raised.value.problems)
    assert str(again) == str(raised.value)


def test_json_is_told_as_such(refused: Refused, project: Path) -> None:
    (project / "config.json").write_text('{\n  "model_type": "llama",\n  "n": 1\n}\n')
    assert refused("show", "config.json") == (
        "config.json:1:1: error: not TOML, but JSON\n    1 | {\n      | ^\n"
        "      = help: `zoo import` reads the folder of a config.json\n"
    )


HOSTILE: dict[str, tuple[str, str]] = {
    "one key of many parts": (
        ".".join(["a"] * 40_000) + " = 1",
        "keys are nested ",
    ),
    "a head of many parts": (
        "[" + ".".join(["a"] * 40_000) + "]",
        "keys are nested ",
    ),
    "spaces and quotes": (' . "a"' * 13_000, "keys are nested "),
    "lines of dotted keys": (
        "\n".join(".".join(["a"] * 30) + f".k{i} = 1" for i in range(1200)),
        "unknown key `a`",
    ),
    "heads of tables": (
        "\n".join("[" + ".".join(["a"] * 30) + f".k{i}]" for i in range(1200)),
        "unknown key `a`",
    ),
    "many keys": ("\n".join(f"k{i} = 1" for i in range(8000)), "and 7,950 more errors"),
    "many wrong items": ("self_attn.bias = [" + "0," * 20_000 + "]", "and 19,950 more errors"),
    "many tables": ("[[a]]\n" * 13_000, "unknown key `a`"),
    "one key many times": ("x = 1\n" * 13_000, "`x` is written twice"),
    "brackets": ("x = " + "[" * 80_000, "values are nested "),
    "brackets behind four quotes": ('x = ["""a"""", ' + "[" * 80_000, "values are nested "),
    "brackets behind four apostrophes": ("x = ['''a'''', " + "[" * 80_000, "values are nested "),
    "brackets that a wrong line hides": ('x """\ny = ' + "[" * 80_000, "values are nested "),
    "braces": ("x = " + "{a=" * 26_000, "values are nested "),
    "a long key": ("a" * 80_000 + " = 1", "unknown key `aaa"),
    "a long kind": (f'ffn = "{"a" * 80_000}"', "unknown ffn `aaa"),
    "errors on every line": ("\n".join(f"x{i} = " for i in range(8000)), "not TOML: invalid value"),
    "escaped quotes": ('x = "' + '\\"' * 40_000, "the string is not closed on its line"),
    "a long number": ("max_length = " + "9" * 80_000, "the integer is beyond"),
    "a long hexadecimal number": ("max_length = 0x" + "f" * 80_000, "the integer is beyond"),
    "a long exponent": ("dropout = 1e" + "9" * 80_000, "`inf` is not a finite number"),
    "an array of nan": ("bias = [" + "nan," * 20_000 + "]", "`nan` is not a finite number"),
}


@pytest.mark.parametrize(("line", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused_fast(line: str, message: str, refused: Refused) -> None:
    Path("spec.toml").write_text(spec(line))
    start = time.process_time()  # CPU time of this process, since others may keep the machine busy
    told = refused("validate", "spec.toml")
    # Not a measure of speed: a quadratic algorithm takes minutes for such a text.
    assert time.process_time() - start < 20
    assert message in told
    assert len(told) < 40_000


def test_all_syntax_errors_are_told_together_and_once(refused: Refused, project: Path) -> None:
    lines = ('name = "b"', "é = 1", 'x = "a\\', "", "d_ff = " + "9" * 5000)
    (project / "spec.toml").write_text(spec(*lines))
    told = [line for line in refused("validate", "spec.toml").split("\n") if "error" in line]
    assert [line.split(": error: ")[1][:20] for line in told] == [
        "`name` is written tw",
        "not TOML: invalid st",
        "not TOML: unescaped ",
        "`d_ff` is written tw",
    ]
    text = 'x = { "é" = 1, "é" = 2 }\ny = 1\ny = 2\nz = ' + "9" * 5000
    (project / "spec.toml").write_text(text)
    told = [line for line in refused("validate", "spec.toml").split("\n") if "error" in line]
    assert told == [
        "spec.toml:1:16: error: `x.é` is written twice",
        "spec.toml:3:1: error: `y` is written twice",
        "spec.toml:4:5: error: the integer is beyond 9,007,199,254,740,991, the largest that every "
        "JSON reader keeps",
    ]


def test_deep_keys_in_comments_and_strings_are_no_keys(project: Path) -> None:
    long = ".".join(["a"] * 100) + "[" * 100
    text = spec(f"# {long}", f"max_length = 9 # {long}")
    assert zoo.read_spec(text) == zoo.read_spec(spec("max_length = 9"))
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(spec(f'ffn = "{long}"'))
    assert caught.value.problems[0].message.startswith("unknown ffn")


def test_a_file_that_is_too_large(refused: Refused) -> None:
    Path("spec.toml").write_text(spec("#" * 300_000))
    told = refused("validate", "spec.toml")
    assert re.match(r"spec\.toml: error: .*larger than", told)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 3}, "<data>: n_heads: error: d_model = 8 is not divisible by n_heads = 3"),
        ({"n_head": 3}, "<data>: n_head: error: unknown key `n_head`"),
        (
            {"d_ff": None},
            "<data>: d_ff: error: `None` has no place in a spec\n      = help: leave the key out",
        ),
        (
            {"d_ff": np.int64(16)},
            "<data>: d_ff: error: an int64 has no place in a spec\n"
            "      = help: `.item()` makes a plain number of it",
        ),
        (
            {"extends": zoo.read_spec("gpt2")},
            "<data>: extends: error: a ModelSpec has no place in a spec\n"
            "      = help: name the file or the model that it was read from; of a dict, use `{**",
        ),
        (
            {"extends": {"format": 1}},
            "<data>: extends: error: `extends` names one spec, without folders or an ending\n"
            "      = help: `{**base, ...}` is a dict with other values",
        ),
        ({"d_ff": 2**60}, "<data>: d_ff: error: the integer is beyond"),
        ({"dropout": float("nan")}, "<data>: dropout: error: `nan` is not a finite number"),
        ({"ffn": {1: 2}}, "<data>: ffn: error: the key `1` is not a string"),
        ({"ffn": {"kind": {"mlp"}}}, "<data>: ffn.kind: error: a set has no place in a spec"),
        ({"d_ff": True}, "<data>: d_ff: error: `d_ff` must be an integer, not the boolean `true`"),
    ],
)
def test_plain_data_is_checked_like_text(change: dict[str, Any], message: str) -> None:
    data = {
        "format": 1,
        "name": "data",
        "builder": "decoder",
        "vocab": 10,
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 16,
    }
    zoo.read_spec(data)
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(data | change)
    assert str(caught.value).startswith(message)
    assert len(caught.value.problems) == 1


def test_data_without_end_is_refused() -> None:
    data: dict[str, Any] = {"format": 1, "name": "data", "builder": "decoder"}
    data["encoder"] = data
    array: list[Any] = []
    array.append(array)
    for endless in (data, {**data, "encoder": array}):
        with pytest.raises(zoo.SpecError, match="are nested "):
            zoo.read_spec(endless)


def test_a_dimension_that_is_wrong_is_not_told_again_by_what_needs_it() -> None:
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    data = {"format": 1, "name": "bad", "builder": "decoder", "vocab": "x", **sizes}
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(data)
    assert [problem.message for problem in caught.value.problems] == [
        "`vocab` must be an integer, not the string `x`"
    ]


def test_what_contradicts_a_component_beside_it_is_shown_there() -> None:
    """The scheme gets the width of a head from the attention, where the width is stated."""
    attention = 'attention = { kind = "multi_head", head_dim = 5 }'
    text = spec('position = "rotary"', attention)
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(text)
    place = caught.value.problems[0].place
    assert place is not None
    assert text.split("\n")[(place.line or 0) - 1] == attention
    assert attention[(place.column or 0) - 1 :].startswith("5 ")

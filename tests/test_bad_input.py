"""What the zoo says of input that is wrong: every error of a file in one pass, at its place."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import zoo
from zoo.cli import run

KEYS = {
    "format": "1",
    "name": '"bad"',
    "builder": '"encoder_decoder"',
    "source_vocab": "10",
    "target_vocab": "11",
    "n_layers": "2",
    "d_model": "8",
    "n_heads": "2",
    "d_ff": "16",
}


def spec(*lines: str, without: str = "", **keys: str) -> str:
    """A small valid spec, with some keys replaced or left out and lines added."""
    stated = {key: value for key, value in {**KEYS, **keys}.items() if key != without}
    return "".join(f"{key} = {value}\n" for key, value in stated.items()) + "".join(
        f"{line}\n" for line in lines
    )


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without a user's registry."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


Refused = Callable[..., str]


@pytest.fixture
def refused(project: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must fail as a user's mistake does, and returns what it says."""

    def check(*arguments: str) -> str:
        before = contents(project)
        assert run(arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert "Traceback" not in output.err
        assert contents(project) == before
        return output.err

    return check


# --- what one file can have wrong ---------------------------------------------------------------

MARKS = re.compile(r"«(.*?)»|‹(.*?)›")


def rendered(marked: str, expected: list[tuple[str, ...]], file: str = "spec.toml") -> str:
    """What must be said of a text with marks: «» where each error is, in order, and ‹› where its
    notes are. An error is its message, then its notes' messages, then `help: ...`, if any."""
    text = MARKS.sub(lambda found: found[1] or found[2] or "", marked)
    lines, places, shift = text.split("\n"), {"«": [], "‹": []}, 0
    for found in MARKS.finditer(marked):
        start = found.start() - shift
        shift += 2
        row = text.count("\n", 0, start)
        column = start - (text.rfind("\n", 0, start) + 1)
        places[found[0][0]].append((row, column, max(1, len(found[1] or found[2] or ""))))

    def shown(kind: str, mark: str, message: str) -> str:
        row, column, width = places[mark].pop(0)
        return (
            f"{file}:{row + 1}:{column + 1}: {kind}: {message}\n"
            f"{row + 1:>5} | {lines[row]}\n"
            f"      | {' ' * column}{'^' * width}\n"
        )

    told = ""
    for message, *rest in expected:
        told += shown("error", "«", message)
        for line in rest:
            told += f"      = {line}\n" if line.startswith("help: ") else shown("note", "‹", line)
    assert not any(places.values()), "a mark that no error is expected at"
    return told


def plain(marked: str) -> str:
    return MARKS.sub(lambda found: found[1] or found[2] or "", marked)


CASES: dict[str, tuple[str, list[tuple[str, ...]]]] = {
    "unknown key": (
        spec("«n_head» = 2"),
        [("unknown key `n_head`", "help: did you mean `n_heads`?")],
    ),
    "unknown key in a table": (
        spec("[encoder]", "«d_modell» = 8"),
        [("unknown key `d_modell` in `encoder`", "help: did you mean `d_model`?")],
    ),
    "unknown key in an inline table": (
        spec('ffn = { kind = "mlp", «activatoin» = "relu" }'),
        [("unknown key `activatoin` in `ffn`", "help: did you mean `activation`?")],
    ),
    "unknown dotted key": (
        spec('encoder.block.ffn.«activatoin» = "relu"'),
        [("unknown key `activatoin` in `encoder.block.ffn`", "help: did you mean `activation`?")],
    ),
    "a key of another table": (
        spec("«eps» = 1e-5"),
        [("unknown key `eps`", "help: `eps` is a key of `encoder.block.self_attn.norm`")],
    ),
    "a boolean for an integer": (
        spec(d_ff="«true»"),
        [("`d_ff` must be an integer, not the boolean `true`",)],
    ),
    "a float for an integer": (
        spec(d_ff="«16.0»"),
        [("`d_ff` must be an integer, not the float `16.0`",)],
    ),
    "a string for an integer": (
        spec(n_layers='«"2"»'),
        [("`n_layers` must be an integer, not the string `2`",)],
    ),
    "a table for an integer": (
        spec(d_ff="«{ a = 1 }»"),
        [("`d_ff` must be an integer, not a table",)],
    ),
    "an array for an integer": (
        spec(d_ff="«[16]»"),
        [("`d_ff` must be an integer, not an array",)],
    ),
    "a boolean for a number": (
        spec("dropout = «true»"),
        [("`dropout` must be a number, not the boolean `true`",)],
    ),
    "an integer for a boolean": (
        spec("share_embeddings = «1»"),
        [("`share_embeddings` must be `true` or `false`, not the integer `1`",)],
    ),
    "an integer for a string": (
        spec(name="«3»"),
        [("`name` must be a string, not the integer `3`",)],
    ),
    "an integer for a table": (
        spec("encoder = «3»"),
        [
            (
                "`encoder` must be a table, not the integer `3`",
                "help: write its keys below `[encoder]`",
            )
        ],
    ),
    "an item of an array": (
        spec('attention = { kind = "multi_head", bias = ["q", «"vv"»] }'),
        [
            (
                "`bias` must be one of `q`, `k`, `v`, `o`, not the string `vv`",
                "help: did you mean `v`?",
            )
        ],
    ),
    "one of several types": (
        spec("""embedding = { kind = "tokens", scale = «"sqrt_d"» }"""),
        [
            (
                "`scale` must be a number or `sqrt_d_model`, not the string `sqrt_d`",
                "help: did you mean `sqrt_d_model`?",
            )
        ],
    ),
    "below the least value": (
        spec(n_layers="«0»"),
        [("`n_layers` must be at least 1, not the integer `0`",)],
    ),
    "beyond the range": (
        spec("dropout = «1.5»"),
        [("`dropout` must be less than 1, not the float `1.5`",)],
    ),
    "another word": (
        spec('norm_placement = «"prre"»'),
        [
            (
                "`norm_placement` must be one of `pre`, `post`, `sandwich`, `post_branch`, "
                "`parallel`, not the string `prre`",
                "help: did you mean `pre`?",
            )
        ],
    ),
    "an unknown kind": (
        spec('ffn = «"mpl"»'),
        [("unknown ffn `mpl`", "help: did you mean `mlp`?")],
    ),
    "an unknown kind in a table": (
        spec('norm = { kind = «"rms"», eps = 1e-5 }'),
        [("unknown norm `rms`", "help: did you mean `rms_norm`?")],
    ),
    "an unknown builder": (
        spec(builder='«"encoder_decodr"»'),
        [("unknown builder `encoder_decodr`", "help: did you mean `encoder_decoder`?")],
    ),
    "heads that do not divide the width": (
        spec(n_heads="«3»", d_model="‹8›"),
        [
            (
                "d_model = 8 is not divisible by n_heads = 3; state `head_dim`, or change one of "
                "the two",
                "`d_model` is here",
            )
        ],
    ),
    "keys that contradict each other": (
        spec(
            "share_embeddings = «true»",
            source_vocab="‹10›",
            target_vocab="‹11›",
        ),
        [
            (
                "one token table cannot serve source_vocab = 10 and target_vocab = 11",
                "`source_vocab` is here",
                "`target_vocab` is here",
            )
        ],
    ),
    "a missing key": (
        spec(builder='«"encoder_decoder"»', without="d_ff"),
        [
            (
                "the key `d_ff` is missing: `encoder.block.ffn.d_ff` and `decoder.block.ffn.d_ff` "
                "need it",
                "help: add `d_ff = ...`",
            )
        ],
    ),
    "a missing key at the top": (
        "«f»" + spec(without="name")[1:],
        [("the key `name` is missing", "help: add `name = ...` at the top")],
    ),
    "a key without effect": (
        spec("[encoder]", "n_heads = 2", "[decoder]", "n_heads = 4").replace(
            "n_heads", "«n_heads»", 1
        ),
        [
            (
                "`n_heads` has no effect: all that read it state their own",
                "help: remove it, or the nearer values",
            )
        ],
    ),
    "a table without effect": (
        spec(
            '«norm» = { kind = "rms_norm" }',
            '[encoder]\nnorm = "layer_norm"',
            '[decoder]\nnorm = "layer_norm"',
        ),
        [
            (
                "`norm` has no effect: all that read it state their own",
                "help: remove it, or the nearer values",
            )
        ],
    ),
    "a name with a slash": (
        spec(name='«"a/b"»'),
        [("`name` is made of letters, digits, `-`, `_` and `.`",)],
    ),
    "a format of the future": (
        spec(format="«2»"),
        [("spec format 2 is not known", "help: this zoo reads format 1")],
    ),
    "a boolean for the format": (
        spec(format="«true»"),
        [("`format` must be an integer, not the boolean `true`",)],
    ),
    "a key written twice": (
        spec("«d_ff» = 32").replace("d_ff = 16", "‹d_ff› = 16"),
        [("`d_ff` is written twice", "first written here", "help: keep one of the two")],
    ),
    "a table written twice": (
        spec("[‹encoder›]", "n_layers = 1", "[decoder]", "[«encoder»]", "d_ff = 3"),
        [("`encoder` is written twice", "first written here", "help: keep one of the two")],
    ),
    "a key written twice in an inline table": (
        spec('ffn = { ‹kind› = "mlp", «kind» = "glu" }'),
        [("`ffn.kind` is written twice", "first written here", "help: keep one of the two")],
    ),
    "a key written twice, once quoted": (
        spec('«"d_ff"» = 32').replace("d_ff = 16", "‹d_ff› = 16"),
        [("`d_ff` is written twice", "first written here", "help: keep one of the two")],
    ),
    "an addition to an inline table": (
        spec('‹ffn› = { kind = "mlp" }', 'ffn.«activation» = "gelu"'),
        [
            (
                "`ffn.activation` adds to `ffn`, which is complete",
                "first written here",
                "help: write it where the other keys are",
            )
        ],
    ),
    "a table for a key that has a value": (
        spec('‹ffn› = "mlp"', "[ffn.«norm»]", "eps = 1e-5"),
        [
            (
                "`ffn.norm` adds to `ffn`, which is complete",
                "first written here",
                "help: write it where the other keys are",
            )
        ],
    ),
    "nan": (spec("dropout = «nan»"), [("`nan` is not a finite number",)]),
    "infinity": (spec("dropout = «-inf»"), [("`-inf` is not a finite number",)]),
    "a date": (spec("dropout = «1979-05-27»"), [("a date has no place in a spec",)]),
    "a time": (spec("dropout = «07:32:00»"), [("a time has no place in a spec",)]),
    "a date and time": (
        spec("dropout = «1979-05-27T07:32:00Z»"),
        [("a datetime has no place in a spec",)],
    ),
    "nan in an array": (
        spec('attention = { kind = "multi_head", bias = ["q", «nan»] }'),
        [("`nan` is not a finite number",)],
    ),
    "an integer that JSON cannot keep": (
        spec("max_length = «9007199254740993»"),
        [
            (
                "the integer is beyond 9,007,199,254,740,991, the largest that every JSON reader "
                "keeps",
            )
        ],
    ),
    "a string without quotes": (
        spec("ffn = «m»lp"),
        [("not TOML: invalid value", 'help: text is quoted: `"mlp"`')],
    ),
    "Python's True": (
        spec("share_embeddings = «T»rue"),
        [("not TOML: invalid value", "help: write `true`")],
    ),
    "a number without its zero": (
        spec("dropout = «.»1"),
        [("not TOML: invalid value", "help: write `0.1`")],
    ),
    "a string that is not closed": (
        spec('ffn = "mlp«»', "dropout = 0.1"),
        [("not TOML: the string is not closed on its line",)],
    ),
    "several lines that are not TOML": (
        spec('ffn «"»mlp"', "dropout = «.»1", "causal = «y»es"),
        [
            ("not TOML: expected '=' after a key in a key/value pair",),
            ("not TOML: invalid value", "help: write `0.1`"),
            ("not TOML: invalid value", 'help: text is quoted: `"yes"`'),
        ],
    ),
    "a line that is not TOML, and a key twice": (
        spec("dropout = «.»1", "«d_ff» = 32").replace("d_ff = 16", "‹d_ff› = 16"),
        [
            ("not TOML: invalid value", "help: write `0.1`"),
            ("`d_ff` is written twice", "first written here", "help: keep one of the two"),
        ],
    ),
    "layer rules": (
        spec("[[encoder.layers]]", "every = «0»", "[[decoder.layers]]", "at = [0]", "«dropuot» = 0.5"),
        [
            ("`every` must be an integer of at least 1",),
            (
                "unknown key `dropuot` in `decoder.layers.0`",
                "help: did you mean `dropout`?",
            ),
        ],
    ),
    "six mistakes of six sorts": (
        """format = 1
name = "bad"
builder = "decoder"
vocab = 10
‹d_ff› = 16
n_layers = «true»
«n_head» = 3
norm = «"rms"»
dropout = «nan»
«d_ff» = 3
n_heads = «3»
d_model = ‹8›
""",
        [
            ("`n_layers` must be an integer, not the boolean `true`",),
            ("unknown key `n_head`", "help: did you mean `n_heads`?"),
            ("unknown norm `rms`", "help: did you mean `rms_norm`?"),
            ("`nan` is not a finite number",),
            ("`d_ff` is written twice", "first written here", "help: keep one of the two"),
            (
                "d_model = 8 is not divisible by n_heads = 3; state `head_dim`, or change one of "
                "the two",
                "`d_model` is here",
            ),
        ],
    ),
}


@pytest.mark.parametrize(("marked", "expected"), CASES.values(), ids=CASES)
def test_each_mistake_is_told_at_its_place(
    marked: str, expected: list[tuple[str, ...]], refused: Refused
) -> None:
    Path("spec.toml").write_text(plain(marked))
    wanted = rendered(marked, expected)
    assert refused("validate", "spec.toml") == wanted
    assert refused("show", "spec.toml") == wanted


def test_all_that_one_key_breaks_is_told_once(refused: Refused) -> None:
    """`dropout` is read by every attention, network, block and embedding."""
    Path("spec.toml").write_text(spec('dropout = "none"'))
    assert refused("validate", "spec.toml").count("error:") == 1


def test_a_wrong_value_hides_no_other_mistake(refused: Refused) -> None:
    """What depends on a wrong value is not told; what does not is."""
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


def test_the_names_that_are_allowed_are_listed_when_none_is_near(refused: Refused) -> None:
    Path("spec.toml").write_text(spec('init = "zzz"', "zzz = 1"))
    told = refused("validate", "spec.toml")
    kinds = zoo.load_registry().plugins["init"]
    listed = ", ".join(f"`{kind}`" for kind in sorted(kinds))
    assert f"error: unknown init `zzz`\n   10 | init = \"zzz\"\n      |        ^^^^^\n" in told
    assert f"      = help: allowed here: {listed}\n" in told
    keys = told.split("unknown key `zzz`")[1]
    assert all(f"`{key}`" in keys for key in KEYS)


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
    """A tab is one column, a wide character two, an accent none."""
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
def test_an_empty_file(content: bytes, refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_bytes(content)
    told = refused("validate", "spec.toml")
    assert told.startswith("spec.toml:1:1: error: the file is empty\n")
    assert "help: a spec states at least `format`, `name` and `builder`" in told


def test_a_file_of_comments_misses_every_key(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text("# nothing\n")
    told = refused("validate", "spec.toml")
    missing = [f"spec.toml:1:1: error: the key `{key}` is missing" for key in ("name", "format", "builder")]
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
    assert "did you mean `vaswani-base`?" in refused("validate", "vaswani_base")
    directory = "is a directory\n      = help: name a .toml file in it\n"
    assert refused("validate", "folder") == f"error: `folder` {directory}"
    assert refused("validate", "spec.toml/x.toml") == (
        "error: `spec.toml/x.toml` cannot be read: Not a directory\n"
    )
    assert "there is no file and no model" in refused("show", "x" * 5000)
    assert "cannot be read: File name too long" in refused("validate", "x" * 5000 + ".toml")
    with pytest.raises(zoo.SpecError, match="is not a path"):
        zoo.read_spec("a\0b.toml")


HOSTILE: dict[str, tuple[str, str]] = {
    "one key of many parts": (".".join(["a"] * 40_000) + " = 1", "keys are nested too deeply; the budget is 32"),
    "a head of many parts": ("[" + ".".join(["a"] * 40_000) + "]", "keys are nested too deeply; the budget is 32"),
    "spaces and quotes": (' . "a"' * 13_000, "keys are nested too deeply; the budget is 32"),
    "lines of dotted keys": (
        "\n".join(".".join(["a"] * 30) + f".k{i} = 1" for i in range(1200)),
        "unknown key `a`",
    ),
    "heads of tables": (
        "\n".join("[" + ".".join(["a"] * 30) + f".k{i}]" for i in range(1200)),
        "unknown key `a`",
    ),
    "many keys": ("\n".join(f"k{i} = 1" for i in range(8000)), "and 7,950 more errors"),
    "many tables": ("[[a]]\n" * 13_000, "unknown key `a`"),
    "one key many times": ("x = 1\n" * 13_000, "`x` is written twice"),
    "brackets": ("x = " + "[" * 80_000, "values are nested too deeply; the budget is 32"),
    "braces": ("x = " + "{a=" * 26_000, "values are nested too deeply; the budget is 32"),
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
    start = time.process_time()  # of this process alone: others may keep the machine busy
    told = refused("validate", "spec.toml")
    assert time.process_time() - start < 1
    assert message in told
    assert len(told) < 40_000


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
    assert told.startswith("spec.toml: error: the file is larger than its limit in bytes; the budget")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 3}, "<data>: n_heads: error: d_model = 8 is not divisible by n_heads = 3"),
        ({"n_head": 3}, "<data>: n_head: error: unknown key `n_head`"),
        ({"d_ff": None}, "<data>: d_ff: error: nothing has no place in a spec"),
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


# --- extends ------------------------------------------------------------------------------------


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
    "value", ['"../spec"', '"/etc/passwd"', '"sub/spec"', '".."', '""', '"a b"', "3", '["a"]', "{}"]
)
def test_extends_names_no_path(value: str, refused: Refused, project: Path) -> None:
    (project.parent / "spec.toml").write_text(spec())
    (project / "spec.toml").write_text(f"extends = {value}\n")
    assert refused("validate", "spec.toml") == (
        "spec.toml:1:11: error: `extends` names one spec, without folders or an ending\n"
        f"    1 | extends = {value}\n"
        f"      |           {'^' * len(value)}\n"
        "      = help: a spec file beside this one, or a model of the registry\n"
    )


def test_extends_of_what_is_not_there(refused: Refused, project: Path) -> None:
    (project / "base.toml").write_text(spec())
    (project / "spec.toml").write_text('extends = "bsae"\n')
    assert refused("validate", "spec.toml") == (
        "spec.toml:1:11: error: there is no spec `bsae` beside this one or in the registry\n"
        '    1 | extends = "bsae"\n'
        "      |           ^^^^^^\n"
        "      = help: did you mean `base`?\n"
    )
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


# --- plugins ------------------------------------------------------------------------------------

HEAD = """from __future__ import annotations
from typing import Annotated
from pydantic import Field, field_validator, model_validator
from zoo.component import Given, Shared, Size, Slot
from zoo.layout import Layout, Tensor, linear
from zoo.slots import FeedForward, Init, Norm
"""
GOOD = """
class Mine(FeedForward):
    def layout(self):
        return Layout({"up_proj": linear(self.d_model, self.d_model)})

    def build(self):
        from torch import nn

        class Module(nn.Module):
            def __init__(self, d_model):
                super().__init__()
                self.up_proj = nn.Linear(d_model, d_model)

            def forward(self, x):
                return self.up_proj(x)

        return Module(self.d_model)
"""
CHECK = GOOD + """
    @model_validator(mode="after")
    def _check(self):
"""
WITHOUT_D_FF = spec('ffn = "mine"', without="d_ff")


def write_plugin(project: Path, code: str, target: str | None = None) -> None:
    """A project whose ffn `mine` is this code. The file is named by its content, as modules are
    imported once."""
    name = f"p{sha256(code.encode()).hexdigest()[:12]}.py"
    (project / "plugins").mkdir(exist_ok=True)
    (project / "plugins" / name).write_text(HEAD + code)
    target = f"plugins/{name}:Mine" if target is None else target
    (project / "registry.toml").write_text(f'format = 1\n\n[ffn]\nmine = "{target}"\n')
    (project / "spec.toml").write_text(WITHOUT_D_FF)


def test_the_plugin_that_the_cases_below_break_is_good(project: Path) -> None:
    write_plugin(project, GOOD)
    assert run(["build", "spec.toml"]) == 0


LOADING: dict[str, tuple[str, str, str]] = {
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom", "mend the plugin"),
    "asserts": ("assert 1 == 2, 'no'", "AssertionError: no", "mend the plugin"),
    "exits": ("import sys; sys.exit(0)", "SystemExit: 0", "mend the plugin"),
    "is no Python": ("def f(:", "SyntaxError: invalid syntax", "mend the plugin"),
    "misses a module": (
        "import not_there",
        "ModuleNotFoundError: No module named 'not_there'",
        "mend the plugin",
    ),
    "is named otherwise": (GOOD.replace("Mine", "Mime"), "has no `Mine`", "did you mean `Mime`?"),
    "is no description": ("class Mine: pass", "is no description for the slot `ffn`", "FeedForward"),
    "is of another slot": ("class Mine(Norm): pass", "is no description for the slot `ffn`", "FeedForward"),
    "is a value": ("Mine = 3", "is no description for the slot `ffn`", "FeedForward"),
}


@pytest.mark.parametrize(("code", "message", "help_"), LOADING.values(), ids=LOADING)
def test_a_plugin_that_cannot_be_loaded(
    code: str, message: str, help_: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, code)
    told = refused("validate", "spec.toml")
    first, *lines = told.split("\n")
    assert first.startswith("registry.toml:4:1: error: ")
    assert message in first
    assert "    4 | mine = " in told
    assert 'spec.toml:9:7: note: named here\n    9 | ffn = "mine"\n      |       ^^^^^^\n' in told
    assert re.search(f"= help: .*{re.escape(help_)}", told)
    if help_ == "mend the plugin":  # its own line, and not one of the zoo's
        frames = [line for line in lines if re.search(r"\.py:\d+", line) and " | " not in line]
        assert frames
        assert all(line.startswith(f"  {project}") for line in frames)
        assert code in frames[-1]
    with pytest.raises(zoo.PluginError):
        zoo.read_spec("spec.toml")


@pytest.mark.parametrize(
    ("target", "message", "help_"),
    [
        ("not_there.mod:Mine", "there is no module `not_there`", "install its package"),
        ("zoo_components.not_there:Mine", "there is no module `zoo_components.not_there`", "install"),
        ("zoo_components.ffn:Mpl", "`zoo_components.ffn` has no `Mpl`", "did you mean `Mlp`?"),
        ("plugins/mime.py:Mine", "there is no file `here/plugins/mime.py`", "`mine.py`?"),
    ],
)
def test_a_plugin_that_is_missing(
    target: str, message: str, help_: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, GOOD, target)
    (project / "plugins" / "mine.py").write_text(HEAD + GOOD)
    told = refused("validate", "spec.toml")
    first = f"registry.toml:4:1: error: ffn `mine` cannot be loaded: {message}\n"
    assert told.replace(str(project), "here").startswith(first)
    assert re.search(f"= help: .*{re.escape(help_)}", told)


VALIDATING: dict[str, tuple[str, str]] = {
    "raises": (CHECK + "        return {}['x']\n", "KeyError: 'x'"),
    "asserts": (
        CHECK + "        assert self.d_model > 100, 'too small'\n",
        "AssertionError: too small",
    ),
    "exits": (CHECK + "        raise SystemExit(3)\n", "SystemExit: 3"),
    "asserts of one value": (
        GOOD
        + "    a: Shared[Size] = Field(default=3, validate_default=True)\n"
        + "    @field_validator('a')\n    @classmethod\n    def _a(cls, value):\n"
        + "        assert value > 5, 'a > 5'\n        return value\n",
        "AssertionError: a > 5",
    ),
    "has a bad default": (
        GOOD + "    a: int = Field(default_factory=lambda data: data['nope'])\n",
        "KeyError: 'nope'",
    ),
    "has a type that is not there": (GOOD + "    a: Nope\n", "PydanticUserError: `Mine` is not"),
    "fails in a property that others read": (
        GOOD.replace("(FeedForward)", "(FeedForward)")
        + "    inner: Annotated[Norm, Slot('norm', width='d_model')]\n"
        + "    other: Annotated[Norm, Slot('norm', width='inner.nope')]\n",
        "AttributeError: 'LayerNorm' object has no attribute 'nope'",
    ),
}


@pytest.mark.parametrize(("code", "message"), VALIDATING.values(), ids=VALIDATING)
def test_a_plugin_that_fails_when_it_is_validated(
    code: str, message: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, code)
    told = refused("validate", "spec.toml")
    assert told.count("error:") <= 2  # of the encoder's and of the decoder's network
    assert message in told
    assert "mend the plugin" in told
    with pytest.raises(zoo.PluginError, match=re.escape(message)):
        zoo.read_spec("spec.toml")


def test_a_value_error_of_a_plugin_is_an_error_of_the_spec(refused: Refused, project: Path) -> None:
    write_plugin(project, CHECK + "        raise ValueError('mine needs more')\n")
    assert refused("validate", "spec.toml") == (
        'spec.toml:9:7: error: mine needs more\n    9 | ffn = "mine"\n      |       ^^^^^^\n'
    )
    with pytest.raises(zoo.SpecError):
        zoo.read_spec("spec.toml")


def test_a_dimension_that_no_parent_gives(refused: Refused, project: Path) -> None:
    write_plugin(project, GOOD + "    depth: Given[int]\n")
    assert refused("validate", "spec.toml") == (
        "spec.toml:9:7: error: `mine` needs the dimension `depth`, which its parent does not give\n"
        '    9 | ffn = "mine"\n'
        "      |       ^^^^^^\n"
        "      = help: the plugin around it has to bind it: `Slot(..., depth=...)`\n"
    )


def test_a_plugin_that_holds_itself(refused: Refused, project: Path) -> None:
    write_plugin(project, GOOD + "    ffn: Annotated[FeedForward, Slot('ffn')]\n")
    told = refused("validate", "spec.toml")
    assert told.startswith("spec.toml:9:7: error: components are nested too deeply: `encoder.")


LAYOUT = '        return Layout({"up_proj": linear(self.d_model, self.d_model)})\n'
DESCRIBING: dict[str, tuple[str, str]] = {
    "raises": ("        raise KeyError('up')\n", "KeyError: 'up'"),
    "asserts": ("        assert not self.d_model\n", "AssertionError"),
    "exits": ("        raise SystemExit(1)\n", "SystemExit: 1"),
    "returns nothing": ("        pass\n", "AttributeError: 'NoneType'"),
    "returns another part": (
        '        return Layout({"up_proj": (8, 8)})\n',
        "TypeError: the part `up_proj` is (8, 8), not a Tensor or a Layout",
    ),
    "returns another shape": (
        '        return Layout({"up_proj": Tensor((8.5,))})\n',
        "TypeError: a shape is a tuple of sizes, not (8.5,)",
    ),
}


@pytest.mark.parametrize(("code", "message"), DESCRIBING.values(), ids=DESCRIBING)
def test_a_plugin_whose_layout_fails(
    code: str, message: str, refused: Refused, project: Path
) -> None:
    assert LAYOUT in GOOD
    write_plugin(project, GOOD.replace(LAYOUT, code))
    for command in (["validate"], ["show"], ["show", "--tensors"], ["build"]):
        told = refused(*command, "spec.toml")
        assert f" failed: {message}" in told.split("\n")[0]
    with pytest.raises(zoo.PluginError):
        _ = zoo.read_spec("spec.toml").n_parameters


BUILDING: dict[str, tuple[str, str]] = {
    "raises": ("raise RuntimeError('cannot')", "building bad failed: RuntimeError: cannot"),
    "asserts": ("assert False", "building bad failed: AssertionError"),
    "exits": ("raise SystemExit(0)", "building bad failed: SystemExit: 0"),
    "returns nothing": ("return None", "building bad failed: AttributeError"),
    "builds another width": (
        "return Module(9)",
        "up_proj.weight` is a float parameter [9, 9] in the module and a float parameter [8, 8] in",
    ),
}


@pytest.mark.parametrize(("code", "message"), BUILDING.values(), ids=BUILDING)
def test_a_plugin_whose_build_fails(
    code: str, message: str, refused: Refused, project: Path
) -> None:
    write_plugin(project, GOOD.replace("return Module(self.d_model)", code))
    assert run(["validate", "spec.toml"]) == 0
    with pytest.raises(zoo.PluginError, match=re.escape(message)):
        zoo.build("spec.toml")
    assert list(project.glob("bad*")) == []


@pytest.mark.parametrize(
    ("slot", "code", "message"),
    [
        (
            "init",
            "class Mine(Init):\n    def distribution(self, tensor):\n        raise SystemExit(1)\n",
            "the init of bad failed: SystemExit: 1",
        ),
        (
            "init",
            "class Mine(Init):\n    def distribution(self, tensor):\n        return 0.1\n",
            "starts from 0.1, which is no distribution",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def build(self):\n        return None\n",
            "`build` returned a NoneType, not a zoo.Transformer",
        ),
        (
            "builder",
            "from zoo.slots import Builder\n"
            "class Mine(Builder):\n    def ties(self):\n        raise SystemExit(1)\n",
            "the ties of bad failed: SystemExit: 1",
        ),
    ],
)
def test_an_init_or_a_builder_that_fails(
    slot: str, code: str, message: str, project: Path
) -> None:
    write_plugin(project, code)
    registry = (project / "registry.toml").read_text().replace("[ffn]", f"[{slot}]")
    (project / "registry.toml").write_text(registry)
    text = spec('init = "mine"') if slot == "init" else 'format = 1\nname = "bad"\nbuilder = "mine"\n'
    with pytest.raises(zoo.PluginError, match=re.escape(message)):
        _ = zoo.read_spec(text).n_parameters if "ties" in code else zoo.build(text)


def test_a_broken_plugin_hurts_nobody_who_does_not_use_it(project: Path) -> None:
    write_plugin(project, "raise RuntimeError('boom')")
    (project / "spec.toml").write_text(spec())
    assert run(["validate", "spec.toml"]) == 0
    assert run(["list"]) == 0


# --- the process --------------------------------------------------------------------------------


def process(*arguments: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zoo", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=before,
        check=False,
    )


def test_the_process_ends_with_2_and_no_traceback(project: Path) -> None:
    (project / "spec.toml").write_text(spec(n_heads="3"))
    before = contents(project)
    for command in ("validate", "show", "build"):
        done = process(command, "spec.toml", *(["--json"] if command == "build" else []))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("spec.toml:8:11: error: d_model = 8 is not divisible")
        assert "Traceback" not in done.stderr
    assert contents(project) == before


def test_a_plugin_that_exits_does_not_end_the_process(project: Path) -> None:
    write_plugin(project, "import sys; sys.exit(0)")
    done = process("build", "spec.toml")
    assert done.returncode == 2
    assert "SystemExit: 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def built(project: Path) -> dict[str, bytes]:
    """A model on disk, which a build that fails must leave as it is."""
    (project / "spec.toml").write_text(spec())
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    return contents(project)


@pytest.mark.parametrize("output", ["spec.toml", "spec.toml/below", "out/model.safetensors/x"])
def test_an_output_folder_that_cannot_be(
    output: str, built: dict[str, bytes], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["build", "spec.toml", "--seed", "1", "-o", output]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert re.match(r"error: cannot write '.*': \w.*\n +.*help: what was there is untouched", told.err)
    assert contents(project) == built


def test_a_disk_that_is_full(built: dict[str, bytes], project: Path) -> None:
    """The kernel refuses to let a file grow beyond 10 kB."""

    def limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    assert len(built["out/model.safetensors"]) > 10_000
    for output in ("out", "new/folder"):
        done = process("build", "spec.toml", "--seed", "1", "-o", output, before=limit)
        assert done.returncode == 2, done.stderr
        assert "error: cannot write " in done.stderr
        assert "Traceback" not in done.stderr
        assert contents(project) == built

"""Recipes: all mistakes are reported at once, at their places, before anything is written."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from toy_training import MODEL, PAIRS, RECIPE, write_toy
from trials import Refused, python

from zoo.cli import run
from zoo.document import read_document
from zoo.errors import SpecError
from zoo.reading import read_spec
from zoo.training.data_tables import Tsv
from zoo.training.optimizer_tables import AdamW, InverseSqrt
from zoo.training.overrides import overridden
from zoo.training.recipe import KINDS, OPTIONAL, TABLES, read_recipe

ROOT = Path(__file__).parent.parent


def test_reads_what_is_written(tmp_path: Path) -> None:
    recipe = read_recipe(write_toy(tmp_path))
    assert recipe.head.name == "toy"
    assert recipe.data == Tsv(train="toy.tsv", valid=4)
    assert recipe.optimizer == AdamW(lr=1e-2)
    assert recipe.schedule == InverseSqrt(warmup=4)
    assert recipe.training.steps == 12
    assert recipe.folder == tmp_path


def test_values_in_place_of_those_of_the_file(tmp_path: Path) -> None:
    """The rest of the text stays as it is, as the folder of the run gets it."""
    text = RECIPE.replace("steps = 12", "steps = 12  # few")
    document = read_document(write_toy(tmp_path, text))
    changes = ["seed=3", "training.steps = 7", "model=wide.toml", "lora.rank=2", 'name="1"']
    changed = overridden(document, [*changes, "training.clip_norm=1e-1", "dtype=bfloat16"])
    expected = tomllib.loads(text) | {"seed": 3, "model": "wide.toml", "name": "1"}
    expected |= {"dtype": "bfloat16", "lora": {"rank": 2}}
    expected["training"] |= {"steps": 7, "clip_norm": 0.1}
    assert changed.data == tomllib.loads(changed.text or "") == expected
    assert "steps = 7  # few\n" in (changed.text or "")
    assert changed.name == document.name
    assert overridden(document, []) is document


def test_a_wrong_value_in_place_of_that_of_the_file(refused: Refused, project: Path) -> None:
    write_toy(project)

    def told(change: str) -> str:
        return refused("train", "recipe.toml", "--set", change)

    assert "unknown key `stps`" in told("training.stps=3")
    assert "`seed` must be an integer, not the string `x`" in told("seed=x")
    assert "`name.x=1`: `name` is no table" in told("name.x=1")
    for change in ("seed", "=1", "training.=1"):
        assert f"`{change}` states no value of a key\n      = help: write" in told(change)


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/*/recipe.toml")), ids=str)
def test_shipped_recipes_are_valid(path: Path) -> None:
    assert read_recipe(path).head.name == path.parent.name


# The replaced text, its replacement, the text that the error points at, and the message.
MISTAKES = {
    "unknown key": ("steps = 12", "stepps = 12", "stepps", "did you mean `steps`?"),
    "key of another table": (
        "steps = 12",
        "steps = 12\nlearning_rate = 1e-3",
        "learning_rate",
        "`lr` is a key of `[optimizer]`",
    ),
    "key of the top level": (
        "steps = 12",
        "steps = 12\nseed = 1",
        "seed = 1\n",
        "`seed` stands above all tables",
    ),
    "missing key": ("steps = 12", "", "training]", "the key `steps` is missing"),
    "wrong type": (
        "steps = 12",
        "steps = 12.5",
        "12.5",
        "`steps` must be an integer, not the float `12.5`",
    ),
    "out of range": ("smoothing = 0.1", "smoothing = 1.0", "1.0\nclip", "must be less than 1"),
    "unknown kind": ('"inverse_sqrt"', '"inv_sqrt"', '"inv_sqrt"', "did you mean `inverse_sqrt`?"),
    "no kind": ('kind = "bpe"', "", "tokenizer]", "the key `kind` is missing"),
    "no table": ('[tokenizer]\nkind = "bpe"', "", "format", "`[tokenizer]` is missing"),
    "past float32": (
        "lr = 1e-2",
        "lr = 1e39",
        "1e39",
        "`lr` must be at most 1000000000000000000000000000000",
    ),
    "decay past float32": (
        "lr = 1e-2",
        "lr = 1e-2\nweight_decay = 1e39",
        "1e39",
        "`weight_decay` must be at most 1000000000000000000000000000000",
    ),
    "an item": ("lr = 1e-2", 'lr = 1e-2\nbetas = [0.9, "x"]', '"x"', "`betas` must be a number"),
    "too few items": ("lr = 1e-2", "lr = 1e-2\nbetas = [0.9]", "[0.9]", "more items than 1"),
    "too many items": (
        "lr = 1e-2",
        "lr = 1e-2\nbetas = [0.9, 0.9, 0.9]",
        "[0.9",
        "`betas` must have at most 2 items, not 3",
    ),
    "a path for a name": (
        'name = "toy"',
        'name = "../toy"',
        '"../toy"',
        "`name` must be a string that matches `^[A-Za-z0-9][A-Za-z0-9_.-]*$`, not the string",
    ),
    "another format": ("format = 1", "format = true", "true", "`format` must be `1`, not the"),
    "a string for a table": (
        'kind = "tsv"',
        'kind = "parallel"',
        '"toy.tsv"',
        "`train` must be a table, not the string `toy.tsv`",
    ),
    "contradiction": ("valid = 4", "source = 2", "2\n\n[tok", "are the same column"),
    "a file for both sides": (
        'kind = "tsv"\ntrain = "toy.tsv"\nvalid = 4',
        'kind = "parallel"\ntrain = { source = "a", target = "b" }\n'
        'valid = { source = "c", target = "c" }',
        '{ source = "c"',
        "source and target of `valid` are the same file",
    ),
    "a field for both sides": (
        'kind = "tsv"',
        'kind = "jsonl"\nsource = "text"\ntarget = "text"',
        '"text"\nt',
        "source and target are the same field",
    ),
    "a field of a data set for both sides": (
        'kind = "tsv"',
        'kind = "datasets"\npath = "toy"\nsource = ["text", "more"]\ntarget = "more"',
        '["text", "more"]',
        "source and target are the same field",
    ),
    "a pair of one field": (
        'kind = "tsv"',
        'kind = "jsonl"\nsource = ["a", "a"]\ntarget = "b"',
        '["a"',
        "the two texts of a pair are the same field",
    ),
    "packed pairs": (
        'kind = "tsv"\ntrain = "toy.tsv"',
        'kind = "datasets"\npath = "toy"\nsource = "de"\ntarget = "en"\npacked = true',
        "true",
        "only text is packed, and `source` makes pairs",
    ),
    "top level": ('model = "model.toml"', 'modle = "m.toml"', "modle", "did you mean `model`?"),
    "neither": ("valid = 4", "valid = 4.5", "4.5", "`valid` must be an integer or a string, not"),
    "a missing side": (
        'kind = "tsv"\ntrain = "toy.tsv"\nvalid = 4',
        'kind = "parallel"\ntrain = { source = "a.de" }\nvalid = { source = "a", targt = "b" }',
        "targt",
        "the key `target` is missing",
    ),
    "decay beyond nothing": (
        "lr = 1e-2",
        "lr = 1e-2\nweight_decay = 101.0",
        "101.0",
        "`lr` times `weight_decay` is above 1",
    ),
    "nothing masked": (
        "[optimizer]",
        "[masking]\nmasked = 0.0\nrandom = 0.0\n\n[optimizer]",
        "0.0\nrandom",
        "the model would read what it has to predict",
    ),
    "no room for the fall": (
        '"inverse_sqrt"',
        '"warmup_stable_decay"\ndecay = 9',
        "9\nwarmup",
        "`decay` = 9 is more than the 8 steps after the warm-up",
    ),
    "twice": ("valid = 4", 'train = "b.tsv"', 'train = "b', "`data.train` is written twice"),
}


@pytest.mark.parametrize(("right", "wrong", "at", "told"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_at_their_place(
    tmp_path: Path, right: str, wrong: str, at: str, told: str
) -> None:
    assert right in RECIPE
    text = RECIPE.replace(right, wrong)
    before = text[: text.index(at)]
    place = f"{before.count(chr(10)) + 1}:{len(before.rpartition(chr(10))[2]) + 1}"
    path = write_toy(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        read_recipe(path)
    assert f"{path}:{place}: " in str(caught.value)
    assert told in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    wrong = (
        RECIPE.replace("steps", "stepps").replace('"adamw"', '"adamv"').replace("= 1\n", "= 2\n")
    )
    with pytest.raises(SpecError) as caught:
        read_recipe(write_toy(tmp_path, wrong))
    told = [problem.message for problem in caught.value.problems]
    assert len(told) == 4  # `steps` is missing, and `stepps` is not known
    assert any("`format`" in message for message in told)


def test_a_mistake_is_told_without_torch(tmp_path: Path) -> None:
    path = write_toy(tmp_path, RECIPE.replace("steps", "stepps"))
    code = (
        "import sys; from zoo.cli import run; "
        f"assert run(['train', {str(path)!r}]) == 2; "
        "assert 'torch' not in sys.modules and 'accelerate' not in sys.modules"
    )
    python(code)


REFUSALS = {
    "nothing held out": (
        ("valid = 4", 'valid = "toy.tsv"'),
        ("", ""),
        "recipe.toml:8:9: error: `valid` is the training data: nothing is held out",
    ),
    "a seed of nothing": (
        ("valid = 4", 'valid = "toy2.tsv"\nseed = 1'),
        ("", ""),
        "recipe.toml:9:8: error: it is of what is held out, and neither `valid` nor `test` is a",
    ),
    "no model": (('"model.toml"', '"modell.toml"'), ("", ""), "`modell.toml` does not exist"),
    "a bad model": (("", ""), ("d_ff = 32", "d_fff = 32"), "model.toml:11:1: "),
    "no data": (('"toy.tsv"', '"toi.tsv"'), ("", ""), "cannot be read: No such file"),
    "nothing to learn": (("valid = 4", "valid = 64"), ("", ""), "64 source sentences for"),
    "too large a vocabulary": (
        ("", ""),
        ("vocab = 300", "vocab = 9000"),
        "tokens, and the model's vocabulary is 9,000",
    ),
    "one vocabulary for two": (
        ("", ""),
        (
            "target_vocab = 300\nshare_embeddings = true",
            "target_vocab = 280",
        ),
        "one vocabulary cannot serve 300 source and 280 target tokens",
    ),
    "other padding": (("", ""), ("pad_id = 0", "pad_id = 7"), "state `pad_id = 0` in the spec"),
    "an encoder without a head": (
        ("", ""),
        (
            MODEL,
            MODEL.split("source_vocab")[0].replace("_decoder", "") + "vocab = 300\n"
            'n_layers = 1\nd_model = 16\nn_heads = 2\nd_ff = 32\nhead = "none"\n',
        ),
        "toy cannot be trained by a recipe",
    ),
    "a decoder that is not causal": (
        ("", ""),
        ("dropout", "decoder = { causal = false }\ndropout"),
        "toy would see the tokens that it has to predict: `causal = false`",
    ),
    "a convolution over later positions": (
        ("", ""),
        ("dropout", 'ffn = { kind = "conv1d", kernel_size = 2 }\ndropout'),
        "toy would see the tokens that it has to predict: ffn `conv1d`",
    ),
    "text for pairs": (
        ('kind = "tsv"', 'kind = "text"'),
        ("", ""),
        "the data is text, and the model learns from pairs",
    ),
    "too few positions": (
        ("", ""),
        ("dropout", 'position = { kind = "learned", max_length = 100 }\ndropout'),
        "state `max_length = 100` in `[training]`",
    ),
    "no start": (('kind = "bpe"', 'kind = "of_model"'), ("", ""), "starts from a spec"),
    "no such tokenizer": (
        ('kind = "bpe"', 'kind = "files"\nsource = "none.json"'),
        ("", ""),
        "none.json` cannot be read",
    ),
    "no tokenizer": (
        ('kind = "bpe"', 'kind = "files"\nsource = "model.toml"'),
        ("", ""),
        "model.toml: error: this is not a tokenizer",
    ),
}


@pytest.mark.parametrize(("recipe", "model", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_together_is_refused(
    project: Path,
    refused: Refused,
    recipe: tuple[str, str],
    model: tuple[str, str],
    told: str,
) -> None:
    write_toy(project, RECIPE.replace(*recipe), MODEL.replace(*model))
    assert told in refused("train", "recipe.toml", "-o", "out")


@pytest.mark.parametrize(("recipe", "model", "told"), REFUSALS.values(), ids=REFUSALS)
def test_validating_tells_the_same_without_torch(
    project: Path,
    recipe: tuple[str, str],
    model: tuple[str, str],
    told: str,
) -> None:
    write_toy(project, RECIPE.replace(*recipe), MODEL.replace(*model))
    status, _, err = validated(project, "recipe.toml")
    if "tokens, and the model's vocabulary" in told:  # known only after learning
        assert (status, err) == (0, "")
    else:
        assert status == 2
        assert told in err


def validated(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """`zoo validate` in a process of its own, which must not import torch."""
    code = (
        "import sys; from zoo.cli import run; status = run(['validate', *sys.argv[1:]]); "
        "assert not {'torch', 'numpy', 'accelerate', 'datasets'} & set(sys.modules); "
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_data_for_another_kind_of_model_is_told_with_what_is_needed(project: Path) -> None:
    write_toy(project, RECIPE.replace("tsv", "text", 1))
    status, _, told = validated(project, "recipe.toml")
    assert status == 2
    assert 'help: pairs are of `kind = "tsv"` or `"parallel"`; text is for a decoder' in told


def test_a_valid_recipe_is_told_with_its_model_and_examples(project: Path) -> None:
    write_toy(project)
    model = read_spec("model.toml")
    status, out, err = validated(project, "recipe.toml", "model.toml", "--json")
    assert (status, err) == (0, "")
    recipe, spec = json.loads(out)
    digest = recipe.pop("data_digest")
    assert digest.startswith("sha256:")
    assert recipe == {
        "spec": "recipe.toml",
        "valid": True,
        "name": "toy",
        "model": "toy",
        "spec_digest": model.digest,
        "parameters": model.n_parameters,
        "examples": {"train": len(PAIRS) - 4, "valid": 4, "test": 0},
    }
    assert spec["spec_digest"] == model.digest
    assert validated(project, "recipe.toml")[1] == (
        f"recipe.toml: toy, model: toy {model.digest}, data: {digest}, "
        f"examples: {len(PAIRS) - 4} train, 4 valid\n"
    )


def test_validating_tells_at_once_all_that_a_recipe_names_and_is_not_there(project: Path) -> None:
    text = RECIPE.replace("toy.tsv", "toi.tsv").replace("valid = 4", 'valid = "no.tsv"')
    write_toy(project, text.replace("model.toml", "modell.toml"))
    (project / "wrong.toml").write_text(RECIPE.replace("steps", "stepps"))
    status, out, err = validated(project, "recipe.toml", "wrong.toml", "model.toml")
    assert (status, out.split(":")[0]) == (2, "model.toml")
    for place, message in {
        "recipe.toml:3:9": "`modell.toml` does not exist",
        "recipe.toml:7:9": "the data file `toi.tsv` cannot be read",
        "recipe.toml:8:9": "the data file `no.tsv` cannot be read",
        "wrong.toml:22:1": "unknown key `stepps`",
    }.items():
        assert f"{place}: error: {message}" in err
    status, out, _ = validated(project, "wrong.toml", "--json")
    (told,) = json.loads(out)
    assert (status, told["valid"], told["problems"][-1]["line"]) == (2, False, 22)


def test_validating_looks_for_data_where_training_does(project: Path) -> None:
    write_toy(project)
    (project / "data").mkdir()
    (project / "toy.tsv").rename(project / "data" / "toy.tsv")
    assert validated(project, "recipe.toml")[0] == 2
    assert validated(project, "recipe.toml", "--data", "data")[0] == 0


def test_a_measurement_without_data_is_told(project: Path) -> None:
    def notes(recipe: str) -> list[str]:
        return list(read_recipe(write_toy(project, recipe)).notes())

    assert notes(RECIPE) == []
    assert notes(RECIPE.replace("valid = 4", "")) == [
        "valid_every = 6: no data is held out (`valid`)"
    ]
    assert notes(RECIPE.replace("valid = 4", "").replace("valid_every = 6", "")) == []


def test_validating_gives_the_notes_of_training(project: Path) -> None:
    recipe = RECIPE.replace("warmup = 4", "warmup = 13").replace("average = 2", "average = 9")
    write_toy(project, recipe.replace("valid = 4", 'valid = 4\ntest = "toy.tsv"'))
    with (project / "toy.tsv").open("a", encoding="utf-8") as file:
        file.write("{}\t{}\n".format(*PAIRS[0]))
    status, _, err = validated(project, "recipe.toml")
    assert (status, err.splitlines()) == (
        0,
        [
            "recipe.toml: average = 9: the run has 3 checkpoints, and all count",
            "recipe.toml: warmup = 13: the learning rate does not reach its peak in 12 steps",
            "recipe.toml: train: left out 1 duplicate pair",
            "recipe.toml: test: 61 of 65 pairs have a source that is learned from too",
        ],
    )


def test_a_model_named_without_its_ending_is_told(project: Path) -> None:
    """Beside the recipe, which is in another folder."""
    (project / "sub").mkdir()
    write_toy(project / "sub", RECIPE.replace('"model.toml"', '"model"'))
    status, _, err = validated(project, "sub/recipe.toml")
    assert status == 2
    assert "sub/recipe.toml:3:9: error: there is no file and no model `model`" in err
    assert "help: did you mean `model.toml`?" in err


@pytest.mark.parametrize("table", [*TABLES, *OPTIONAL, *KINDS])
def test_each_table_of_recipes_tells_a_recipe(project: Path, table: str) -> None:
    (project / "one.toml").write_text(f"format = 1\n[{table}]\n")
    with pytest.raises(SpecError, match="this is a recipe for training, not the spec of a model"):
        read_spec("one.toml")


def test_a_registry_is_told(project: Path) -> None:
    (project / "registry.toml").write_text("format = 1\n")
    status, _, err = validated(project, "registry.toml")
    assert status == 2
    assert err.startswith("registry.toml: error: this is a registry, not the spec of a model\n")


def test_validating_fetches_nothing(project: Path) -> None:
    data = 'kind = "datasets"\npath = "someone/something"\ntarget = "text"'
    write_toy(project, RECIPE.replace('kind = "tsv"\ntrain = "toy.tsv"', data))
    status, out, _ = validated(project, "recipe.toml", "--json")
    assert (status, json.loads(out)[0]["examples"]) == (0, None)


def test_a_spec_is_no_recipe(project: Path, refused: Refused) -> None:
    write_toy(project)
    assert "model.toml:3:1: error: this is the spec of a model" in refused("train", "model.toml")
    for command in ("build", "show"):
        assert "recipe.toml: error: this is a recipe" in refused(command, "recipe.toml")
    for text in ('format = 1\nname = "neither"\n', '[model]\nname = "neither"\nd_model = 8\n'):
        (project / "neither.toml").write_text(text)
        assert "the key `builder` is missing" in refused("validate", "neither.toml")
    (project / "short.toml").write_text('format = 1\nmodel = "model.toml"\n')
    told = refused("validate", "short.toml")
    assert "`[data]` is missing" in told
    assert 'help: add `[tokenizer]` and `kind = "bpe"` (or `files`, `of_model`)' in told
    assert "help: add `[training]` and `steps = ...`" in told


@pytest.mark.parametrize(
    ("recipe", "model", "told"),
    [
        ("max_length = 2", ("", ""), "no example is short enough"),
        ("", ("d_ff = 32", "d_ff = 10_000_000_000"), "does not fit into memory"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing(
    project: Path, refused: Refused, recipe: str, model: tuple[str, str], told: str
) -> None:
    write_toy(project, f"{RECIPE}{recipe}\n", MODEL.replace(*model))
    assert told in refused("train", "recipe.toml", "-o", "out")
    assert not Path("out").exists()


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_folder_that_cannot_be_written_is_told_before_the_long_work(
    project: Path, refused: Refused, resume: tuple[str, ...]
) -> None:
    """Before a tokenizer is learned, which here would fail for lack of data."""
    write_toy(project, model=MODEL.replace("= 300", "= 3000"))
    assert "the data yields" in refused("train", "recipe.toml", "-o", "out/run", *resume)
    (project / "out").write_text("a file")
    told = refused("train", "recipe.toml", "-o", "out/run", *resume)
    assert "cannot write `out/run`: a file has the name of `out`" in told


def test_another_run_is_not_overwritten(project: Path, refused: Refused) -> None:
    write_toy(project)
    (project / "out").mkdir()
    (project / "out" / "thesis.txt").write_text("mine")
    told = refused("train", "recipe.toml", "-o", "out")
    assert "`out` is there already, and not empty" in told
    assert "help: `-o` names another folder" in told
    (project / "out" / "recipe.toml").write_text("of a run that ended before its first checkpoint")
    assert "help: `--resume` goes on" in refused("train", "recipe.toml", "-o", "out")
    (project / "out" / "model.safetensors").write_text("a model, from which nothing goes on")
    assert "help: `-o` names another folder" in refused("train", "recipe.toml", "-o", "out")
    told = refused("train", "recipe.toml", "-o", "out/thesis.txt")
    assert "`out/thesis.txt` is there already, and a file\n" in told
    assert "help: `-o` names another folder" in told


def test_only_what_was_trained_is_scored(project: Path, refused: Refused) -> None:
    write_toy(project)
    assert run(["build", "model.toml", "-o", "built"]) == 0
    told = refused("score", "built")
    assert told.startswith("built: error: there is no recipe.toml\n")
    assert "name a folder that `zoo train` has made" in told

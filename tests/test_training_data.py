"""Training data: read completely or refused, split by source, tokenized, and cut into batches."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import Strip
from tokenizers.models import WordLevel
from toy_training import PAIRS, RECIPE, write_toy

import zoo
from zoo.errors import Place, TrainingError
from zoo.purpose import Generation
from zoo.training.batches import Row, batches, n_tokens, part
from zoo.training.data import DataReader
from zoo.training.data_tables import Datasets, Files, Parallel, Text, Tsv
from zoo.training.example import Example
from zoo.training.objective import encode_parts, objective_of
from zoo.training.recipe import read_recipe
from zoo.training.recipe_data import find_data
from zoo.training.recipe_tokens import check_fit, learn_tokens
from zoo.training.sides import Reader
from zoo.training.split import Splits, held_out
from zoo.training.tables import Bpe, TokenizerFiles
from zoo.training.text_objective import TextObjective
from zoo.training.tokens import Tokens, read_token_files, read_tokens

SIDES = Generation(target_vocab=300, source_vocab=300, has_source=True, pad_id=0, source_pad_id=0)
EXAMPLES = [Example(*pair) for pair in PAIRS]


def test_columns_of_a_tsv(tmp_path: Path) -> None:
    text = "English\tGerman\tby\r\nA dog.\tEin Hund.\tme\r\n\r\nA dog.\tEin Hund.\tyou\r\n"
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    table = Tsv(train="a.tsv", source=2, target=1, header=True)
    assert DataReader(table, tmp_path).splits(0).train == [Example("Ein Hund.", "A dog.")]


def test_parallel_files_with_parts_of_their_own(tmp_path: Path) -> None:
    texts = {"a.de": "x\ny\nx\n", "a.en": "1\n2\n1\n", "b.de": "x\nx\n", "b.en": "9\n9\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    table = Parallel(
        train=Files(source="a.de", target="a.en"), test=Files(source="b.de", target="b.en")
    )
    train, valid, test, n_duplicates, _ = DataReader(table, tmp_path).splits(0)
    assert n_duplicates == 1
    assert train == [Example("x", "1"), Example("y", "2")]
    assert valid == []
    assert test == [Example("x", "9")] * 2  # test data is kept unchanged


def test_lines_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\n\ntwo\nthree\n")
    train, valid, *_ = DataReader(Text(train="a.txt", valid=1), tmp_path).splits(0)
    assert sorted(example.target for example in train + valid) == ["one", "three", "two"]
    assert len(valid) == 1


def test_lines_of_an_old_file_of_the_macintosh(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\rtwo\r\rthree\r")
    found = DataReader(Text(train="a.txt", packed=True), tmp_path).splits(0).train
    assert [example.target for example in found] == ["one", "two", "", "three"]


def test_a_packed_file(tmp_path: Path) -> None:
    raw = gzip.compress("ä\tb\nc\td\n".encode())
    (tmp_path / "a.tsv.gz").write_bytes(raw)
    assert DataReader(Tsv(train="a.tsv.gz"), tmp_path).splits(0).train == [
        Example("ä", "b"),
        Example("c", "d"),
    ]
    (tmp_path / "a.tsv").write_bytes(raw)
    with pytest.raises(TrainingError, match=r"a\.tsv: error: .*gzip\n.*name that ends in `\.gz`"):
        DataReader(Tsv(train="a.tsv"), tmp_path).splits(0)
    for wrong in (raw[:-9], raw[:12] + b"\xff" + raw[13:], b"a\tb\n"):
        (tmp_path / "a.tsv.gz").write_bytes(wrong)
        with pytest.raises(
            TrainingError, match=r"a\.tsv\.gz: error: gzip cannot unpack the file: "
        ):
            DataReader(Tsv(train="a.tsv.gz"), tmp_path).splits(0)


POEM = "Hey!\n\n  Hey!\nHo \n\t\nHey!\r\n"


@pytest.mark.parametrize("packed", [True, False])
def test_lines_of_a_text_are_kept_as_they_are(packed: bool, tmp_path: Path) -> None:
    """Indented, repeated and in their order; packed text also has its blank lines."""
    (tmp_path / "a.txt").write_bytes(POEM.encode())
    data = Text(train="a.txt", test="a.txt", packed=packed)
    train, _, test, n_duplicates, _ = DataReader(data, tmp_path).splits(0)
    written = ["Hey!", "  Hey!", "Ho ", "Hey!"]
    assert [line.target for line in test] == written
    if packed:
        written = ["Hey!", "", "  Hey!", "Ho ", "\t", "Hey!"]
    assert [line.target for line in train] == written
    assert n_duplicates == 0


def test_a_text_of_a_data_set_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    texts = ["def f():\n    pass\n", "", "  x", "  x"]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "set" / "train.jsonl").write_text(lines)
    for packed, expected in {True: texts, False: [texts[0], *texts[2:]]}.items():
        data = Datasets(path="set", target="text", packed=packed)
        assert [one.target for one in DataReader(data, tmp_path).splits(0).train] == expected


def test_a_held_out_line_is_nowhere_in_the_training_data(tmp_path: Path) -> None:
    """With all its repetitions; blank lines stay where they are."""
    (tmp_path / "a.txt").write_text("a\n\nb\n\na\n\nb\n\nc\n\n")
    found = DataReader(Text(train="a.txt", valid=1, test=1, packed=True), tmp_path).splits(0)
    lines = {name: [line.target for line in part] for name, part in found.parts.items()}
    assert lines["train"].count("") == 5
    held_out = {"a": ["a", "a"], "b": ["b", "b"], "c": ["c"]}
    for name in ("valid", "test"):
        assert lines[name] == held_out.pop(lines[name][0])
    (left,) = held_out.values()
    assert [line for line in lines["train"] if line] == left
    with pytest.raises(TrainingError, match=r"3 different lines for `valid`.* of 3"):
        DataReader(Text(train="a.txt", valid=3, packed=True), tmp_path).splits(0)


def test_a_seed_of_the_data_alone(tmp_path: Path) -> None:
    """With it, the recipe's seed decides nothing of the data; by default, that one counts."""

    def found(seed: int, more: str = "") -> Splits:
        text = RECIPE.replace("[data]", f"seed = {seed}\n[data]")
        recipe = read_recipe(write_toy(tmp_path, text.replace("valid = 4", f"valid = 4{more}")))
        return find_data(recipe, tmp_path, None, None)

    assert found(1, "\nseed = 0") == found(2, "\nseed = 0") == found(0)
    assert found(1) != found(2)
    assert found(1, "\nseed = 2") == found(2)


def test_a_digest_of_the_data_whatever_is_held_out(tmp_path: Path) -> None:
    """Of all that the files hold, in its order."""

    def digest(train: str, test: str = "c\n", *, seed: int = 0, valid: int = 1) -> str:
        (tmp_path / "a.txt").write_text(train)
        (tmp_path / "b.txt").write_text(test)
        table = Text(train="a.txt", test="b.txt", valid=valid)
        return DataReader(table, tmp_path).splits(seed).digest

    first = digest("a\nb\nd\n")
    assert {digest("a\nb\nd\n", seed=seed, valid=n) for seed in range(9) for n in (0, 1)} == {first}
    others = [
        ("b\na\nd\n", "c\n"),
        ("a\nb\nD\n", "c\n"),
        ("a\nb\nd\n", "C\n"),
        ("a\nb\n", "d\nc\n"),
    ]
    assert len({first, *(digest(*other) for other in others)}) == 5


def test_a_folder_that_datasets_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "set").mkdir()
    lines = [{"translation": {"de": a, "en": b}} for a, b in PAIRS[:3]]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "set" / "train.jsonl").write_text(text)
    table = Datasets(path="set", source="translation.de", target="translation.en")
    assert DataReader(table, tmp_path).splits(0).train == EXAMPLES[:3]
    (tmp_path / "set" / "train.jsonl").write_text('{"text": "a", "label": 0}\n')
    table = Datasets(path="set", source="text", target="label")
    assert DataReader(table, tmp_path).splits(0).train == [Example("a", "0")]
    wrong = Datasets(path="set", source="translation.fr", target="translation.en")
    with pytest.raises(TrainingError, match="no field"):
        DataReader(wrong, tmp_path).splits(0)


@pytest.mark.parametrize("path", ["text", "./text", "csv"])
def test_a_data_set_named_like_a_reader_of_datasets_is_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """`datasets.load_dataset("text")` reads all files of the working directory."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    for name in ("text", "csv", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text(f'{{"text": "of {name}"}}\n')
    table = Datasets(path=path, target="text")
    found = DataReader(table, Path()).splits(0).train
    assert [one.target for one in found] == [f"of {Path(path).name}"]


def test_a_name_of_a_reader_of_datasets_is_no_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("not to be learned\n")
    with pytest.raises(TrainingError, match=r"no folder and no file `text`"):
        DataReader(Datasets(path="text", target="text"), Path()).splits(0)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "json", "jsonl", "parquet"])
def test_a_file_that_datasets_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    texts = {
        "csv": "a,b\nx,y\n",
        "csv.gz": "a,b\nx,y\n",
        "json": '[{"a": "x", "b": "y"}]',
        "jsonl": '{"a": "x", "b": "y"}\n',
    }
    path = tmp_path / f"of.it.{ending}"
    if ending == "parquet":
        import datasets

        datasets.Dataset.from_dict({"a": ["x"], "b": ["y"]}).to_parquet(path)
    else:
        raw = texts[ending].encode()
        path.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    table = Datasets(path=path.name, source="a", target="b")
    assert DataReader(table, tmp_path).splits(0).train == [Example("x", "y")]


def test_what_datasets_cannot_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(TrainingError, match=r"a\.xlsx` is a file of(.|\n)*\.csv, "):
        DataReader(Datasets(path="a.xlsx", target="a"), tmp_path).splits(0)
    (tmp_path / "a.csv").write_bytes(b"a,b\nx,\xff\n")
    with pytest.raises(TrainingError, match=r"a\.csv`: .*codec can't decode byte 0xff"):
        DataReader(Datasets(path="a.csv", target="a"), tmp_path).splits(0)


BAD_FILES = {
    "no source": (b"a\tb\n\tc\n", "a.tsv:2:1: error: the source is missing"),
    "no target": (b"a\tb\nabc\t\n", "a.tsv:2:4: error: the target is missing"),
    "one column": (
        b"a\tb\nabc\n",
        "a.tsv:2:3: error: the target is missing\n    2 | abc\n      |   ^\n"
        "      = help: a tab separates the columns",
    ),
    "lines of Windows": (b"a\tb\r\nabc\t\r\n", "a.tsv:2:4: error: the target is missing"),
    "not utf-8": (b"a\tb\nna\xc3\xafve\tna\xefve\n", "a.tsv:2:9: error: not UTF-8: the byte 0xef"),
    "empty": (b" \n\n", "a.tsv: error: the file is empty"),
    "nothing below the header": (b"de\ten\n", "there is nothing to learn from"),
}


@pytest.mark.parametrize(("raw", "told"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_data_is_refused(tmp_path: Path, raw: bytes, told: str) -> None:
    (tmp_path / "a.tsv").write_bytes(raw)
    table = Tsv(train="a.tsv", header=raw.startswith(b"de"))
    with pytest.raises(TrainingError) as caught:
        DataReader(table, tmp_path).splits(0)
    assert told in str(caught.value)


def test_every_bad_line_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\n\tb\nc\td\ne\n")
    with pytest.raises(TrainingError) as caught:
        DataReader(Tsv(train="a.tsv"), tmp_path).splits(0)
    assert [problem.place.line for problem in caught.value.problems if problem.place] == [1, 2, 4]


@pytest.mark.parametrize(
    ("table", "key"),
    [(Tsv(train="a.tsv", target=9), "target"), (Tsv(train="a.tsv", source=(1, 9)), "source")],
)
def test_a_column_that_no_line_has_is_told_once(tmp_path: Path, table: Tsv, key: str) -> None:
    (tmp_path / "a.tsv").write_text(20 * "a\tb\n")
    with pytest.raises(TrainingError, match=rf"a.tsv` has 2 columns, and `{key}` is column 9$"):
        DataReader(table, tmp_path).splits(0)


def test_of_many_bad_lines_the_first_are_told_and_the_others_counted(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n" + 4321 * "a\n")
    (tmp_path / "b.tsv").write_text(11 * "\tb\n")
    with pytest.raises(TrainingError) as caught:
        DataReader(Tsv(train="a.tsv", test="b.tsv"), tmp_path).splits(0)
    places = [problem.place for problem in caught.value.problems if problem.place]
    of_file = {
        name: [p.line for p in places if p.file.endswith(name)] for name in ("a.tsv", "b.tsv")
    }
    assert of_file == {"a.tsv": [*range(2, 12), None], "b.tsv": [*range(1, 11), None]}
    told = str(caught.value)
    assert "a.tsv: error: 4,311 more lines have one side missing" in told
    assert "b.tsv: error: 1 more line has one side missing" in told


@pytest.mark.parametrize(
    ("de", "en", "short"), [("x\ny\n", "1\n2\n3\n", "a.de"), ("x\ny", "1", "a.en")]
)
def test_parallel_files_of_different_lengths(tmp_path: Path, de: str, en: str, short: str) -> None:
    (tmp_path / "a.de").write_text(de)
    (tmp_path / "a.en").write_text(en)
    with pytest.raises(TrainingError, match=rf"{short}`, which ends before it"):
        DataReader(Parallel(train=Files(source="a.de", target="a.en")), tmp_path).splits(0)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.text(max_size=2)), min_size=1),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
def test_no_source_is_in_two_parts(
    pairs: list[tuple[str, str]], counts: list[int], seed: int
) -> None:
    examples = [Example(*pair) for pair in pairs]
    sources = {example.source for example in examples}
    if sum(counts) >= len(sources):
        with pytest.raises(TrainingError, match="none would be left"):
            held_out(examples, counts, seed)
        return
    parts = held_out(examples, counts, seed)
    found = [{example.source for example in part} for part in parts]
    assert [len(one) for one in found[1:]] == counts
    assert set().union(*found) == sources
    assert sum(map(len, found)) == len(sources)
    assert Counter(chain(*parts)) == Counter(examples)
    shuffled = sorted(examples, key=repr, reverse=True)
    again = held_out(shuffled, counts, seed)
    assert [{example.source for example in part} for part in again] == found


@pytest.mark.parametrize(("source", "what"), [(None, "different lines"), ("x", "source sentences")])
def test_more_is_held_out_than_there_is(source: str | None, what: str) -> None:
    with pytest.raises(TrainingError, match=rf"2 {what} for `valid` and `test`.* of 1"):
        held_out([Example(source, "y")], [1, 1], 0)


def test_held_out_data_that_is_too_much_is_told_at_the_larger_number(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tx\na\ty\nb\tx\nb\tx\n")
    for valid, test, larger in ((3, 1, "valid"), (1, 3, "test")):
        with pytest.raises(TrainingError) as caught:
            DataReader(Tsv(train="a.tsv", valid=valid, test=test), tmp_path, Place).splits(0)
        assert str(caught.value) == (
            f"{larger}: error: 4 source sentences for `valid` and `test` cannot be held out of 2, "
            "in 3 different pairs: none would be left"
        )


def test_the_seed_decides_what_is_held_out() -> None:
    held = {frozenset(held_out(EXAMPLES, [8], seed)[1]) for seed in range(4)}
    assert len(held) == 4


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return learn_tokens(Bpe(), EXAMPLES, SIDES)


def test_a_tokenizer_of_targets_that_panics() -> None:
    """As one that a recipe names may; what the package raises then is no `Exception`."""
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = Strip("a", 1, 1)
    tokens = Tokens(tokenizer, tokenizer, source_pad=0, pad=0, bos=0, eos=0)
    with pytest.raises(TrainingError, match="of the targets cannot make a text of ids"):
        tokens.decode_targets([[0]])


def test_tokens_of_any_text_come_back(tokens: Tokens, tmp_path: Path) -> None:
    texts = [
        "mein Hund ist groß",
        "ünïcödé \N{SNOWMAN} 漢字",
        "a  b",
        "It's.",
        " a",
        "    b ",
        "\tc",
    ]
    assert tokens.decode_targets(tokens.encode_targets(texts)) == texts
    assert tokens.encode_targets(["e\N{COMBINING ACUTE ACCENT}"]) == tokens.encode_targets(["é"])
    tokens.save(tmp_path)
    again = read_tokens(tmp_path, Bpe(), SIDES)
    assert again.encode_targets(texts) == tokens.encode_targets(texts)
    (begun,), (inner,) = (tokens.encode_targets([text]) for text in ("dog", "big dog"))
    assert begun == inner[-len(begun) :]
    assert (again.pad, again.bos, again.eos) == (tokens.pad, tokens.bos, tokens.eos) == (0, 1, 2)


def test_a_source_ends_with_its_end(tokens: Tokens) -> None:
    (source,), (target,) = tokens.encode_sources(["ein Bier"]), tokens.encode_targets(["ein Bier"])
    assert [*source] == [*target, tokens.eos]


def test_text_to_continue_starts_with_its_begin() -> None:
    tokens = learn_tokens(Bpe(), EXAMPLES, Generation(target_vocab=290))
    (source,), (target,) = tokens.encode_sources(["a dog"]), tokens.encode_targets(["a dog"])
    assert [*source] == [tokens.bos, *target]


def test_learning_tokens_is_repeatable(tokens: Tokens) -> None:
    again = learn_tokens(Bpe(), EXAMPLES, SIDES)
    assert again.source.to_str() == tokens.source.to_str()


def test_two_vocabularies(tmp_path: Path) -> None:
    sides = Generation(target_vocab=280, source_vocab=290, has_source=True)
    two = learn_tokens(Bpe(shared=False), EXAMPLES, sides)
    assert (two.source.get_vocab_size(), two.target.get_vocab_size()) == (290, 280)
    two.save(tmp_path)
    again = read_tokens(tmp_path, Bpe(shared=False), sides)
    assert again.target.to_str() == two.target.to_str() != again.source.to_str()


def test_tokenizers_that_do_not_agree_with_the_model(tokens: Tokens, tmp_path: Path) -> None:
    tokens.save(tmp_path)
    sides = Generation(
        target_vocab=299, source_vocab=300, has_source=True, pad_id=0, source_pad_id=3
    )
    with pytest.raises(TrainingError) as caught:
        read_tokens(tmp_path, Bpe(), sides)
    assert [problem.message for problem in caught.value.problems] == [
        "the tokenizer and the model disagree: padding is 0 for the source tokenizer, and 3 for "
        "the model",
        "the tokenizer and the model disagree: 300 target tokens, and a vocabulary of 299",
    ]
    with pytest.raises(TrainingError, match=r"(?s)no token `</S>`.*did you mean `</s>`"):
        read_tokens(tmp_path, Bpe(eos="</S>"), SIDES)
    with pytest.raises(TrainingError) as caught:
        read_tokens(tmp_path, Bpe(pad="<PAD>"), SIDES)
    assert len(caught.value.problems) == 1  # one tokenizer for both sides
    larger = Generation(target_vocab=301, source_vocab=320, has_source=True)
    assert read_tokens(tmp_path, Bpe(), larger).pad == 0


def test_padding_of_a_model_is_compared_before_a_tokenizer_is_learned() -> None:
    sides = SIDES._replace(pad_id=3, source_pad_id=4)
    with pytest.raises(TrainingError) as caught:
        check_fit(Bpe(), sides)
    told = [problem.message.partition(": ")[2] for problem in caught.value.problems]
    assert told == [
        "padding is 0 for the source tokenizer, and 4 for the model",
        "padding is 0 for the target tokenizer, and 3 for the model",
    ]


def test_a_vocabulary_has_room_for_all_bytes() -> None:
    """256 of them, and three special tokens, or four with that of a mask."""
    for least, sides in (
        (259, SIDES._replace(source_vocab=259, target_vocab=259)),
        (259, Generation(target_vocab=259)),
        (260, Reader(260, None, 0, "source_mask", 0, None)),
    ):
        key = "vocab" if isinstance(sides, Reader) else "target_vocab"
        check_fit(Bpe(shared=False), sides)
        learn_tokens(Bpe(shared=False), EXAMPLES, sides)
        smaller = sides._replace(**{key: least - 1})
        told = f"{least} tokens, and the model's vocabulary is {least - 1}"
        with pytest.raises(TrainingError, match=told):
            check_fit(Bpe(shared=False), smaller)


def test_each_side_has_its_own_special_ids(tmp_path: Path) -> None:
    for name, ids in {"source": (5, 6, 7), "target": (2, 0, 1)}.items():
        vocab = dict(zip(("<pad>", "<s>", "</s>"), ids, strict=True)) | {"ein": 9}
        Tokenizer(WordLevel(vocab, unk_token="ein")).save(str(tmp_path / name))
    sides = Generation(target_vocab=10, source_vocab=10, has_source=True, source_pad_id=5, pad_id=2)
    table = TokenizerFiles(source="source", target="target")
    found = read_token_files(tmp_path / "source", tmp_path / "target", table, sides)
    assert (found.source_pad, found.pad, found.bos, found.eos) == (5, 2, 0, 1)


def test_ids_that_a_tokenizer_leaves_out_count(tmp_path: Path) -> None:
    known = {"<pad>": 0, "<s>": 1, "</s>": 2, "ein": 299}
    Tokenizer(WordLevel(known, unk_token="ein")).save(str(tmp_path / "tokenizer.json"))
    (ids,) = read_tokens(tmp_path, Bpe(), SIDES).encode_targets(["ein"])
    assert [*ids] == [299]
    with pytest.raises(TrainingError, match="300 target tokens, and a vocabulary of 299"):
        read_tokens(tmp_path, Bpe(), Generation(target_vocab=299))


def test_long_pairs_are_left_out_and_long_text_is_cut(tokens: Tokens) -> None:
    rows = TextObjective(tokens, 8).encode(EXAMPLES)
    lengths = [
        max(len(a) for a in (tokens.encode_sources([one.source or ""])[0], (*b, 0)))
        for one, b in zip(
            EXAMPLES, tokens.encode_targets([e.target for e in EXAMPLES]), strict=True
        )
    ]
    assert 0 < len(rows) == sum(length <= 8 for length in lengths) < len(EXAMPLES)
    text = [Example(None, "ein Hund " * 9)]
    (whole,) = tokens.encode_targets([text[0].target])
    cut = TextObjective(tokens, 5).encode(text)
    predicted = [token for row in cut for token in row.target[1:]]
    assert predicted == [*whole, tokens.eos]  # each token once, and one end
    read = [token for row in cut for token in row.target[:-1]]
    assert read == [tokens.bos, *whole]  # each predicted from the previous one
    assert [row.length for row in cut][:-1] == [5] * (len(cut) - 1)
    assert 1 <= cut[-1].length <= 5
    (short,) = TextObjective(tokens, len(whole) + 1).encode(text)
    assert [*short.target] == [tokens.bos, *whole, tokens.eos]


def test_texts_are_encoded_once_and_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_texts: list[int] = []

    class Counting:
        def __init__(self, path: Path) -> None:
            self.inner = Tokenizer.from_file(str(path))

        def encode_batch(self, texts: list[str], **options: Any) -> list[Any]:
            n_texts.append(len(texts))
            return self.inner.encode_batch(texts, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    recipe = write_toy(tmp_path, RECIPE.replace('"bpe"', '"files"\nsource = "tokenizer.json"'))
    shared = learn_tokens(Bpe(), EXAMPLES, SIDES).source
    shared.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("zoo.training.tokens.read_tokenizer", Counting)
    monkeypatch.setattr("zoo.running.tokenizer_file._AT_ONCE", 25)
    zoo.train(recipe, output=tmp_path / "run")
    assert sum(n_texts) == 2 * len(EXAMPLES)
    assert max(n_texts) == 25


def test_packed_text_is_joined_and_cut(tokens: Tokens) -> None:
    texts = [Example(None, text) for text in ("ein Hund", "kein Bier ist alt", "mein Haus")]
    joined: list[int] = []
    for ids in tokens.encode_targets([text.target for text in texts]):
        joined += [tokens.bos, *ids, tokens.eos]
    packed = TextObjective(tokens, 4).encode(texts, packed=True)
    assert [row.length for row in packed[:-1]] == [4] * (len(packed) - 1)
    assert [token for row in packed for token in row.target[1:]] == joined[1:]
    assert [token for row in packed for token in row.target[:-1]] == joined[:-1]
    (one,) = TextObjective(tokens, 100).encode(texts, packed=True)  # longer than all the text
    assert [*one.target] == joined


@pytest.mark.parametrize("kind", ["text", "datasets"])
@pytest.mark.parametrize("packed", ["true", "false"])
def test_all_but_the_test_data_is_packed_if_the_recipe_says_so(
    kind: str, packed: str, tokens: Tokens, tmp_path: Path
) -> None:
    data = {"text": 'train = "a.txt"', "datasets": 'path = "set"\ntarget = "text"'}[kind]
    stated = f'kind = "{kind}"\n{data}\npacked = {packed}'
    recipe = RECIPE.replace('kind = "tsv"\ntrain = "toy.tsv"', stated)
    recipe = recipe.replace("= 300", "= 300\nmax_length = 9")
    texts = [Example(None, target) for _, target in PAIRS]
    table = read_recipe(write_toy(tmp_path, recipe))
    objective = objective_of(table, tokens, ())
    rows = encode_parts(Splits(texts, texts[:9], texts[:9]), objective, table)
    for found, of in ((rows.train, texts), (rows.valid, texts[:9])):
        assert found == objective.encode(of, packed=packed == "true")
    assert rows.test == objective.encode(texts[:9])
    assert (rows.test == rows.valid) == (packed == "false")


ROWS = st.lists(
    st.builds(
        lambda source, target: Row([0] * source, [0] * target),
        st.integers(1, 9),
        st.integers(2, 11),
    ),
    min_size=1,
    max_size=40,
)


@given(ROWS, st.integers(1, 50), st.integers(0, 5))
def test_batches(rows: list[Row], tokens: int, epoch: int) -> None:
    found = batches(rows, tokens=tokens, seed=3, epoch=epoch)
    assert sorted(place for batch in found for place in batch) == list(range(len(rows)))
    for batch in found:
        longest = max(max(len(rows[p].target) - 1, len(rows[p].source or ())) for p in batch)
        assert len(batch) == 1 or len(batch) * longest <= tokens
    assert found == batches(rows, tokens=tokens, seed=3, epoch=epoch)
    assert len(found) == len(batches(rows, tokens=tokens, seed=4, epoch=epoch + 1))


def test_what_a_row_counts() -> None:
    """Each target token but the first is predicted, and counted in the tokens per second."""
    row = Row(source=[5, 6, 7, 8, 9], target=[1, 5, 6, 2])
    assert (row.length, row.n_labels, n_tokens([row])) == (5, 3, 3)


def test_a_batch_is_filled_up() -> None:
    rows = [Row([0], [0] * 6)] * 6  # 5 tokens, each from those before it
    assert [len(batch) for batch in batches(rows, tokens=15, seed=0, epoch=0)] == [3, 3]
    assert [len(batch) for batch in batches(rows, tokens=14, seed=0, epoch=0)] == [2, 2, 2]


def test_epochs_differ_in_their_order() -> None:
    rows = [Row([0], [place]) for place in range(40)]
    orders = [batches(rows, tokens=8, seed=0, epoch=epoch) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert orders[1] != batches(rows, tokens=8, seed=1, epoch=0)


def test_rows_of_equal_length_are_in_the_order_that_the_seed_gives() -> None:
    """On every machine: an unstable sort has another order with other instructions."""
    rows = [Row(None, [0] * (2 + place % 2)) for place in range(300)]
    random = np.random.default_rng([3, 1])
    in_order = sorted(random.permutation(300).tolist(), key=lambda place: rows[place].length)
    expected = [[in_order[place]] for place in random.permutation(300)]
    assert batches(rows, tokens=1, seed=3, epoch=1) == expected


def test_batches_do_not_come_by_their_lengths() -> None:
    rows = [Row([0] * length, [0, 0]) for length in range(1, 41)]
    lengths = [rows[batch[0]].length for batch in batches(rows, tokens=80, seed=0, epoch=0)]
    assert lengths != sorted(lengths)


@given(st.integers(1, 9), st.integers(1, 5))
def test_parts_make_the_whole(size: int, count: int) -> None:
    batch = [Row(None, [place]) for place in range(size)]
    parts = [part(batch, index, count) for index in range(count)]
    assert sorted(row.target[0] for one in parts for row in one) == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1

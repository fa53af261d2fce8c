"""Models that classify each word: what they learn, how they are scored, and the spans that `zoo
run` finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from one_step import check_one_step
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from toy_encoders import CLASSES, RECIPE_OF_CLASSES, SPECIALS, reader_tokens, write_encoder
from transformers import (
    AutoModelForTokenClassification,
    BertConfig,
    BertForTokenClassification,
    PreTrainedTokenizerFast,
)
from trials import Refused

import zoo
from zoo.cli import run
from zoo.running.entities import Entity, entities, marks_entities
from zoo.running.tokenizer_file import read_tokenizer
from zoo.training.batches import IGNORED, n_labels
from zoo.training.data import DataReader
from zoo.training.data_tables import Datasets, Jsonl
from zoo.training.example import Example
from zoo.training.f1 import entity_scores
from zoo.training.loss import ReadBatch, summed_loss
from zoo.training.reader_objective import ReaderObjective
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.sides import sides_of

pytestmark = pytest.mark.usefixtures("without_pictures")

Train = Callable[..., dict[str, Any]]
NAMES = [("Ada", "Love", "##lace"), ("Alan", "Turing"), ("Grace",)]
PLACES = [("Paris",), ("New", "York")]
PIECES = sorted({piece for name in [*NAMES, *PLACES] for piece in name} | {"met", "in", "."})
VOCAB = [*SPECIALS, *PIECES]


def words_of(pieces: Sequence[str]) -> list[str]:
    return " ".join(pieces).replace(" ##", "").split()


def sentence(*parts: tuple[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Words, and their labels, from pieces of entities with their types."""
    words: list[str] = []
    labels: list[str] = []
    for kind, pieces in parts:
        own = words_of(pieces)
        words += own
        marks = [f"B-{kind}", *[f"I-{kind}"] * (len(own) - 1)]
        labels += ["O"] * len(own) if kind == "O" else marks
    return words, labels


SENTENCES = [
    sentence(
        ("PER", one), ("O", ["met"]), ("PER", other), ("O", ["in"]), ("LOC", place), ("O", ".")
    )
    for one in NAMES
    for other in NAMES
    for place in PLACES
]
LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
NER = (
    CLASSES.replace('"classes"', '"ner"')
    .replace("vocab = 31", f"vocab = {len(VOCAB)}")
    .replace(
        '{ kind = "classifier", n_classes = 3 }', '{ kind = "token_classifier", n_classes = 5 }'
    )
)
RECIPE = (
    RECIPE_OF_CLASSES.replace('name = "classes"', 'name = "ner"')
    .replace('"tsv"', '"jsonl"')
    .replace('"labels.tsv"', '"ner.jsonl"\nsource = "tokens"\ntarget = "tags"')
    .replace("valid = 6", "valid = 2")
)


def pieces(path: Path) -> None:
    """Write a tokenizer of pieces of words, as BERT's."""
    vocab = {piece: number for number, piece in enumerate(VOCAB)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path))


def write_words(folder: Path, recipe: str = RECIPE, model: str = NER) -> None:
    write_encoder(folder, recipe, model)
    pieces(folder / "words.json")
    rows = [{"tokens": words, "tags": labels} for words, labels in SENTENCES]
    (folder / "ner.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def train(project: Path) -> Train:
    """Return a function that trains in the working directory and returns the metrics."""

    def made(out: str, recipe: str = RECIPE, model: str = NER, **options: Any) -> Any:
        write_words(project, recipe, model)
        return zoo.train("recipe.toml", output=out, **options)

    return made


def example(words: Sequence[str], labels: Sequence[str]) -> Example:
    return Example(tuple(words), tuple(labels))


# --- entities and their scores ------------------------------------------------------------------

LABELLED: dict[str, tuple[str, list[Entity]]] = {
    "nothing": ("O O", []),
    "one word": ("O B-PER O", [Entity("PER", 1, 2)]),
    "at the edges": ("B-PER I-PER O B-LOC", [Entity("PER", 0, 2), Entity("LOC", 3, 4)]),
    "two of a type side by side": ("B-PER B-PER I-PER", [Entity("PER", 0, 1), Entity("PER", 1, 3)]),
    "of two types side by side": ("B-PER B-LOC", [Entity("PER", 0, 1), Entity("LOC", 1, 2)]),
    "no begin": ("O I-PER I-PER", [Entity("PER", 1, 3)]),
    "another type within": (
        "B-PER I-LOC I-PER",
        [Entity(k, n, n + 1) for n, k in enumerate(["PER", "LOC", "PER"])],
    ),
    "a hyphen in a type": ("B-A-B I-A-B", [Entity("A-B", 0, 2)]),
}


@pytest.mark.parametrize(("labels", "found"), LABELLED.values(), ids=LABELLED)
def test_entities(labels: str, found: list[Entity]) -> None:
    assert entities(labels.split()) == found


def test_labels_of_entities_are_known_by_their_form() -> None:
    assert marks_entities(LABELS)
    assert marks_entities(["B-PER"])
    assert not marks_entities(["O"])
    assert not marks_entities(["NOUN", "VERB", "O"])
    assert not marks_entities(["B-PER", "E-PER", "O"])


def test_an_entity_counts_as_a_whole() -> None:
    """By hand: of three right ones, and of four found ones, one is both."""
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O"]]
    found = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "B-PER"]]
    scores = entity_scores(right, found)
    assert scores == pytest.approx((1 / 4, 1 / 3, 2 / 7))
    assert entity_scores(right, right) == (1.0, 1.0, 1.0)
    assert entity_scores([["O"]], [["O"]]) == (0.0, 0.0, 0.0)
    # One of the same words in another text is another one.
    assert entity_scores([["B-PER"], ["O"]], [["O"], ["B-PER"]]).f1 == 0.0


def test_scores_of_entities_are_those_of_seqeval() -> None:
    """As seqeval 1.2.2 computes them for the same labels; it is no dependency."""
    random = Random(0)
    labels = [*LABELS, "O", "O"]

    def drawn() -> list[list[str]]:
        return [random.choices(labels, k=length) for length in range(1, 30)]

    scores = entity_scores(drawn(), drawn())
    assert scores == pytest.approx((0.22123893805309736, 0.2403846153846154, 0.2304147465437788))


# --- what is predicted --------------------------------------------------------------------------


def byte_level(path: Path) -> None:
    """Write a tokenizer of bytes in words that begin with their space, as RoBERTa's."""
    tokenizer = Tokenizer(models.BPE({}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    from tokenizers import trainers

    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(words) for words, _ in SENTENCES], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(path))


def metaspace(path: Path) -> None:
    """Write a tokenizer of pieces with a mark for each space, as T5's."""
    scores = [("<unk>", 0.0), ("<pad>", 0.0), ("▁", -3.0)]
    alphabet = sorted({letter for words, _ in SENTENCES for letter in "".join(words)})
    scores += [(letter, -4.0) for letter in alphabet] + [("▁Par", -2.0), ("is", -2.0)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(path))


@pytest.mark.parametrize("write", [pieces, byte_level, metaspace])
def test_the_first_piece_of_each_word_has_its_label(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    """For each kind of tokenizer: the piece after which the text of all before ends in the word."""
    write(tmp_path / "words.json")
    model = zoo.build(NER.replace(f"vocab = {len(VOCAB)}", "vocab = 300"))
    tokenizer = read_tokenizer(tmp_path / "words.json")
    pad = "[PAD]" if write is pieces else "<pad>"
    spec = zoo.read_spec({**model.spec.to_dict()})
    sides = sides_of(spec)
    assert sides is not None
    tokens = ReaderTokens(tokenizer, sides._replace(pad_id=None), tokenizer.token_to_id(pad), None)
    words, _ = SENTENCES[1]  # Ada Lovelace met Ada Lovelace in New York .
    (row,) = tokens.encode_words([words], longest=100)
    text = " ".join(words)
    offsets = tokenizer.encode(text).offsets
    starts = [len(" ".join(words[:n])) + (n > 0) for n in range(len(words))]
    for place, start, word in zip(row.first, starts, words, strict=True):
        assert place is not None
        begin, end = offsets[place]
        assert begin in (start - 1, start)
        assert word.startswith(text[begin:end].strip())
    assert row.first == sorted(set(row.first), key=lambda place: place or 0)


def test_a_text_without_a_word_that_has_tokens_is_left_out(tmp_path: Path) -> None:
    """BERT's tokenizer makes nothing of a zero-width space."""
    pieces(tmp_path / "words.json")
    tokens = reader_tokens(zoo.build(NER), tmp_path / "words.json")
    tokens.tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    rows = ReaderObjective(tokens, 10, LABELS).encode(
        [
            example(["\u200b"], ["B-PER"]),
            example(["Ada", "\u200b", "met"], ["B-PER", "B-LOC", "O"]),
            example(["\u200b", "\u200b"], ["O", "O"]),
        ]
    )
    assert [[*row.labels] for row in rows] == [[IGNORED, 1, 4, IGNORED]]


def test_loss_and_one_step_are_those_of_transformers(tmp_path: Path) -> None:
    """With the labels of the first pieces, as the guide of `transformers` makes them."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = {"intermediate_size": 24, "max_position_embeddings": 16, "vocab_size": len(VOCAB)}
    theirs: Any = BertForTokenClassification(BertConfig(**sizes, **shape, num_labels=5))
    theirs.save_pretrained(tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "mine")
    theirs = theirs.double().eval()
    ours = zoo.load(tmp_path / "mine", dtype=torch.float64).eval()
    pieces(tmp_path / "words.json")
    tokens = reader_tokens(ours, tmp_path / "words.json")
    chosen = [*SENTENCES[:3], (["Grace"], ["B-PER"])]
    objective = ReaderObjective(tokens, 10, LABELS)
    rows = objective.encode([example(*one) for one in chosen])
    batch = objective.collate(rows, torch.device("cpu"))
    assert isinstance(batch, ReadBatch)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "words.json"), pad_token="[PAD]"
    )
    encoded = tokenizer(
        [words for words, _ in chosen],
        is_split_into_words=True,
        padding=True,
        truncation=True,
        max_length=10,
        return_tensors="pt",
    )
    labels = torch.full_like(encoded["input_ids"], IGNORED)
    for row, (_, tags) in enumerate(chosen):
        before = None
        for place, word in enumerate(encoded.word_ids(row)):
            if word is not None and word != before:
                labels[row, place] = LABELS.index(tags[word])
            before = word
    assert torch.equal(batch.ids, encoded["input_ids"])
    assert torch.equal(batch.labels, labels)
    mask = {"attention_mask": encoded["attention_mask"]}
    check_one_step(
        ours,
        theirs,
        lambda: summed_loss(ours, batch, label_smoothing=0.0) / n_labels(rows),
        lambda: theirs(encoded["input_ids"], **mask, labels=labels).loss,
    )


# --- whole runs ---------------------------------------------------------------------------------


def test_entities_are_learned(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = RECIPE.replace("steps = 8", "steps = 80").replace("every = 4", "every = 80")
    recipe = recipe.replace("valid = 2", "valid = 2\ntest = 2").replace("= 60", "= 200")
    report = train("out", recipe, NER.replace("0.1", "0.0"))
    scores = {"accuracy": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert report["valid_accuracy"] == 1.0
    found = zoo.score("out", data=".")
    assert {key: found[key] for key in scores} == scores
    assert found["words"] == report["words"] > 10
    model = zoo.TextModel.load("out")
    assert model.transformer.spec.model.classes == (5, LABELS, True, None)
    text = "Ada Lovelace met Grace in New York."
    (result,) = model.run([text])
    told = [(one["label"], one["text"], one["start"], one["end"]) for one in result["spans"]]
    last = ("LOC", "New York", 26, 34)
    assert told == [("PER", "Ada Lovelace", 0, 12), ("PER", "Grace", 17, 22), last]
    assert all(text[one["start"] : one["end"]] == one["text"] for one in result["spans"])
    # The mean of what the first pieces of its words say.
    at = {"Ada": 1, "Love": 2}
    values = [result["classes"][place][0]["probability"] for place in at.values()]
    assert result["spans"][0]["probability"] == pytest.approx(sum(values) / 2)
    capsys.readouterr()
    assert run(["run", "out", text]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("PER ")
    assert shown.endswith(" New York\n")
    assert run(["score", "out", "--data", "."]) == 0
    assert "F1 of entities 1.0000 (precision 1.0000, recall 1.0000)" in capsys.readouterr().out


def test_labels_that_mark_no_entities_are_of_each_word(train: Train, project: Path) -> None:
    """Such as parts of speech: no F1 of entities, and each word is a span."""
    write_words(project)
    rows = [
        {"tokens": words, "tags": ["name" if word[0].isupper() else "other" for word in words]}
        for words, _ in SENTENCES
    ]
    Path("pos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = RECIPE.replace("ner.jsonl", "pos.jsonl").replace("steps = 8", "steps = 120")
    recipe = recipe.replace("valid = 2", 'test = "pos.jsonl"')
    report = train("out", recipe, NER.replace("classes = 5", "classes = 2").replace("0.1", "0.0"))
    assert report["accuracy"] > 0.95
    assert "f1" not in report
    (found,) = zoo.TextModel.load("out").run(["Grace met Ada."])
    told = [(one["label"], one["text"]) for one in found["spans"]]
    assert told == [("name", "Grace"), ("other", "met"), ("name", "Ada"), ("other", ".")]


def test_words_that_are_cut_off_are_not_found(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPE.replace("steps = 8", "steps = 80").replace("max_length = 12", "max_length = 5")
    recipe = recipe.replace("valid = 2", "test = 2")
    report = train("out", recipe, NER.replace("0.1", "0.0"))
    told = capsys.readouterr().err
    assert "16 of 16 texts are longer than max_length = 5, and truncated" in told
    assert report["test_accuracy"] == 1.0  # of the words that are read
    assert 0 < report["recall"] < 0.5
    assert report["accuracy"] < 0.5


def test_a_resumed_run_is_the_same(train: Train) -> None:
    whole = train("whole")
    train("out", RECIPE.replace("steps = 8", "steps = 4"))
    assert train("out", resume=True)["content_digest"] == whole["content_digest"]


def test_an_imported_model_is_trained_further_and_exported(train: Train, project: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape = {"intermediate_size": 24, "max_position_embeddings": 16, "vocab_size": len(VOCAB)}
    BertForTokenClassification(BertConfig(**sizes, **shape, num_labels=5)).save_pretrained("source")
    zoo.import_folder("source", "bert")
    train("out", RECIPE.replace('"model.toml"', '"bert"'))
    assert run(["export", "out", "--to", "hf", "-o", "back"]) == 0
    theirs: Any = AutoModelForTokenClassification.from_pretrained("back").eval()
    assert theirs.config.id2label == dict(enumerate(LABELS))
    ids = torch.tensor([read_tokenizer(Path("words.json")).encode("Ada met Grace").ids])
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(zoo.load("out").eval()(ids), expected)


# --- the data -----------------------------------------------------------------------------------


def test_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": " a b ", "y": {"n": 3}}\n\n{"text": "c", "y": {"n": "x"}}\r\n'
        '{"text": "", "y": {"n": null}}\n'
    )
    found = DataReader(Jsonl(train="a.jsonl", source="text", target="y.n"), tmp_path).splits(0)
    assert found.train == [Example("a b", "3"), Example("c", "x")]
    (tmp_path / "b.jsonl").write_text('{"p": "a", "h": "b", "y": "c"}\n')
    found = DataReader(Jsonl(train="b.jsonl", source=("p", "h"), target="y"), tmp_path).splits(0)
    assert found.train == [Example("a", "c", "b")]
    (tmp_path / "c.jsonl").write_text('{"x.t": 1.50, "y": true}\n{"x.t": "a", "y": 1e2}\n')
    found = DataReader(Jsonl(train="c.jsonl", source="x.t", target="y"), tmp_path).splits(0)
    assert found.train == [Example("1.50", "true"), Example("a", "1e2")]


def test_lists_of_a_data_set_have_the_names_of_their_numbers(tmp_path: Path) -> None:
    import datasets

    of_names = datasets.List(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "tags": of_names}
    )
    rows = {"tokens": [["Ada", "met"], ["in"]], "tags": [[1, 0], [0]]}
    made = datasets.Dataset.from_dict(rows, features=features)
    (tmp_path / "set").mkdir()
    made.to_parquet(str(tmp_path / "set" / "train.parquet"))
    found = DataReader(Datasets(path="set", source="tokens", target="tags"), tmp_path).splits(0)
    assert found.train == [example(["Ada", "met"], ["B-PER", "O"]), example(["in"], ["O"])]


# --- what is refused ----------------------------------------------------------------------------

REFUSALS: dict[str, tuple[str, str, str]] = {
    "another number of labels": (
        '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", "b"], "tags": ["O"]}\n',
        NER,
        "bad.jsonl:2:1: error: there are 2 words and 1 label",
    ),
    "a text between words": (
        '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": "a", "tags": "O"}\n',
        NER,
        "bad.jsonl:2:1: error: there is no list here, and the source and the target are lists in",
    ),
    "no such field": (
        '{"tokens": ["a"], "tag": ["O"]}\n',
        NER,
        "bad.jsonl:1:1: error: there is no field `tags`",
    ),
    "no JSON": (
        '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"], "tags"}\n',
        NER,
        "bad.jsonl:2:25: error: no JSON: Expecting ':' delimiter\n    2 | ",
    ),
    "a table on several lines": (
        json.dumps({"tokens": ["a"], "tags": ["O"]}, indent=1),
        NER,
        "bad.jsonl:1:2: error: no JSON: Expecting property name enclosed in double quotes\n"
        "    1 | {\n      |  ^\n      = help: each line is a table: ",
    ),
    "a key that is written twice": (
        '{"tokens": ["a"], "tags": ["O"], "tags": ["B-PER"]}\n',
        NER,
        "bad.jsonl:1:1: error: no JSON: the key `tags` is written twice",
    ),
    "a number that is none": (
        '{"tokens": [NaN], "tags": ["O"]}\n',
        NER,
        "bad.jsonl:1:1: error: no JSON: NaN is no number",
    ),
    "JSON without end": ("[" * 100_000 + "\n", NER, "bad.jsonl:1:1: error: no JSON: maximum recur"),
    "a table as a word": (
        '{"tokens": ["a", {"b": 1}], "tags": ["O", "O"]}\n',
        NER,
        "bad.jsonl:1:1: error: value 2 of the field `tokens` is a table, and no text or label",
    ),
    "a list as a label": (
        '{"tokens": ["a"], "tags": [["O"]]}\n',
        NER,
        "bad.jsonl:1:1: error: value 1 of the field `tags` is a list, and no text or label",
    ),
    "null as a label": (
        '{"tokens": ["a", "b"], "tags": ["O", null]}\n',
        NER,
        "bad.jsonl:1:1: error: value 2 of the field `tags` is null, and no text or label",
    ),
    "null as a word": (
        '{"tokens": ["a", null], "tags": ["O", "O"]}\n',
        NER,
        "bad.jsonl:1:1: error: value 2 of the field `tokens` is null, and no text or label",
    ),
    "an empty label": (
        '{"tokens": ["a", "b"], "tags": ["O", " "]}\n',
        NER,
        "bad.jsonl:1:1: error: label 2 of the list is missing",
    ),
    "half a character": (
        '{"tokens": ["a\\ud83d"], "tags": ["O"]}\n',
        NER,
        "bad.jsonl:1:1: error: the field `tokens` has half of a character, `\\ud83d`",
    ),
    "no label": (
        '{"tokens": "a", "tags": null}\n',
        CLASSES,
        'bad.jsonl:1:29: error: the target is missing\n    1 | {"tokens": "a", "tags": null}\n'
        "      |                             ^\n",
    ),
    "no table": ("[1]\n", NER, "bad.jsonl:1:1: error: this is JSON, but no table"),
    "a list of tables": (
        '[\n{"tokens": ["a"], "tags": ["O"]}\n]\n',
        NER,
        "bad.jsonl:1:2: error: no JSON: Expecting value\n    1 | [\n      |  ^\n"
        "      = help: each line is a table: `{",
    ),
    "texts for a model of words": (
        '{"tokens": "a", "tags": "O"}\n',
        NER,
        "recipe.toml:8:10: error: the data is pairs, and the model learns from lists of words",
    ),
    "words for a model of texts": (
        '{"tokens": ["a"], "tags": ["O"]}\n',
        CLASSES,
        "recipe.toml:8:10: error: the data is words with lists of labels, and the model learns "
        "from texts with labels",
    ),
    "a label too many": (
        json.dumps({"tokens": ["a"] * 6, "tags": [*LABELS, "B-X"]}) + "\n",
        NER,
        "the training data has 6 labels, and ner scores 5 classes",
    ),
    "an unknown label": (
        '{"tokens": ["a", "b"], "tags": ["O", "B-PRE"]}\n',
        NER.replace("n_classes = 5", f"n_classes = 5, labels = {json.dumps(LABELS)}"),
        "bad.jsonl:1:39: error: unknown label `B-PRE`",
    ),
    "an unknown label that is written elsewhere too": (
        '{"tokens": ["a", "B-PRE"], "tags": ["O", "B-PRE"], "note": "B-PRE"}\n',
        NER.replace("n_classes = 5", f"n_classes = 5, labels = {json.dumps(LABELS)}"),
        "bad.jsonl:1:1: error: unknown label `B-PRE`",
    ),
}


@pytest.mark.parametrize(("data", "model", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_is_refused_with_its_place(
    project: Path, refused: Refused, data: str, model: str, told: str
) -> None:
    write_words(
        project, RECIPE.replace("ner.jsonl", "bad.jsonl").replace("valid = 2", "valid = 0"), model
    )
    Path("bad.jsonl").write_text(data)
    assert told in refused("validate", "recipe.toml")
    assert told in refused("train", "recipe.toml", "-o", "out")


def test_words_have_no_second_text(project: Path, refused: Refused) -> None:
    recipe = RECIPE.replace('"tokens"', '["tokens", "note"]').replace("ner.", "two.")
    write_words(project, recipe.replace("valid = 2", "valid = 0"))
    Path("two.jsonl").write_text('{"tokens": ["a"], "note": "b", "tags": ["O"]}\n')
    assert (
        "recipe.toml:8:10: error: the data is words and second texts with lists of labels, and the "
        "model learns from lists of words with lists of labels"
    ) in refused("validate", "recipe.toml")

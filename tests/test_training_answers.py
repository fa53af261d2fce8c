"""Decoders that learn answers: to prompts as they stand, and in chats as the chat template of the
model writes them."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from toy_training import MODEL as TRANSLATOR
from transformers import PreTrainedTokenizerFast
from trials import Refused, said
from word_tokenizers import word_tokenizer

import zoo
from zoo.registry import load_registry
from zoo.running.tokenized import read_text
from zoo.running.tokenizer_file import read_tokenizer
from zoo.training.batches import IGNORED, Parts, Row, n_tokens
from zoo.training.changes import identity
from zoo.training.checking import check_recipe
from zoo.training.example import Example
from zoo.training.loss import summed_loss
from zoo.training.objective import encode_parts, objective_of
from zoo.training.recipe import read_recipe
from zoo.training.recipe_data import find_chats, find_data
from zoo.training.recipe_tokens import make_tokens
from zoo.training.split import Splits
from zoo.training.start import find_start
from zoo.training.text_objective import TextObjective
from zoo.training.tokens import Tokens

pytestmark = pytest.mark.usefixtures("without_pictures")

SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|bot|>", "<|end|>"]
LETTERS = [*"abcdefgh ?.\n", "<think>"]
WORDS = ["[UNK]", *SPECIAL, *LETTERS]
ID = {word: number for number, word in enumerate(WORDS)}
MODEL = f"""\
format = 1
name = "letters"
builder = "decoder"
vocab = {len(WORDS)}
n_layers = 1
d_model = 32
n_heads = 2
d_ff = 64
position = "rotary"
dropout = 0.0
head = {{ kind = "linear", tied = true }}
"""
RECIPE = """\
format = 1
name = "answers"
model = "mine"

[data]
kind = "jsonl"
train = "data.jsonl"
source = "prompt"
target = "answer"

[tokenizer]
kind = "of_model"

[optimizer]
kind = "adamw"
lr = 1e-2

[schedule]
kind = "constant"

[training]
steps = 2
batch_tokens = 400
max_length = 60
"""
OF_CHATS = RECIPE.replace('source = "prompt"\ntarget = "answer"', 'messages = "chat"')
PAIRS = [("a b? ", "c."), ("ab?\n", " cd\n"), ("h ", "g")]
CHAT = [
    {"role": "user", "content": "a?"},
    {"role": "assistant", "content": "b."},
    {"role": "user", "content": "cc?"},
    {"role": "assistant", "content": "dd."},
    {"role": "user", "content": "e"},
]
TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- "<|bot|>" }}{% generation %}{{ message.content + "<|end|>" }}{% endgeneration %}
        {{- "\n" }}
    {%- else %}
        {{- "<|user|>" + message.content + "\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|bot|>" }}{% endif %}"""
THINKING = TEMPLATE.replace(
    '"<|bot|>" }}{% generation %}{{ ',
    '"<|bot|>" }}{% generation %}{{ "<think>" if loop.last else "" }}{{ ',
)
"""Begins the last answer with a thought, which it drops from the earlier ones."""


def tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer of letters, which puts `<s>` before a text."""
    made = word_tokenizer(WORDS, "[UNK]", special=SPECIAL, single="<s> $A")
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex("<think>|[\\s\\S]"), "isolated"
    )
    made.decoder = tokenizers.decoders.Fuse()
    return made


def write_model(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Save a decoder with its tokenizer, as `mine`."""
    folder.mkdir()
    zoo.save(zoo.build(MODEL, seed=0), folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    ids = {"bos_token_id": ID["<s>"], "eos_token_id": ID["<|end|>"], "pad_token_id": ID["<pad>"]}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def write_lines(*rows: object, name: str = "data.jsonl") -> None:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write_pairs(*pairs: tuple[str, str], name: str = "data.jsonl") -> None:
    write_lines(*({"prompt": prompt, "answer": answer} for prompt, answer in pairs), name=name)


def read(recipe: str = RECIPE) -> tuple[Splits, Tokens, Parts]:
    """The data of a recipe, as training reads and encodes it."""
    Path("recipe.toml").write_text(recipe)
    start = find_start(read_recipe("recipe.toml"), load_registry())
    splits = find_data(start.recipe, Path(), start.sides, find_chats(start))
    tokens = make_tokens(start, splits.train)
    assert isinstance(tokens, Tokens)
    objective = objective_of(start.recipe, tokens, ())
    return splits, tokens, encode_parts(splits, objective, start.recipe)


def learned(row: Row) -> str:
    """What is learned of a row, with a space for each token that is not."""
    assert row.labels is not None
    return "".join(" " if label == IGNORED else WORDS[label] for label in row.labels)


@pytest.fixture
def mine(project: Path) -> Path:
    return write_model(project / "mine")


# --- prompts and answers ------------------------------------------------------------------------


def test_an_answer_is_learned_behind_what_run_reads_of_its_prompt(mine: Path) -> None:
    """As the white space is, with one token for each letter and the end behind it."""
    write_pairs(*PAIRS)
    rows = read()[2].train
    reader = read_text(mine)
    for (prompt, answer), row in zip(PAIRS, rows, strict=True):
        assert isinstance(row, Row)
        assert row.source is None
        given, wanted = reader.encode(prompt), [*(ID[one] for one in answer), ID["<|end|>"]]
        assert given == [ID["<s>"], *(ID[one] for one in prompt)]
        assert list(row.target) == [*given, *wanted]
        assert list(row.labels or ()) == [IGNORED] * len(given) + wanted
        assert (row.n_labels, row.length) == (len(wanted), len(given) + len(wanted) - 1)
    assert n_tokens(rows) == sum(len(answer) + 1 for _, answer in PAIRS)


def test_an_answer_may_be_white_space(mine: Path, project: Path) -> None:
    """For training, and for what is checked before it."""
    write_pairs(("a", "\n"))
    rows = read()[2].train
    assert [*rows[0].target] == [ID[one] for one in ("<s>", "a", "\n", "<|end|>")]
    assert check_recipe(read_recipe("recipe.toml"), project, load_registry()).splits


def test_the_loss_is_that_of_the_answers(mine: Path) -> None:
    """Of rows of several lengths, each computed by itself in float64."""
    write_pairs(*PAIRS)
    _, tokens, rows = read()
    model = zoo.load(mine, dtype="float64")
    batch = TextObjective(tokens, 99).collate(rows.train, torch.device("cpu"))
    lengths = [len(prompt) + len(answer) + 1 for prompt, answer in PAIRS]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    assert torch.equal(batch.target_mask, mask)  # type: ignore[union-attr, arg-type]
    expected = 0.0
    for prompt, answer in PAIRS:
        given = [ID["<s>"], *(ID[one] for one in prompt)]
        wanted = torch.tensor([*(ID[one] for one in answer), ID["<|end|>"]])
        logits = model(torch.tensor([[*given, *wanted[:-1].tolist()]]))[0, len(given) - 1 :]
        expected += F.cross_entropy(logits, wanted, reduction="sum").item()
    assert summed_loss(model, batch, label_smoothing=0.0).item() == pytest.approx(expected, 1e-12)


@given(st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=12))
def test_tokens_of_the_answer_are_those_that_reach_into_it(prompt: str, answer: str) -> None:
    """By a byte-level encoding, which may join the end of the prompt and the answer."""
    made: Any = _bytes()
    tokens = Tokens(made, made, 0, 0, 1, 2, of_decoder=True)
    (row,) = TextObjective(tokens, 99).answers([Example(prompt, answer)])
    ids = made.encode(prompt + answer).ids
    assert list(row.target) == [*ids, 2]
    n_given = list(row.labels or ()).count(IGNORED)
    assert list(row.labels or ()) == [IGNORED] * n_given + [*ids[n_given:], 2]
    before = made.decode(ids[:n_given]).encode()
    assert len(before) <= len(prompt.encode())
    assert len(made.decode(ids[: n_given + 1]).encode()) > len(prompt.encode()) or not answer


def _bytes() -> tokenizers.Tokenizer:
    """A byte-level encoding with a few merges, among them of spaces with letters and line ends."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("a", "b"), ("Ċ", "Ċ"), ("Ã", "©")]
    words = ["<pad>", "<s>", "</s>", *alphabet, *("".join(merge) for merge in merges)]
    vocab = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def test_a_prompt_of_white_space_is_answered(mine: Path) -> None:
    write_pairs((" ", "a"), ("\n", "b"), (" ", " "))
    assert [learned(row).strip() for row in read()[2].train] == ["a<|end|>", "b<|end|>"]  # type: ignore[arg-type]


def test_the_end_that_a_tokenizer_adds_is_there_once(mine: Path) -> None:
    made = tokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A <|end|>", special_tokens=[(one, ID[one]) for one in ("<s>", "<|end|>")]
    )
    made.save(str(mine / "tokenizer.json"))
    write_pairs(("a", "b"))
    (row,) = read()[2].train
    assert [WORDS[id_] for id_ in row.target] == ["<s>", "a", "b", "<|end|>"]  # type: ignore[union-attr]


def test_a_text_without_tokens_is_told(mine: Path, refused: Refused) -> None:
    made = tokenizer()
    made.normalizer = tokenizers.normalizers.Replace("h", "")
    made.save(str(mine / "tokenizer.json"))
    write_pairs(("a ", "b"), ("h", "hh"))
    Path("recipe.toml").write_text(RECIPE)
    assert "no tokens are made of the text `hhh`" in refused("train", "recipe.toml", "-o", "out")


def test_longer_texts_are_left_out(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(*PAIRS, ("a" * 50, "b" * 20))
    Path("recipe.toml").write_text(RECIPE)
    report = zoo.train("recipe.toml")
    assert report is not None
    assert report["left_out"] == {"train": 1}
    assert "train: 1 of 4 pairs are left out, as longer than max_length = 60" in (
        capsys.readouterr().err
    )


def test_answers_that_are_all_too_long_to_be_measured_are_refused(
    mine: Path, refused: Refused
) -> None:
    write_pairs(*PAIRS)
    long = {"prompt": "a" * 50, "answer": "b" * 20}
    Path("long.jsonl").write_text(json.dumps(long))
    tested = 'train = "data.jsonl"\ntest = "long.jsonl"'
    Path("recipe.toml").write_text(RECIPE.replace('train = "data.jsonl"', tested))
    told = refused("train", "recipe.toml", "-o", "out")
    assert "no test example is short enough: all are longer than max_length = 60" in told
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("prompt", "answer", "told"),
    [("ab?", "cd", True), ("ab? ", "cd", False), ("ab?", " cd", False), ("a b", "c d", True)],
)
def test_answers_that_nothing_sets_apart_are_told(
    mine: Path, capsys: pytest.CaptureFixture[str], prompt: str, answer: str, told: bool
) -> None:
    write_pairs((prompt, answer), ("e", "f"))
    Path("recipe.toml").write_text(RECIPE)
    zoo.train("recipe.toml")
    note = f"train: no white space is between prompts and answers: the first are `{prompt}{answer}`"
    assert (note in capsys.readouterr().err) == told


def test_a_tokenizer_is_learned_from_prompts_and_answers(project: Path) -> None:
    """It has their tokens: `ab` is in prompts alone, and `cd` in answers alone."""
    write_pairs(*[("ab ab ", "cd cd")] * 4, ("a", "b"))
    Path("model.toml").write_text(MODEL.replace(f"vocab = {len(WORDS)}", "vocab = 263"))
    recipe = RECIPE.replace('"mine"', '"model.toml"').replace('"of_model"', '"bpe"')
    vocab = read(recipe)[1].target.get_vocab()
    assert {"Ġab", "Ġcd"} <= vocab.keys()


def test_json_lines_of_text_are_learned_as_text(mine: Path) -> None:
    text = RECIPE.replace('source = "prompt"\ntarget', "target")
    write_lines({"answer": " ab\nc "}, {"answer": ""}, {"answer": "d"})
    splits, _, rows = read(text)
    assert [example.target for example in splits.train] == [" ab\nc ", "d"]
    assert [row.n_labels for row in rows.train] == [7, 2]
    packed = read(text.replace('"answer"', '"answer"\npacked = true'))[2].train
    assert [row.length for row in packed] == [12]


def test_rows_without_prompts_are_the_data_that_they_were(mine: Path) -> None:
    """A run that began before there were labels goes on."""
    Path("recipe.toml").write_text(RECIPE)
    start = find_start(read_recipe("recipe.toml"), load_registry())
    found = identity(start, [Row(None, [1, 2]), Row([3], [4])])
    assert found["data"] == hashlib.sha256(b"[null, [1, 2]][[3], [4]]").hexdigest()


# --- chats --------------------------------------------------------------------------------------


def theirs(
    template: str, chat: list[dict[str, str]], made: tokenizers.Tokenizer | None = None
) -> tuple[list[int], list[int]]:
    """The ids that `transformers` makes of a chat, and 1 for each of the assistant's."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer() if made is None else made)
    fast.chat_template = template
    found = fast.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    return found["input_ids"], found["assistant_masks"]


def check_as_theirs(
    row: Row, template: str, chat: list[dict[str, str]], made: tokenizers.Tokenizer | None = None
) -> None:
    """Check that a row is a chat up to the end of its last answer, and what it learns of it."""
    ids, mask = theirs(template, chat, made)
    last = len(mask) - mask[::-1].index(1)
    assert list(row.target) == ids[:last]
    expected = [id_ if own else IGNORED for id_, own in zip(ids, mask, strict=True)]
    assert list(row.labels or ()) == expected[:last]


def test_all_answers_of_a_chat_are_learned_in_one_text(mine: Path) -> None:
    write_lines({"chat": CHAT}, {"chat": CHAT[:2]})
    splits, _, (train, _, _) = read(OF_CHATS)
    assert len(splits.train) == 2
    for row, chat in zip(train, (CHAT[:4], CHAT[:2]), strict=True):
        assert isinstance(row, Row)
        check_as_theirs(row, TEMPLATE, chat)
    assert learned(train[0]).split() == ["b.<|end|>", "dd.<|end|>"]  # type: ignore[arg-type]


def test_an_end_that_takes_the_space_behind_it_is_learned(mine: Path) -> None:
    """As that of Phi-3 does."""
    made = tokenizer()
    made.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True, normalized=False)])
    made.save(str(mine / "tokenizer.json"))
    write_lines({"chat": CHAT})
    (row,) = read(OF_CHATS)[2].train
    check_as_theirs(row, TEMPLATE, CHAT[:4], made)  # type: ignore[arg-type]
    assert learned(row).split() == ["b.<|end|>", "dd.<|end|>"]  # type: ignore[arg-type]


def test_an_end_that_is_looked_for_in_normal_form(mine: Path) -> None:
    """As that of Llama 2 in files of its time. Its name is the one that texts have."""
    made = tokenizer()
    made.normalizer = tokenizers.normalizers.Prepend("a")
    made.add_special_tokens([tokenizers.AddedToken("<|end|>", normalized=True)])
    assert made.id_to_token(ID["<|end|>"]) == "a<|end|>"
    made.save(str(mine / "tokenizer.json"))
    write_pairs(("b", "c"))
    _, tokens, rows = read()
    assert (tokens.end, tokens.eos) == ("<|end|>", ID["<|end|>"])
    assert learned(rows.train[0]).split() == ["c<|end|>"]  # type: ignore[arg-type]


def test_an_answer_follows_what_the_model_is_given_for_it(project: Path) -> None:
    """By a template that changes earlier answers, each is learned in a text of its own, and both
    are in the same part."""
    write_model(project / "mine", THINKING)
    write_lines({"chat": CHAT}, {"chat": [{"role": "user", "content": "f"}, *CHAT[1:2]]})
    splits, _, (train, valid, _) = read(OF_CHATS.replace('"chat"', '"chat"\nvalid = 1'))
    rows = {learned(row): row for row in (*train, *valid)}  # type: ignore[arg-type]
    assert {text.strip() for text in rows} == {"<think>b.<|end|>", "<think>dd.<|end|>"}
    assert sorted(map(len, (train, valid))) == [1, 2]
    second = next(row for text, row in rows.items() if "dd" in text)
    written = "".join(WORDS[id_] for id_ in second.target)  # type: ignore[union-attr]
    reader: Any = read_text(Path("mine"))
    assert written == reader.write_chat(CHAT[:3]) + "<think>dd.<|end|>"
    assert len({example.opening for example in splits.train}) == 1


def test_an_answer_ends_where_generation_would(mine: Path) -> None:
    """What is written behind an end in it is given, and not learned."""
    said = {"role": "assistant", "content": "b<|end|>c"}
    write_lines({"chat": [*CHAT[:1], said, *CHAT[2:4]]})
    (row,) = read(OF_CHATS)[2].train
    assert learned(row).split() == ["b<|end|>", "dd.<|end|>"]  # type: ignore[arg-type]
    assert "c<|end|>\n<|user|>cc?" in "".join(WORDS[id_] for id_ in row.target)  # type: ignore[union-attr]


def test_a_message_that_answers_nothing_is_given(mine: Path) -> None:
    write_lines({"chat": [{"role": "assistant", "content": "h"}, *CHAT[:2]]})
    (row,) = read(OF_CHATS)[2].train
    assert learned(row).split() == ["b.<|end|>"]  # type: ignore[arg-type]


def test_an_end_that_is_not_read_as_one_is_told(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a tokenizer that knows it as a word of its own alone."""
    path = mine / "tokenizer.json"
    told = json.loads(path.read_text())
    for token in told["added_tokens"]:
        token["single_word"] = token["content"] == "<|end|>"
    path.write_text(json.dumps(told))
    write_lines({"chat": CHAT[:2]}, {"chat": [CHAT[0], {"role": "assistant", "content": "b"}]})
    Path("recipe.toml").write_text(OF_CHATS)
    zoo.train("recipe.toml")
    note = "train: in 1 of 2 texts the tokenizer does not read `<|end|>` as one token"
    assert note in capsys.readouterr().err


def test_notes_on_chats_call_nothing_a_pair(
    mine: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    long = [CHAT[0], {"role": "assistant", "content": "b" * 60}]
    write_lines({"chat": CHAT[:2]}, {"chat": CHAT[:2]}, {"chat": long})
    write_lines({"chat": CHAT}, {"chat": CHAT[2:4]}, name="test.jsonl")
    Path("recipe.toml").write_text(OF_CHATS.replace('"chat"', '"chat"\ntest = "test.jsonl"'))
    zoo.train("recipe.toml")
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith(("train:", "test:"))] == [
        "train: left out 1 duplicate text",
        "test: 1 of 2 texts have an opening that is learned from too",
        "train: 1 of 2 texts are left out, as longer than max_length = 60",
    ]
    Path("recipe.toml").write_text(OF_CHATS.replace('"chat"', '"chat"\ntest = 1'))
    message = "1 opening for `valid` and `test` cannot be held out of 1, in 2 different texts"
    assert message in refused("validate", "recipe.toml")


def test_the_tokenizer_of_the_model_is_read_once(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `zoo validate` and `zoo train`, which then reads the copy beside the result."""
    read: list[str] = []

    def counted(path: Path) -> object:
        read.append(path.parent.name)
        return read_tokenizer(path)

    monkeypatch.setattr("zoo.training.tokens.read_tokenizer", counted)
    write_lines({"chat": CHAT})
    Path("recipe.toml").write_text(OF_CHATS)
    check_recipe(read_recipe("recipe.toml"), Path(), load_registry())
    assert read == ["mine"]
    zoo.train("recipe.toml")
    assert read == ["mine", "mine", "answers"]


def test_a_date_does_not_change_what_is_learned(project: Path) -> None:
    """Else no run could be resumed, or done again, on another day."""
    write_model(project / "mine", "{{ strftime_now('%Y-%m-%d') }}" + TEMPLATE)
    write_lines({"chat": CHAT})
    splits = read(OF_CHATS)[0]
    assert splits.train[0].source[0].startswith("2025-01-01<|user|>")  # type: ignore[index]


def test_a_chat_of_a_data_set(mine: Path) -> None:
    import datasets

    rows = {"of": [{"chat": CHAT[:2]}, {"chat": CHAT[:4]}]}
    Path("rows").mkdir()
    datasets.Dataset.from_dict(rows).to_parquet("rows/train.parquet")
    told = OF_CHATS.replace('"jsonl"', '"datasets"\npath = "rows"').replace("data.jsonl", "train")
    train = read(told.replace('"chat"', '"of.chat"'))[2].train
    for row, chat in zip(train, (CHAT[:2], CHAT[:4]), strict=True):
        assert isinstance(row, Row)
        check_as_theirs(row, TEMPLATE, chat)


def test_a_chat_that_was_learned_is_answered(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To its end, whatever was asked before; and the perplexity is that of the answers."""
    answers = {"a?": "b.", "cc?": "dd.", "e": "gg."}
    chats = [
        [
            {"role": "user", "content": one},
            {"role": "assistant", "content": answers[one]},
            {"role": "user", "content": other},
            {"role": "assistant", "content": answers[other]},
        ]
        for one in answers
        for other in answers
    ]
    write_lines(*({"chat": chat} for chat in chats))
    write_lines({"chat": chats[1]}, {"chat": chats[2][:2]}, name="test.jsonl")
    told = OF_CHATS.replace('"chat"', '"chat"\ntest = "test.jsonl"')
    Path("recipe.toml").write_text(told.replace("steps = 2", "steps = 150"))
    report = zoo.train("recipe.toml")
    assert report is not None
    assert report["loss"] < 0.1
    for asked, answer in answers.items():
        assert said(capsys, "answers", "--chat", asked).strip() == answer
    model, nats, n_labels = zoo.load("answers", dtype="float64"), 0.0, 0
    for chat in (chats[1], chats[2][:2]):
        ids, mask = theirs(TEMPLATE, chat)
        logits = model(torch.tensor([ids[:-1]]))[0]
        losses = F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        nats += (losses * torch.tensor(mask[1:])).sum().item()
        n_labels += sum(mask)
    n_bytes = sum(len(answer) + 1 for answer in ("b.", "dd.", "b."))
    expected = {
        "perplexity": pytest.approx(math.exp(nats / n_labels), 1e-5),
        "bits_per_byte": pytest.approx(nats / math.log(2) / n_bytes, 1e-5),
        "tokens": n_labels,
        "bytes": n_bytes,
    }
    assert {key: report[key] for key in expected} == expected
    assert zoo.score("answers", data=".") == expected


def test_a_text_is_measured_as_a_whole(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a model that has learned answers, as by one without a recipe."""
    write_pairs(*PAIRS)
    Path("recipe.toml").write_text(RECIPE)
    zoo.train("recipe.toml")
    Path("text.txt").write_text("ab?\ncd\n")
    found = zoo.score("answers", data="text.txt", window=4)
    assert (found["tokens"], found["window"]) == (7, 4)
    (Path("answers") / "recipe.toml").unlink()
    assert zoo.score("answers", data="text.txt", window=4) == found


def test_what_is_measured_on_is_read_before_the_weights(mine: Path) -> None:
    write_pairs(*PAIRS)
    Path("recipe.toml").write_text(RECIPE.replace("[data]", "[data]\ntest = 1"))
    zoo.train("recipe.toml")
    weights = Path("answers", "model.safetensors")
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(zoo.WeightsError, match="are not those that were saved"):
        zoo.score("answers", data=".")
    with pytest.raises(zoo.ZooError, match="cannot be read: No such file"):
        zoo.score("answers")  # whose folder has none


@pytest.mark.parametrize("recipe", [RECIPE, OF_CHATS], ids=["answers", "chats"])
def test_a_model_need_not_say_what_a_text_begins_with(
    project: Path, refused: Refused, recipe: str
) -> None:
    """Nothing of it is in an answer. Lines need it, or their first tokens would not be learned."""
    write_model(project / "mine")
    made = tokenizer()
    made.post_processor = None
    told = made.to_str().replace('"<s>"', '"<|other|>"')
    Path("mine/tokenizer.json").write_text(told)
    ids = {"eos_token_id": ID["<|end|>"], "pad_token_id": ID["<pad>"]}
    Path("mine/generation_config.json").write_text(json.dumps(ids))
    write_pairs(("a ", "b"))
    if recipe == OF_CHATS:
        write_lines({"chat": CHAT[:2]})
    (row,) = read(recipe)[2].train
    assert learned(row).strip() in ("b<|end|>", "b.<|end|>")  # type: ignore[arg-type]
    zoo.train("recipe.toml")
    assert json.loads(Path("answers/generation_config.json").read_text()) == ids
    write_pairs(("a ", "b"))
    Path("recipe.toml").write_text(RECIPE.replace('source = "prompt"\n', ""))
    for command in (["validate", "recipe.toml"], ["train", "recipe.toml", "-o", "out"]):
        found = refused(*command)
        assert "no file beside the model says with which token a text begins" in found
        assert 'state one in `[tokenizer]`, as `bos = "<|end|>"`' in found


# --- what is refused ----------------------------------------------------------------------------

NO_END = TEMPLATE.replace(' + "<|end|>"', "")
ELSEWHERE = TEMPLATE.replace('prompt %}{{ "<|bot|>" }}', 'prompt %}{{ "<|bot|>?" }}')
FAULTS: dict[str, tuple[str, str | None, object, str]] = {
    "no field": (
        RECIPE.replace('source = "prompt"\ntarget = "answer"\n', ""),
        TEMPLATE,
        {},
        "recipe.toml:5:2: error: no field is named: `messages` of chats",
    ),
    "a chat and more": (
        OF_CHATS.replace("messages", 'target = "answer"\nmessages'),
        TEMPLATE,
        {},
        "recipe.toml:8:10: error: a chat is a whole example, beside which there is no `target`",
    ),
    "a new tokenizer": (
        OF_CHATS.replace('"of_model"', '"bpe"'),
        TEMPLATE,
        {},
        "recipe.toml:11:8: error: chats are written by the chat template of a saved model",
    ),
    "a spec": (
        OF_CHATS.replace('"mine"', '"model.toml"'),
        TEMPLATE,
        {"chat": CHAT},
        "the recipe wants the tokenizer of the model that training starts from, and starts from",
    ),
    "a translator": (
        OF_CHATS.replace('"mine"', '"translator.toml"'),
        TEMPLATE,
        {"chat": CHAT},
        "recipe.toml:8:12: error: chats are for decoders, and toy learns from pairs of source and",
    ),
    "no template": (
        OF_CHATS,
        None,
        {"chat": CHAT},
        "recipe.toml:8:12: error: the model has no chat template",
    ),
    "a text for a chat": (
        OF_CHATS,
        TEMPLATE,
        {"chat": "a?"},
        "data.jsonl:2:1: error: the field `chat` is no list of messages",
    ),
    "no chat": (
        OF_CHATS,
        TEMPLATE,
        {"chat": None},
        "data.jsonl:2:1: error: the field `chat` is no list of messages",
    ),
    "no such field": (
        OF_CHATS,
        TEMPLATE,
        {"chats": CHAT},
        "data.jsonl:2:1: error: there is no field `chat`",
    ),
    "a message without a role": (
        OF_CHATS,
        TEMPLATE,
        {"chat": [{"from": "human", "value": "a?"}]},
        "data.jsonl:2:1: error: message 1 of the chat: `role` is missing",
    ),
    "half a character": (
        OF_CHATS.replace('"chat"', '"chat"\nvalid = 1'),
        TEMPLATE,
        {"chat": [{"role": "user", "content": "a\ud800"}, *CHAT[1:]]},
        "data.jsonl:2:1: error: the field `chat` has half of a character, `\\ud800`",
    ),
    "nothing that answers": (
        OF_CHATS,
        TEMPLATE,
        {"chat": CHAT[:1]},
        "data.jsonl:2:1: error: the chat has no answer that could be learned",
    ),
    "no end": (
        OF_CHATS,
        NO_END,
        {"chat": CHAT},
        "does not end message 2 with `<|end|>`",
    ),
    "an end that the next prompt begins with": (
        OF_CHATS,
        NO_END.replace("<|bot|>", "<|end|><|bot|>"),
        {"chat": CHAT},
        "does not end message 2 with `<|end|>`",
    ),
    "an answer elsewhere": (
        OF_CHATS,
        ELSEWHERE,
        {"chat": CHAT},
        "does not write message 2 behind the prompt for it",
    ),
    "lists": (
        RECIPE,
        TEMPLATE,
        {"prompt": ["a"], "answer": ["b"]},
        "the data is words with lists of labels, and the model learns from text",
    ),
    "no answer": (
        RECIPE,
        TEMPLATE,
        {"prompt": "a", "answer": ""},
        "data.jsonl:2:29: error: the target is missing",
    ),
}


@pytest.mark.parametrize(("recipe", "template", "row", "told"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_fit_is_refused_with_its_place(
    project: Path, refused: Refused, recipe: str, template: str | None, row: object, told: str
) -> None:
    write_model(project / "mine", template)
    Path("model.toml").write_text(MODEL)
    Path("translator.toml").write_text(TRANSLATOR)
    Path("recipe.toml").write_text(recipe)
    good = {"chat": CHAT} if "messages" in recipe else {"prompt": "a ", "answer": "b"}
    write_lines(row if "lists" in told else good, row)
    assert refused("validate", "recipe.toml").count(told) == 1
    assert told in refused("train", "recipe.toml", "-o", "out")
    assert not Path("out").exists()

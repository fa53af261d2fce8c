"""Published models whose special tokens are one token: T5's and Marian's targets begin with the
padding, and GPT-2's texts begin, end and are filled up with one token. Checked against
`transformers`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from toy_training import PAIRS, RECIPE, write_toy
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm
from trials import Refused
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run
from zoo.purpose import Generation
from zoo.training.batches import Row, n_labels
from zoo.training.example import Example
from zoo.training.loss import IGNORED, summed_loss
from zoo.training.published import read_published
from zoo.training.tables import OfModel, TokenizerFiles
from zoo.training.text_objective import TextObjective
from zoo.training.tokens import Tokens, read_token_files, read_tokens

pytestmark = pytest.mark.usefixtures("without_pictures")

WORDS = sorted({word for pair in PAIRS for text in pair for word in text.split()})
PAD_FIRST = ["<pad>", "</s>", "<unk>", *WORDS]
"""As T5's: the padding is 0 and the end 1."""
PAD_LAST = ["</s>", "<unk>", *WORDS, "<pad>"]
"""As Marian's: the end is 0, and the padding comes last."""
ONE = ["<|endoftext|>", *WORDS]
BART = ["<s>", "<pad>", "</s>", "<unk>", *WORDS]


def t5() -> Any:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=len(PAD_FIRST), decoder_start_token_id=0, **sizes)
    )


def marian() -> Any:
    pad = len(PAD_LAST) - 1
    return MarianMTModel(
        MarianConfig(
            vocab_size=len(PAD_LAST),
            **_sizes(2),
            pad_token_id=pad,
            decoder_start_token_id=pad,
            eos_token_id=0,
            forced_eos_token_id=0,
        )
    )


def bart() -> Any:
    """As published, targets begin with the end and then the begin."""
    return BartForConditionalGeneration(BartConfig(vocab_size=len(BART), **_sizes(1)))


def gpt2() -> Any:
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(ONE), **sizes, **ids, **no_dropout))


def _sizes(n_layers: int) -> dict[str, int]:
    stacks = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"layers": n_layers, "attention_heads": 2, "ffn_dim": 12}.items()
    }
    return {"d_model": 8, "max_position_embeddings": 32, **stacks}


VOCABULARIES = {t5: PAD_FIRST, marian: PAD_LAST, gpt2: ONE, bart: BART}
ENDS = {t5: "</s>", marian: "</s>", gpt2: None, bart: "</s>"}
Make = Callable[[], Any]


def write_published(make: Make, folder: Path, **config: Any) -> Any:
    """Write a model with a tokenizer of words, as published; `config` changes its
    generation_config.json."""
    torch.manual_seed(0)
    peer = make()
    for name, parameter in peer.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    peer.save_pretrained(folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    words, end = VOCABULARIES[make], ENDS[make]
    special = [word for word in words if word[0] == "<"]
    single = None if end is None else f"$A {end}"
    word_tokenizer(words, words[0], special=special, single=single).save(
        str(folder / "tokenizer.json")
    )
    return peer


def rms_norm(states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(states, weight.shape, weight, eps)


@pytest.mark.parametrize("make", [t5, marian, gpt2])
def test_a_step_is_that_of_transformers(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss, and the weights after one step, whose learning rate is 1. Some ids in the midst of
    a text are that of padding, and each side of the batch is filled up with the same id. The
    sinusoids of Marian are rounded to float32."""
    peer = write_published(make, tmp_path / "source").double().eval()
    peer.save_pretrained(tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "mine")
    model = zoo.load(tmp_path / "mine").eval()
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float64}
    pad = peer.config.pad_token_id or 0
    has_source = make is not gpt2
    tokens = Tokens(None, None, pad, pad, pad, peer.config.eos_token_id)
    targets = [[pad, 4, 5, pad, 7, 1], [pad, 9, 1]]
    sources = [[3, pad, 6, 1], [8, 2, pad, 9, 5, 1]] if has_source else [None, None]
    rows = [Row(source, target) for source, target in zip(sources, targets, strict=True)]
    batch = TextObjective(tokens, 99).collate(rows, torch.device("cpu"))
    loss = summed_loss(model, batch, label_smoothing=0.0)
    (loss / n_labels(rows)).backward()

    labels = torch.tensor([[4, 5, pad, 7, 1], [9, 1, *[IGNORED] * 3]])
    if has_source:
        ids = torch.tensor([[*sources[0], pad, pad], sources[1]])
        given = {"input_ids": ids, "labels": labels}
        given["attention_mask"] = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    else:
        begin = torch.full((2, 1), pad)
        labels = torch.cat([begin, labels], 1)
        given = {"input_ids": labels.where(labels != IGNORED, pad), "labels": labels}
    for module in peer.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # the token is no padding where a target begins with it
        if isinstance(module, T5LayerNorm):  # which computes in float32
            forward = functools.partial(rms_norm, weight=module.weight, eps=module.variance_epsilon)
            monkeypatch.setattr(module, "forward", forward)
    found = peer(**given)
    # Computed again, as GPT-2 computes its loss in float32.
    logits, labels = (found.logits, labels) if has_source else (found.logits[:, :-1], labels[:, 1:])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(found.loss.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(loss / n_labels(rows), expected, rtol=1e-10, atol=0)
    expected.backward()

    with torch.no_grad():
        for one in (model, peer):
            for name, parameter in one.named_parameters():
                # transformers does not learn the bias of logits, nor the sinusoids.
                if name != "head.logits_bias" and parameter.grad is not None:
                    parameter -= parameter.grad
    zoo.save(model, tmp_path / "tuned")
    zoo.export_folder(tmp_path / "tuned", tmp_path / "back")
    back = type(peer).from_pretrained(tmp_path / "back", dtype=torch.float64)
    torch.testing.assert_close(back.state_dict(), peer.state_dict(), rtol=1e-9, atol=1e-9)


def write_recipe(folder: Path, make: Make, tokenizer: str = "", **training: str) -> Path:
    """Write a recipe that trains the model in `mine` further."""
    kind = '"text"' if make is gpt2 else '"tsv"'
    recipe = RECIPE.replace('"tsv"', kind).replace('"model.toml"', '"mine"')
    if make is gpt2:
        recipe = recipe.replace("toy.tsv", "text.txt")
        (folder / "text.txt").write_text("".join(f"{text}\n" for _, text in PAIRS))
    recipe = recipe.replace("valid = 4", "valid = 4\ntest = 2")
    recipe = recipe.replace('"bpe"', f'"of_model"\n{tokenizer}')
    recipe = recipe.replace("steps = 12", "steps = 40").replace("every = 4", "every = 20")
    for key, value in training.items():
        recipe = recipe.replace("[training]", f"[training]\n{key} = {value}")
    return write_toy(folder, f"{recipe}[evaluation]\nbeam = 1\n")


@pytest.mark.parametrize("make", [t5, marian, gpt2, bart])
def test_published_models_are_trained_further_as_they_are(
    make: Make, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe names no special token; the result runs, is measured, is exported with the files
    that it had, and generates what transformers generates from the export."""
    forced = {"forced_bos_token_id": 0} if make is bart else {}
    write_published(make, project / "source", **forced)
    zoo.import_folder(project / "source", project / "mine")
    frozen = "decoder.layers.0.*"
    recipe = write_recipe(project, make, frozen=f'["{frozen}"]', max_length="12")
    assert run(["validate", str(recipe)]) == 0
    before = dict(zoo.load(project / "mine").named_parameters())
    metrics = zoo.train(recipe, output="tuned")
    assert metrics is not None
    assert metrics["valid_loss"] < 3.5
    for name, tensor in zoo.load("tuned").named_parameters():
        is_frozen = name.startswith(frozen[:-1])
        assert torch.equal(tensor, before[name]) == is_frozen, name
    settings = (project / "source" / "generation_config.json").read_bytes()
    assert (project / "tuned" / "generation_config.json").read_bytes() == settings
    again = zoo.score("tuned", data=".")
    assert {key: metrics[key] for key in again} == again

    text = "ein Hund" if make is not gpt2 else "<|endoftext|> a dog"
    capsys.readouterr()
    assert run(["run", "tuned", text, "-n", "6", "--json"]) == 0
    ids = json.loads(capsys.readouterr().out)["ids"]
    zoo.export_folder(project / "tuned", project / "back")
    peer = type(make()).from_pretrained(project / "back").eval()
    given = tokenizers.Tokenizer.from_file("tuned/tokenizer.json").encode(text).ids
    found = peer.generate(torch.tensor([given]), do_sample=False, num_beams=1, max_new_tokens=6)
    begun = 1 if make is not gpt2 else len(given)
    expected = found[0, begun:].tolist()
    assert len(ids) >= 2
    assert ids == expected[: len(ids)]


def test_one_token_between_packed_texts_ends_one_and_begins_the_next() -> None:
    words = word_tokenizer(["<|endoftext|>", "a", "b"], None)
    texts = [Example(None, text) for text in ("a b", "", "b")]
    one = Tokens(words, words, 0, 0, 0, 0)
    objective = TextObjective(one, 32)
    (row,) = objective.encode(texts, packed=True)
    assert [*row.target] == [0, 1, 2, 0, 0, 2, 0]
    assert [[*row.target] for row in objective.encode(texts[::2])] == [
        [0, 1, 2, 0],
        [0, 2, 0],
    ]
    assert objective.encode([], packed=True) == []


def test_packed_gpt2_learns_what_transformers_learns_of_the_joined_text(tmp_path: Path) -> None:
    """One step of a recipe, by SGD, in float32."""
    peer = write_published(gpt2, tmp_path / "source").eval()
    zoo.import_folder(tmp_path / "source", tmp_path / "mine")
    path = write_recipe(tmp_path, gpt2, max_length="30", steps="1")
    recipe = (
        path.read_text().replace("steps = 40\n", "").replace("valid = 4\ntest = 2", "packed = true")
    )
    recipe = recipe.replace("lr = 1e-2", "lr = 1.0").replace('"adamw"', '"sgd"')
    recipe = recipe.replace('"inverse_sqrt"', '"constant"').replace("warmup = 4", "")
    recipe = recipe.replace("label_smoothing = 0.1\nclip_norm = 1.0\n", "")
    recipe = recipe.replace("batch_tokens = 300", "batch_tokens = 10_000")
    path.write_text(recipe)
    zoo.train(path, output=tmp_path / "tuned")
    words = tokenizers.Tokenizer.from_file(str(tmp_path / "mine" / "tokenizer.json"))
    text = "".join(f"<|endoftext|> {text} " for _, text in PAIRS) + "<|endoftext|>"
    ids = torch.tensor(words.encode(text).ids)
    labels = [ids[start : start + 31] for start in range(0, len(ids) - 1, 30)]
    losses = [
        torch.nn.functional.cross_entropy(peer(one[None, :-1]).logits[0], one[1:], reduction="sum")
        for one in labels
    ]
    (sum(losses) / (len(ids) - 1)).backward()
    zoo.export_folder(tmp_path / "tuned", tmp_path / "back")
    back = dict(GPT2LMHeadModel.from_pretrained(tmp_path / "back").named_parameters())
    for name, parameter in peer.named_parameters():
        torch.testing.assert_close(back[name].data, parameter.data - parameter.grad)


def test_a_token_that_the_model_hides_as_padding_is_refused(tmp_path: Path) -> None:
    words = word_tokenizer(["<pad>", "</s>"], None)
    table = TokenizerFiles(source="words", bos="<pad>")
    words.save(str(tmp_path / "words"))
    read = functools.partial(read_token_files, tmp_path / "words", None)
    sides = Generation(target_vocab=2, source_vocab=2, has_source=True)
    assert read(table, sides).begin == [0]
    with pytest.raises(zoo.TrainingError, match="hides `<pad>`, as its spec states `pad_id = 0`"):
        read(table, sides._replace(pad_id=0))
    joined = TokenizerFiles(source="words", bos="</s>", eos="<pad>")
    assert read(joined, sides._replace(pad_id=0)).eos == 0
    with pytest.raises(zoo.TrainingError, match="hides `<pad>`"):
        read(joined, Generation(target_vocab=2, pad_id=0))


def test_a_model_with_several_ends_needs_to_know_which_is_learned(
    project: Path, refused: Refused
) -> None:
    write_published(gpt2, project / "source", eos_token_id=[0, 3], pad_token_id=-1)
    zoo.import_folder(project / "source", project / "mine")
    write_recipe(project, gpt2, max_length="12")
    told = refused("validate", "recipe.toml")
    assert "recipe.toml:11:2: error: texts of the model end with any of `<|endoftext|>`, `" in told
    assert "help: state in `[tokenizer]` with which one" in told
    write_recipe(project, gpt2, 'eos = "<|endoftext|>"', max_length="12")
    assert run(["validate", "recipe.toml"]) == 0


@pytest.mark.parametrize(
    ("make", "begin", "end", "pad"),
    [
        (t5, ["<pad>"], "</s>", "<pad>"),
        (marian, ["<pad>"], "</s>", "<pad>"),
        (gpt2, ["<|endoftext|>"], "<|endoftext|>", "<|endoftext|>"),
        (bart, ["</s>", "<s>"], "</s>", "<pad>"),
    ],
)
@pytest.mark.parametrize("by", ["generation_config.json", "config.json"])
def test_the_special_tokens_are_those_of_the_publisher(
    by: str, make: Make, begin: list[str], end: str, pad: str, tmp_path: Path
) -> None:
    """BART's are forced: what a target begins with after its start is learned too."""
    forced = {"forced_bos_token_id": 0} if make is bart else {}
    peer = write_published(make, tmp_path, **forced)
    config = None
    if by == "config.json":
        (tmp_path / "generation_config.json").unlink()
        # Where older checkpoints state it.
        config = json.dumps({**json.loads((tmp_path / "config.json").read_text()), **forced})
    has_source = make is not gpt2
    size = peer.config.vocab_size
    sides = Generation(size, source_vocab=size if has_source else None, has_source=has_source)
    published = read_published(tmp_path, config, sides)
    tokens = read_tokens(tmp_path, OfModel(), sides, published)
    name = tokens.target.id_to_token
    assert ([*map(name, tokens.begin)], name(tokens.eos), name(tokens.pad)) == (begin, end, pad)
    (row,) = TextObjective(tokens, 9).encode([Example("Hund" if has_source else None, "dog")])
    dog = tokens.target.token_to_id("dog")
    assert [*row.target] == [*tokens.begin, dog, tokens.eos]
    stated = read_tokens(tmp_path, OfModel(bos=end), sides, published)
    assert stated.bos == tokens.eos

"""Saved and imported models that a recipe trains further: what lies beside them stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from toy_training import PAIRS, RECIPE, write_toy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trials import Refused
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run

pytestmark = pytest.mark.usefixtures("without_pictures")

SPECIAL = ["<pad>", "<s>", "</s>", "<|end|>"]
WORDS = ["[UNK]", *SPECIAL, *sorted({word for _, text in PAIRS for word in text.split()})]
TEMPLATE = "{% for message in messages %}{{ bos_token }}{{ message.content }}{% endfor %}"
RECIPE_OF_TEXT = RECIPE.replace('"tsv"', '"text"').replace("toy.tsv", "text.txt")
FURTHER = RECIPE_OF_TEXT.replace('"model.toml"', '"mine"').replace('"bpe"', '"of_model"')
Train = Callable[..., Path]


@pytest.fixture
def train(tmp_path: Path, project: Path) -> Train:
    """Import a checkpoint with all files that belong to it, as `mine`, and train it further by a
    recipe; return the folder of the result. `config` changes its generation_config.json."""

    def made(recipe: str = FURTHER, **config: Any) -> Path:
        torch.manual_seed(0)
        source = tmp_path / "source"
        sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
        told = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(WORDS), num_hidden_layers=1, num_key_value_heads=1, **sizes, **told
            )
        ).save_pretrained(source)
        theirs = PreTrainedTokenizerFast(
            tokenizer_object=word_tokenizer(WORDS, "[UNK]", special=SPECIAL),
            bos_token="<s>",
            eos_token="</s>",
            unk_token="[UNK]",
        )
        theirs.chat_template = TEMPLATE
        theirs.save_pretrained(source)
        (source / "generation_config.json").write_text(json.dumps({**told, "top_k": 5, **config}))
        (source / "special_tokens_map.json").write_text('{"bos_token": "<s>"}')
        zoo.import_folder(source, tmp_path / "mine")
        (tmp_path / "text.txt").write_text("".join(f"{text}\n" for _, text in PAIRS))
        zoo.train(write_toy(tmp_path, recipe), output=tmp_path / "tuned")
        return tmp_path / "tuned"

    return made


def test_an_imported_model_that_was_trained_is_used_and_exported_as_before(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = train()
    for name in (
        "chat_template.jinja",
        "generation_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        assert (tuned / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
    capsys.readouterr()
    assert run(["run", str(tuned), "--chat", "a dog", "-n", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ids"]) <= 3
    zoo.export_folder(tmp_path / "mine", tmp_path / "untuned")
    assert run(["export", str(tuned), "--to", "hf", "-o", str(tmp_path / "back")]) == 0
    files = {path.name for path in (tmp_path / "untuned").iterdir()}
    assert {path.name for path in (tmp_path / "back").iterdir()} == files
    weights = zoo.load(tuned).state_dict()
    peer = LlamaForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    assert torch.equal(
        peer.model.embed_tokens.weight.detach(), weights["decoder.embed.tokens.weight"]
    )


def test_generation_ends_where_the_model_has_learned_to_end(train: Train, tmp_path: Path) -> None:
    """The other settings, and the ends that it had, stay; the export has the new file."""
    ends = FURTHER.replace('"of_model"', '"of_model"\neos = "<|end|>"')
    tuned = train(ends, eos_token_id=[3])
    told = json.loads((tuned / "generation_config.json").read_text())
    assert (told["eos_token_id"], told["top_k"]) == ([3, WORDS.index("<|end|>")], 5)
    zoo.export_folder(tuned, tmp_path / "back")
    exported = (tmp_path / "back" / "generation_config.json").read_bytes()
    assert exported == (tuned / "generation_config.json").read_bytes()


def test_files_of_another_tokenizer_do_not_come_along(train: Train, tmp_path: Path) -> None:
    files = FURTHER.replace('"of_model"', '"files"\nsource = "mine/tokenizer.json"')
    tuned = train(files)
    assert not (tuned / "tokenizer_config.json").exists()
    zoo.export_folder(tuned, tmp_path / "back")
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == (
        tuned / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize("command", [("validate",), ("train", "-o", "tuned")])
def test_a_new_tokenizer_for_weights_that_know_another_is_refused(
    command: tuple[str, ...], project: Path, refused: Refused
) -> None:
    write_toy(project, RECIPE.replace('"model.toml"', '"first"'))
    zoo.save(zoo.build("model.toml"), project / "first")
    assert run(["validate", "recipe.toml"]) == 0  # weights that know no tokenizer yet
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(project / "first" / "tokenizer.json"))
    told = refused(command[0], "recipe.toml", *command[1:])
    assert "recipe.toml:10:2: error: the model that training starts from has a tokenizer" in told
    assert 'help: `kind = "of_model"` takes the tokenizer of the model' in told
    assert not Path("tuned").exists()

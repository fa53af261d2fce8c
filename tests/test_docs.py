"""Every command and every piece of code in the README and the docs works as written.

A page is run from top to bottom in an empty folder: TOML and Python blocks are saved under the name
in the text before them, shell blocks run line by line, other Python blocks run as scripts. A block
marked `sh fails` must end with status 2, the zoo's status for a user's mistake. A text block is
the output of the command before it, or its beginning, if the block ends with `...`.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from breadth import one_then_slow
from tokenizers import Tokenizer

import zoo
from zoo.cli import COMMANDS
from zoo.families.registered import Families
from zoo.registry import load_registry

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/build.md",
    "docs/architectures.md",
    "docs/multimodal.md",
    "docs/editor.md",
    "docs/generate.md",
    "docs/speed.md",
    "docs/pytorch.md",
    "docs/from-transformers.md",
    "docs/bundles.md",
    "docs/code.md",
    "docs/inspect.md",
    "docs/larger.md",
    "docs/load.md",
    "docs/own-init.md",
    "docs/registry.md",
    "docs/run-images.md",
    "docs/run-sounds.md",
    "docs/serve.md",
    "docs/share.md",
    "docs/states.md",
    "docs/train.md",
    "docs/train-encoders.md",
    "docs/fine-tune.md",
    "docs/import.md",
    "docs/write-a-family.md",
]
FILES = {"toml": "toml", "python": "py", "json": "json"}
"""The kinds of blocks that may be files, with the ending of their names."""


def run_page(page: str, folder: Path) -> int:
    """Run the blocks of a page; return the number of commands and scripts."""
    text = (ROOT / page).read_text()
    ran = 0
    preceding = printed = ""
    for part in re.split(r"(```.*?```)", text, flags=re.DOTALL):
        if not part.startswith("```"):
            preceding = part
            continue
        kind, body = part[3:-3].split("\n", 1)
        paragraph = preceding.strip().split("\n\n")[-1]
        name = re.findall(rf"`([\w.-]+\.{FILES[kind]})`", paragraph) if kind in FILES else []
        if name:
            (folder / name[-1]).write_text(body)
        elif kind.startswith("sh") and not body.startswith("make "):
            for line in filter(None, body.splitlines()):
                printed = check(f"{line} 2>&1", folder, expected=2 if kind == "sh fails" else 0)
                ran += 1
        elif kind == "python":
            script = folder / "script.py"
            script.write_text(body)
            printed = check(f"{sys.executable} script.py 2>&1", folder, expected=0)
            ran += 1
        elif kind == "text":
            shown = body.removesuffix("...\n")
            assert (printed[: len(shown)] if body.endswith("...\n") else printed) == shown
    return ran


def check(command: str, folder: Path, *, expected: int) -> str:
    """Check the output of the command, which finds what is installed beside this Python."""
    beside = Path(sys.executable).parent
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={
            **os.environ,
            "ZOO_HOME": str(folder / "store"),
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == expected, f"{command}\n{done.stdout}"
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.parametrize("page", one_then_slow(PAGES))
def test_page(page: str, tmp_path: Path) -> None:
    if page == "docs/import.md":
        make_checkpoint(tmp_path / "checkpoint")
        make_adapter(tmp_path / "adapter")
        make_checkpoint_of_several(tmp_path / "qwen-checkpoint")
    if page == "docs/from-transformers.md":
        make_checkpoint(tmp_path / "checkpoint")
    if page == "docs/fine-tune.md":
        make_language_model(tmp_path / "base")
    if page in ("docs/generate.md", "docs/serve.md"):
        make_assistant(tmp_path / "assistant")
    if page == "docs/run-images.md":
        make_image_checkpoints(tmp_path)
    if page == "docs/run-sounds.md":
        make_sound_checkpoints(tmp_path)
    assert run_page(page, tmp_path) > 0


def make_checkpoint(folder: Path) -> None:
    """Write the checkpoint that a user has downloaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=40, num_hidden_layers=2, num_key_value_heads=1, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)


def make_adapter(folder: Path) -> None:
    """Write an adapter of this checkpoint that a user has downloaded."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {
        f"{name}.lora_A.weight": torch.ones(2, 16),
        f"{name}.lora_B.weight": torch.ones(16, 2),
    }
    save_file(factors, folder / "adapter_model.safetensors")


def make_checkpoint_of_several(folder: Path) -> None:
    """Write a checkpoint of a text model and an encoder of images that a user has downloaded."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    sizes = {"hidden_size": 16, "intermediate_size": 24}
    text = {"vocab_size": 40, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 8}
    text |= {"num_key_value_heads": 1, "linear_num_key_heads": 1, "linear_num_value_heads": 2}
    images = {"depth": 1, "num_heads": 2, "out_hidden_size": 16, "num_position_embeddings": 16}
    config = Qwen3_5Config(text_config=sizes | text, vision_config=sizes | images)
    Qwen3_5ForConditionalGeneration(config).save_pretrained(folder)


def make_image_checkpoints(folder: Path) -> None:
    """Write checkpoints of ViT and CLIP that a user has downloaded, and two images."""
    import transformers
    from PIL import Image
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    sizes |= {"num_hidden_layers": 2}
    images = {**sizes, "image_size": 32, "patch_size": 8}
    names = {0: "tabby", 1: "beagle", 2: "teapot"}
    vit = transformers.ViTConfig(**images, id2label=names)
    transformers.ViTForImageClassification(vit).save_pretrained(folder / "vit-checkpoint")
    processor = transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})
    processor.save_pretrained(folder / "vit-checkpoint")
    clip = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 9, "eos_token_id": 8}, vision_config=images
    )
    transformers.CLIPModel(clip).save_pretrained(folder / "clip-checkpoint")
    processor = transformers.CLIPImageProcessorPil(size=32, crop_size=32)
    processor.save_pretrained(folder / "clip-checkpoint")
    words = {word: n for n, word in enumerate(["?", "a", "photo", "of", "cat", "dog"])}
    tokenizer = Tokenizer(models.WordLevel({**words, "end": 8}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("$A end", special_tokens=[("end", 8)])
    tokenizer.save(str(folder / "clip-checkpoint/tokenizer.json"))
    words = {word: n for n, word in enumerate(["?", "<image>", "What", "is", "it", "in"])}
    text = {**sizes, "model_type": "llama", "vocab_size": 9}
    llava = transformers.LlavaConfig(
        text_config=text,
        vision_config={**images, "model_type": "clip_vision_model"},
        image_token_index=1,
        image_seq_length=16,
    )
    model = transformers.LlavaForConditionalGeneration(llava)
    model.generation_config.eos_token_id = 8
    model.save_pretrained(folder / "llava-checkpoint")
    processor.save_pretrained(folder / "llava-checkpoint")
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "llava-checkpoint/tokenizer.json"))
    (folder / "llava-checkpoint/chat_template.jinja").write_text(
        "{% for message in messages %}{% for part in message.content %}"
        "{{ '<image> ' if part.type == 'image' else part.text }}{% endfor %}{% endfor %}"
    )
    Image.radial_gradient("L").resize((320, 240)).save(folder / "photo.jpg")
    Image.linear_gradient("L").convert("RGBA").save(folder / "cat.png")


def make_sound_checkpoints(folder: Path) -> None:
    """Write checkpoints of wav2vec 2.0, HuBERT, Whisper and Qwen2-Audio that a user has downloaded,
    and sounds. The last two hear a second."""
    import json
    import wave

    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    sizes |= {"num_hidden_layers": 1, "conv_dim": [8] * 7, "num_conv_pos_embedding_groups": 2}
    letters = {token: n for n, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", "E", "T"])}
    (folder / "letters.json").write_text(json.dumps(letters))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(folder / "letters.json")
    speech = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**sizes, vocab_size=7))
    names = {0: "yes", 1: "no", 2: "up"}
    commands = transformers.HubertForSequenceClassification(
        transformers.HubertConfig(**sizes, id2label=names)
    )
    for name, model in (("speech", speech), ("commands", commands)):
        model.save_pretrained(folder / f"{name}-checkpoint")
        extractor = transformers.Wav2Vec2FeatureExtractor()
        extractor.save_pretrained(folder / f"{name}-checkpoint")
    tokenizer.save_pretrained(folder / "speech-checkpoint")
    make_whisper(folder / "whisper-checkpoint")
    make_qwen2_audio(folder / "qwen2-audio-checkpoint")
    for name, n_times in (("speech", 1), ("yes", 1), ("talk", 4)):
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(bytes(range(256)) * 40 * n_times)


def make_qwen2_audio(folder: Path) -> None:
    """A Qwen2-Audio that hears a second, in a folder, with a tokenizer of words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["?", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "What", "is", "said", "a", "sound"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(words[1:4])
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 10}
    sounds = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
    sounds |= {"encoder_ffn_dim": 24, "max_source_positions": 50, "num_mel_bins": 80}
    config = transformers.Qwen2AudioConfig(
        text_config={**sizes, "model_type": "qwen2"},
        audio_config={**sounds, "model_type": "qwen2_audio_encoder"},
        audio_token_index=1,
    )
    model = transformers.Qwen2AudioForConditionalGeneration(config)
    model.generation_config.eos_token_id = 9
    model.save_pretrained(folder)
    processor = transformers.Qwen2AudioProcessor(
        transformers.WhisperFeatureExtractor(chunk_length=1),
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer),
    )
    processor.save_pretrained(folder)


def make_whisper(folder: Path) -> None:
    """A Whisper that hears a second, in a folder, with a tokenizer of bytes."""
    import transformers

    tokenizer, _ = tokenizer_of_bytes()
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>"]
    tokenizer.add_special_tokens([*special, "<|transcribe|>", "<|notimestamps|>"])
    times = [f"<|{n / 50:.2f}|>" for n in range(51)]
    tokenizer.add_tokens(times)
    eos, start, en, de, translate, transcribe, no_times = range(256, 263)
    sizes = {"encoder_layers": 1, "decoder_layers": 1}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16}
    sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_source_positions": 50}
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), eos)
    ids["decoder_start_token_id"] = start
    sizes |= {"vocab_size": 263 + len(times), "max_target_positions": 32}
    config = transformers.WhisperConfig(**sizes, **ids)
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        **ids,
        lang_to_id={"<|en|>": en, "<|de|>": de},
        task_to_id={"translate": translate, "transcribe": transcribe},
        no_timestamps_token_id=no_times,
        begin_suppress_tokens=[eos],
    )
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(chunk_length=1).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def make_language_model(folder: Path) -> None:
    """A language model in a folder, with a tokenizer of bytes and a chat template."""
    from tokenizers import processors

    tokenizer, n_bytes = tokenizer_of_bytes()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    begin = [("<s>", n_bytes)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=begin)
    sizes = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "position": "rotary"}
    spec = {"format": 1, "name": "base", "builder": "decoder", "vocab": n_bytes + 2}
    zoo.save(zoo.build({**spec, **sizes}), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {"bos_token_id": n_bytes, "eos_token_id": n_bytes + 1}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    (folder / "chat_template.jinja").write_text(
        "{%- for message in messages %}"
        "{%- if message.role == 'assistant' %}{{- message.content + '</s>' }}"
        "{%- else %}{{- '<s>' + message.content + '\n' }}{%- endif %}"
        "{%- endfor %}"
    )


def make_assistant(folder: Path) -> None:
    """A model of chats in a folder, with a tokenizer of bytes."""
    tokenizer, n_bytes = tokenizer_of_bytes()
    spec = {"format": 1, "name": "assistant", "builder": "decoder", "vocab": n_bytes}
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    zoo.save(zoo.build({**spec, **sizes}), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template)


def tokenizer_of_bytes() -> tuple[Tokenizer, int]:
    """A tokenizer of single bytes, and how many tokens it has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, len(alphabet)


def test_every_page_is_run_or_generated() -> None:
    """Every page is run here, has a test of its own, or is generated."""
    elsewhere = {
        "docs/api.md",
        "docs/commands.md",
        "docs/plugins.md",
        "docs/plugin-reference.md",
        "docs/contributing.md",
        "docs/decisions.md",
        "docs/families.md",
        "docs/models.md",
        "docs/performance.md",
        "docs/performance-avx2.md",
        "docs/performance-h200.md",
        "docs/performance-intel.md",
        "docs/recipe.md",
        "docs/security.md",
        "docs/reliability.md",
        "docs/words.md",
    }
    pages = {str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md")} | {"README.md"}
    assert pages - elsewhere == set(PAGES)


def test_component_pages_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference pages are equal to those generated from the current descriptions."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    made = runpy.run_path(str(ROOT / "tools/component_pages.py"))["pages"]()
    found = {path.name: path.read_text() for path in (ROOT / "docs/components").glob("*.md")}
    assert found == made


@pytest.mark.parametrize(
    ("page", "tool"),
    [("recipe", "recipe_page"), ("api", "api_page"), ("commands", "command_page")],
)
def test_a_page_is_what_its_tool_writes(
    page: str, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    made = runpy.run_path(str(ROOT / f"tools/{tool}.py"))["page"]()
    assert (ROOT / f"docs/{page}.md").read_text() == made


def test_every_public_name_and_every_command_is_on_its_page() -> None:
    names = set(re.findall(r"^### `zoo\.(\w+)`$", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    assert names == set(zoo.__all__)
    commands = re.findall(r"^### zoo (\w+)$", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)
    assert sorted(commands) == sorted(COMMANDS)


def test_the_lines_of_architectures_make_models() -> None:
    """Each line of the table, by itself or with those beside it, changes the spec above it."""
    text = (ROOT / "docs/architectures.md").read_text()
    written = re.search(r"```toml\n(format = 1\nname = \"base\".*?)```", text, re.DOTALL)
    assert written is not None
    base = tomllib.loads(written[1])
    unchanged = zoo.read_spec(base).digest
    n_tried = 0
    for cells in re.findall(r"^\| [^*|]+ \| (`.*`) \|$", text, re.MULTILINE):
        for either in cells.split(", or "):
            lines = re.findall(r"`([a-z_]+ = [^`]+)`", either)
            changed = base | tomllib.loads("\n".join(lines))
            assert zoo.read_spec(changed).digest != unchanged, lines
            n_tried += 1
    assert n_tried > 30


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub derives them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"[^\w\- ]", "", h.lower()) for h in re.findall(r"^#+ (.+)$", text, re.M)]
    return {heading.replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("pretrained/*/README.md")]
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            found = page.parent / target if target else page
            assert found.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(found), f"{page}: {target}#{anchor}"


def test_what_the_page_for_developers_names_is_there() -> None:
    """Files, folders, and targets of make, but for the environment that `make` makes."""
    named = re.findall(r"`([^`\n]+)`", (ROOT / "docs/contributing.md").read_text())
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    paths = [word for name in named for word in name.split() if re.match(r"\.?\w+(/|\.)\w", word)]
    assert len(paths) > 30
    own = [path for path in paths if not path.startswith(".venv/")]
    assert [path for path in own if not (ROOT / path).exists()] == []
    assert {n.removeprefix("make ") for n in named if n.startswith("make ")} <= {*targets}


def test_the_reason_of_every_dependency_is_told() -> None:
    """And of nothing that is none; `tomllib` comes with Python."""
    told = set(re.findall(r"\*\*([\w-]+)\*\*", dependencies_of_decisions())) - {"tomllib"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        listed += extra
    names = {re.split(r"[>\[]", one)[0] for one in listed} - {"zoo"}
    assert told == names


def dependencies_of_decisions() -> str:
    """The section on dependencies."""
    return (ROOT / "docs/decisions.md").read_text().partition("\n## Dependencies\n")[2]


def test_the_readme_lists_every_page() -> None:
    listed = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert listed == {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")}


def test_the_readme_counts_the_model_types_that_are_read() -> None:
    (told,) = re.findall(r"(\d+) model types", (ROOT / "README.md").read_text())
    assert int(told) == len(Families(load_registry()).by_model_type)

"""`zoo run` with images in texts, against the processor and the generation of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import word_tokenizers
from families.cases import Case, all_cases
from families.checkpoints import make_model, save
from PIL import Image
from small_specs import TINY_IMAGE_TEXT
from test_image_models import draw, imported
from trials import Refused, reported

import zoo
from zoo.cli import run as zoo_run

CASE = all_cases()["llava"]
N_NEW = 8
TEMPLATE = (
    "{% for message in messages %}{{ 'w20 ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w21' }}{% endif %}"
)
"""As that of LLaVA 1.5: the images of a message stand before its texts, whatever their order."""


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = ["<image>" if n == 90 else f"w{n}" for n in range(97)]
    tokenizer = word_tokenizers.word_tokenizer(words, "w0", special=["<image>"], single="w1 $A")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="w3", model_input_names=["input_ids"]
    )


class Published:
    """A checkpoint with its processor, and what `transformers` makes of texts with images."""

    def __init__(self, case: Case, processor: Any, folder: Path) -> None:
        self.folder, self.model, self.processor = folder, make_model(case), processor
        save(self.model, case, folder)
        (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
        processor.save_pretrained(folder)

    def ids(self, text: str, paths: list[str], **more: Any) -> list[int]:
        images = [Image.open(path).convert("RGB") for path in paths]
        given = self.processor(text=text, images=images or None, return_tensors="pt", **more)
        for unread in ("labels", "rows", "cols"):
            given.pop(unread, None)
        given = given.to(self.model.dtype)  # some pixels are bfloat16
        n_read = given["input_ids"].shape[1]
        options = {"do_sample": False, "eos_token_id": 2, "pad_token_id": 3}
        found = self.model.generate(**given, max_new_tokens=N_NEW, **options)
        told: list[int] = found[0, n_read:].tolist()
        return told

    def of_chat(self, chat: list[dict[str, Any]], paths: list[str]) -> list[int]:
        prompt = self.processor.apply_chat_template(chat, add_generation_prompt=True)
        # The tokenizer adds its own first token to texts, and none to chats.
        return self.ids(prompt, paths, add_special_tokens=False)

    def written(self, text: str, paths: list[str]) -> str:
        ids = self.ids(text, paths)
        told: str = self.processor.tokenizer.decode(ids, skip_special_tokens=True)
        return told


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Published:
    size = {"height": 12, "width": 12}
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessorPil(size={"shortest_edge": 12}, crop_size=size),
        word_tokenizer(),
        patch_size=4,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    return Published(CASE, processor, tmp_path_factory.mktemp("published") / "checkpoint")


@pytest.fixture(scope="module")
def model(truth: Published, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("imported") / "model"
    zoo.import_folder(truth.folder, folder)
    return str(folder)


def run(capsys: pytest.CaptureFixture[str], model: str, *arguments: str) -> Any:
    return reported(capsys, model, *arguments, "-n", str(N_NEW))


def test_texts_with_images(
    truth: Published, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = draw("one.png"), draw("other.jpg", 29, 20)
    text = "w5 <image> w6 w7"
    found = run(capsys, model, text, "--image", one)
    assert found["text"] == truth.written(text, [one])
    assert found["text"] != run(capsys, model, text, "--image", other)["text"]
    both = "<image>w9 w8<image>"
    images = ("--image", one, "--image", other)
    assert run(capsys, model, both, *images)["text"] == truth.written(both, [one, other])
    assert run(capsys, model, "w5 w6")["text"] == truth.written("w5 w6", [])


def test_chats_with_images(
    truth: Published, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = draw("one.png")
    said: list[dict[str, Any]] = [{"type": "text", "text": "w6 w7"}]
    for parts, images in ((said, []), ([{"type": "image"}, *said], [one])):
        chat = [{"role": "user", "content": parts}]
        wanted = truth.of_chat(chat, images)
        options = [option for path in images for option in ("--image", path)]
        assert run(capsys, model, "w6 w7", "--chat", *options)["ids"] == wanted
        text_model = zoo.TextModel.load(model)
        (found,) = text_model.run([chat], images=[images] if images else (), max_new_tokens=N_NEW)
        assert found["ids"] == wanted


def test_several_texts(
    truth: Published, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line all images stand in each text; in Python each text has its own."""
    one, other = draw("one.png"), draw("other.jpg", 29, 20)
    texts = ["w5 <image> w6 w7", "w8 <image>", "w9"]
    text_model = zoo.TextModel.load(model)
    found = text_model.run(texts, images=[[one], [other], []], max_new_tokens=N_NEW)
    wanted = [truth.written(t, i) for t, i in zip(texts, ([one], [other], []), strict=True)]
    assert [one["text"] for one in found] == wanted
    pieces = text_model.stream(texts[0], images=[one], max_new_tokens=N_NEW)
    assert "".join(pieces) == wanted[0]
    capsys.readouterr()
    arguments = ["run", model, *texts[:2], "--image", one, "-n", str(N_NEW), "--json"]
    assert zoo_run(arguments) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == [truth.written(text, [one]) for text in texts[:2]]


def test_what_does_not_fit(model: str, project: Path, refused: Refused) -> None:
    one = draw("one.png")
    text = "w5 <image> w6"
    told = refused("run", model, "w5", "--image", one)
    assert "the text has 0 places for an image, `<image>`, and 1 image given" in told
    assert "write `<image>` once in the text for each image" in told
    assert "1 place for an image, `<image>`, and 0 images given" in refused("run", model, text)
    assert "there.png" in refused("run", model, text, "--image", "there.png")
    text_model = zoo.TextModel.load(model)
    with pytest.raises(zoo.InputError, match="`images` are a list for each of 1 text"):
        text_model.run([text], images=[one])  # type: ignore[list-item]


def test_settings_are_needed_for_images_alone(
    truth: Published, project: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(truth.folder)
    for name in ("preprocessor_config.json", "processor_config.json"):
        Path("model", name).unlink(missing_ok=True)
    assert run(capsys, "model", "w5 w6")["text"] == truth.written("w5 w6", [])
    told = refused("run", "model", "w5 <image>", "--image", draw("one.png"))
    assert "there is no preprocessor_config.json, which says how images become pixels" in told


def test_the_older_file_of_a_chat_template(
    truth: Published, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(truth.folder)
    Path("model/chat_template.jinja").unlink()
    Path("model/chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    options = ("w6 w7", "--chat", "--image", draw("one.png"))
    assert run(capsys, "model", *options) == run(capsys, model, *options)


def test_models_that_take_no_images(project: Path, refused: Refused) -> None:
    spec = {"format": 1, "name": "plain", "builder": "decoder", "vocab": 9}
    zoo.save(zoo.build(spec | {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}), "plain")
    told = refused("run", "plain", "1 2", "--image", "one.png")
    assert "--image: plain takes no images in its texts" in told


def test_texts_of_ids(tmp_path: Path) -> None:
    """Without a tokenizer, an id stands for all states of an image."""
    model = zoo.build(TINY_IMAGE_TEXT).eval()
    zoo.save(model, tmp_path / "model.safetensors")
    stated = {"image_processor_type": "ViTImageProcessor", "size": 4}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    image = draw(str(tmp_path / "a.png"), 4, 4)
    ours = zoo.TextModel.load(tmp_path / "model.safetensors")
    (found,) = ours.run(["3 9 5"], images=[[image]], max_new_tokens=5)
    pixels = torch.from_numpy(np.array(Image.open(image))).permute(2, 0, 1)[None] / 127.5 - 1
    (expected,) = zoo.generate(model, [[3, 9, 9, 9, 9, 5]], images=pixels, max_new_tokens=5)
    assert found["ids"] == list(expected.ids)
    assert found["score"] == pytest.approx(expected.score, abs=1e-5)
    with pytest.raises(zoo.InputError, match="write the id 9 once for each part of an image"):
        ours.run(["3 9 9 5"], images=[[image]])

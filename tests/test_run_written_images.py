"""`zoo run` with images in texts that a processor of `transformers` writes in its own way: against
this processor and the generation of `transformers`."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import transformers
import word_tokenizers
from families.cases import Case, all_cases
from test_image_models import draw
from test_run_images_in_text import N_NEW, Published, run
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split
from torchvision_processors import torchvision_processor
from transformers.models.gemma4 import image_processing_pil_gemma4
from transformers.models.pixtral import image_processing_pil_pixtral as image_processing_pil
from trials import Refused

import zoo

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% for content in message['content'] %}"
    "{{ PLACE if content['type'] == 'image' else content['text'] }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w21' }}{% endif %}"
)


class Kind(NamedTuple):
    """A model and how its processor writes.

    Args:
        place: what stands for an image in a text.
        special: the special tokens, by their ids.
        named: the names of some of them, as the tokenizer is told.
        processor: makes the processor of a tokenizer.
        part_states: the number of states of a part, if parts follow each other with nothing
            between, as rows of states and other parts do not.
    """

    place: str
    special: dict[int, str]
    named: dict[str, str]
    processor: Callable[[Any], Any]
    part_states: int | None = None


def of_gemma3(tokenizer: Any) -> Any:
    size = {"height": 12, "width": 12}
    images = transformers.Gemma3ImageProcessorPil(size=size)
    return transformers.Gemma3Processor(images, tokenizer, image_seq_length=4)


class Gemma4Processor(transformers.Gemma4Processor):
    """Without the processors of sounds and videos, of which the latter needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.image_token, self.image_token_id = tokenizer.image_token, 90
        self.boi_token, self.eoi_token = tokenizer.boi_token, tokenizer.eoi_token
        self.boa_token = self.eoa_token = self.audio_token = "<audio>"
        self.audio_token_id, self.video_token, self.video_token_id = 200, "<video>", 201
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)


class Gemma4ImageProcessorPil(transformers.Gemma4ImageProcessorPil):
    """That with fewer squares too than published models have."""

    def __init__(self, **given: Any) -> None:
        with few_squares():
            super().__init__(**given)

    def _preprocess(self, *given: Any, **more: Any) -> Any:
        with few_squares():
            return super()._preprocess(*given, **more)


def few_squares() -> Any:
    return mock.patch.object(image_processing_pil_gemma4, "_SUPPORTED_SOFT_TOKENS", (4,))


def of_gemma4(tokenizer: Any) -> Any:
    """Of each image it makes up to 4 squares of 3 x 3 patches."""
    return Gemma4Processor(Gemma4ImageProcessorPil(patch_size=2, max_soft_tokens=4), tokenizer)


def of_idefics3(tokenizer: Any) -> Any:
    """It makes up to 3 x 3 parts of an image, and one of the whole."""
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 30}, max_image_size={"longest_edge": 12}
    )
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=4)


def of_paligemma(tokenizer: Any) -> Any:
    size = {"height": 12, "width": 12}
    images = transformers.SiglipImageProcessorPil(size=size, image_seq_length=9)
    return transformers.PaliGemmaProcessor(images, tokenizer)


class InternVLProcessor(transformers.InternVLProcessor):
    """Without the processor of videos, which needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.image_seq_length = 9
        self.image_token, self.video_token = tokenizer.context_image_token, "<video>"
        self.start_image_token = tokenizer.start_image_token
        self.end_image_token = tokenizer.end_image_token
        self.multimodal_pattern = re.compile("(?P<image><IMG_CONTEXT>)|(?P<video><video>)")
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)


def of_internvl(tokenizer: Any) -> Any:
    """It makes up to 4 tiles of an image, and one of the whole, whatever `crop_to_patches` says."""
    size = {"height": 12, "width": 12}
    images = transformers.GotOcr2ImageProcessorPil(size=size, crop_to_patches=False, max_patches=4)
    return InternVLProcessor(images, tokenizer)


def of_aya_vision(tokenizer: Any) -> Any:
    """It makes up to 4 tiles of an image, and one of the whole."""
    size = {"height": 12, "width": 12}
    images = transformers.GotOcr2ImageProcessorPil(size=size, crop_to_patches=True, max_patches=4)
    more = {"patch_size": 2, "img_size": 12, "downsample_factor": 2}
    return transformers.AyaVisionProcessor(images, tokenizer, **more)


def of_cohere2_vision(tokenizer: Any) -> Any:
    """It makes up to 4 tiles of an image, and one of the whole."""
    images = torchvision_processor("cohere2_vision", "Cohere2VisionImageProcessor")
    size = {"height": 12, "width": 12}
    made = images(size=size, max_patches=4, patch_size=3)
    return transformers.Cohere2VisionProcessor(made, tokenizer)


def of_lfm2_vl(tokenizer: Any) -> Any:
    """It makes 2 to 6 tiles of a large image, and a smaller one of the whole."""
    images = torchvision_processor("lfm2_vl", "Lfm2VlImageProcessor")
    sizes = {"encoder_patch_size": 2, "tile_size": 12, "min_image_tokens": 4}
    made = images(**sizes, max_image_tokens=12, max_tiles=6)
    return transformers.Lfm2VlProcessor(made, tokenizer)


def of_llama4(tokenizer: Any) -> Any:
    """It makes up to 4 tiles of an image, and one of the whole."""
    images = torchvision_processor("llama4", "Llama4ImageProcessor")
    size = {"height": 12, "width": 12}
    return transformers.Llama4Processor(images(size=size, max_patches=4), tokenizer, patch_size=2)


class Qwen2VLProcessor(transformers.Qwen2VLProcessor):
    """Without the processor of videos, which needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = 90, 91
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)


class Qwen2_5_VLProcessor(Qwen2VLProcessor):  # noqa: N801  # as transformers calls it
    """That of Qwen2.5-VL, which differs in videos alone."""


class Qwen3VLProcessor(Qwen2VLProcessor):
    """That of Qwen3-VL, which differs in videos alone."""


def of_qwen3_vl(tokenizer: Any) -> Any:
    return Qwen3VLProcessor(of_qwen2_vl(tokenizer).image_processor, tokenizer)


def of_qwen2_5_vl(tokenizer: Any) -> Any:
    return Qwen2_5_VLProcessor(of_qwen2_vl(tokenizer).image_processor, tokenizer)


def of_pixtral(tokenizer: Any, merge: int) -> Any:
    """Images are made smaller, to sides that are multiples of 4 pixels. What the module of the
    processor imports for its other functions needs torchvision."""
    name = "transformers.models.pixtral"
    with mock.patch.dict(sys.modules, {f"{name}.image_processing_pixtral": image_processing_pil}):
        module = importlib.import_module(f"{name}.processing_pixtral")
    images = transformers.PixtralImageProcessorPil(size={"longest_edge": 20})
    sizes = {"patch_size": 4 // merge, "spatial_merge_size": merge}
    return module.PixtralProcessor(images, tokenizer, **sizes, image_break_token="[ROW]")


def of_qwen2_vl(tokenizer: Any) -> Any:
    """Images stay about as large as they are, in squares of 4 x 4 pixels."""
    images = transformers.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 64, "longest_edge": 400}, patch_size=2, merge_size=2
    )
    return Qwen2VLProcessor(images, tokenizer)


def of_llava_next(tokenizer: Any) -> Any:
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": 12},
        crop_size={"height": 12, "width": 12},
        image_grid_pinpoints=[[12, 24], [24, 12], [24, 24], [36, 12]],
    )
    more = {"patch_size": 4, "num_additional_image_tokens": 1}
    return transformers.LlavaNextProcessor(
        images, tokenizer, vision_feature_select_strategy="default", **more
    )


class LlavaOnevisionProcessor(transformers.LlavaOnevisionProcessor):
    """Without the processor of videos, which needs torchvision; and of several images, all stand in
    one text, as in a chat."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.num_image_tokens, self.vision_feature_select_strategy = 9, "full"
        self.vision_aspect_ratio = "anyres_max_2"
        self.image_token, self.video_token = "<image>", "<video>"
        self.image_token_id, self.video_token_id = 90, 91
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)

    def __call__(self, images: Any = None, **given: Any) -> Any:
        return super().__call__(images=images and [images], **given)


def of_llava_onevision(tokenizer: Any) -> Any:
    images = transformers.LlavaOnevisionImageProcessorPil(
        size={"height": 14, "width": 14},
        image_grid_pinpoints=[[14, 28], [28, 14], [28, 28], [42, 14]],
    )
    return LlavaOnevisionProcessor(images, tokenizer)


OF_PARTS = {30 + 3 * i + j: f"<row_{i + 1}_col_{j + 1}>" for i in range(3) for j in range(3)}
OF_PIXTRAL = {90: "[IMG]", 91: "[ROW]", 92: "[IMG_END]"}
OF_QWEN = {90: "<|image_pad|>", 91: "<|video_pad|>", 92: "<|vision_start|>", 93: "<|vision_end|>"}
KINDS = {
    "aya_vision": Kind(
        "<image>",
        {
            **{30 + number: f"TILE_{number}" for number in range(1, 5)},
            90: "<|IMG_PATCH|>",
            91: "<|START_OF_IMG|>",
            92: "<|END_OF_IMG|>",
            93: "TILE_GLOBAL",
        },
        {},
        of_aya_vision,
    ),
    "gemma3": Kind(
        "<start_of_image>",
        {90: "<image_soft_token>", 91: "<start_of_image>", 92: "<end_of_image>"},
        {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        of_gemma3,
    ),
    "gemma4": Kind(
        "<|image|>",
        {90: "<|image|>", 91: "<|image>", 92: "<image|>"},
        {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"},
        of_gemma4,
    ),
    "idefics3": Kind(
        "<image>",
        {
            **OF_PARTS,
            90: "<image>",
            91: "<fake_token_around_image>",
            92: "<global-img>",
            93: "<end_of_utterance>",
        },
        {},
        of_idefics3,
    ),
    "internvl": Kind(
        "<IMG_CONTEXT>",
        {90: "<IMG_CONTEXT>", 91: "<img>", 92: "</img>"},
        {
            "context_image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
        },
        of_internvl,
        part_states=9,
    ),
    "cohere2_vision": Kind(
        "<|IMG_PATCH|>",
        {
            90: "<|IMG_PATCH|>",
            91: "<|START_OF_IMG|>",
            92: "<|END_OF_IMG|>",
            93: "<|IMG_LINE_BREAK|>",
        },
        {
            "image_token": "<|IMG_PATCH|>",
            "boi_token": "<|START_OF_IMG|>",
            "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
        of_cohere2_vision,
    ),
    "lfm2_vl": Kind(
        "<image>",
        {
            **{
                31 + 6 * i + j: f"<|img_row_{i + 1}_col_{j + 1}|>"
                for i in range(6)
                for j in range(6)
            },
            90: "<image>",
            91: "<|image_start|>",
            92: "<|image_end|>",
            93: "<|img_thumbnail|>",
        },
        {},
        of_lfm2_vl,
    ),
    "llama4": Kind(
        "<|image|>",
        {
            30: "<|tile_x_separator|>",
            31: "<|tile_y_separator|>",
            90: "<|patch|>",
            91: "<|image_start|>",
            92: "<|image_end|>",
            93: "<|image|>",
        },
        {},
        of_llama4,
    ),
    "qwen2_vl": Kind("<|image_pad|>", OF_QWEN, {}, of_qwen2_vl),
    "qwen2_5_vl": Kind("<|image_pad|>", OF_QWEN, {}, of_qwen2_5_vl),
    "qwen3_vl": Kind("<|image_pad|>", OF_QWEN, {}, of_qwen3_vl),
    "qwen3_5": Kind("<|image_pad|>", OF_QWEN, {}, of_qwen3_vl),
    "mistral3": Kind("[IMG]", OF_PIXTRAL, {}, partial(of_pixtral, merge=2)),
    "llava.pixtral": Kind("[IMG]", OF_PIXTRAL, {}, partial(of_pixtral, merge=1)),
    "llava_next": Kind("<image>", {90: "<image>"}, {"image_token": "<image>"}, of_llava_next),
    "llava_onevision": Kind(
        "<image>", {90: "<image>", 91: "<video>"}, {"image_token": "<image>"}, of_llava_onevision
    ),
    "paligemma": Kind("<image>", {90: "<image>"}, {"image_token": "<image>"}, of_paligemma),
}


def word_tokenizer(kind: Kind) -> transformers.PreTrainedTokenizerFast:
    """Words between spaces, and lines, with a first token before each text."""
    special = {1: "<bos>", **kind.special}
    lines = {6: "\n", 7: "\n\n"}
    words = [(special | lines).get(n, f"w{n}") for n in range(97)]
    tokenizer = word_tokenizers.word_tokenizer(
        words, "w0", special=[*special.values()], single="<bos> $A"
    )
    tokenizer.pre_tokenizer = Sequence([Split(Regex("\n+"), "isolated"), Split(" ", "removed")])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        pad_token="w3",
        model_input_names=["input_ids", "attention_mask"],
        extra_special_tokens=kind.named,
    )


class OfKind(Published):
    def __init__(self, case: Case, kind: Kind, folder: Path) -> None:
        self.kind, processor = kind, kind.processor(word_tokenizer(kind))
        processor.chat_template = TEMPLATE.replace("PLACE", repr(kind.place))
        # With a head of its own; with the table of its tokens, it would repeat the last one.
        case = replace(case, config={**case.config, "tie_word_embeddings": False})
        super().__init__(case, processor, folder)


@pytest.fixture(scope="module", params=KINDS)
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OfKind:
    folder = tmp_path_factory.mktemp("published") / "checkpoint"
    return OfKind(all_cases()[request.param], KINDS[request.param], folder)


@pytest.fixture(scope="module")
def model(truth: OfKind, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("imported") / "model"
    zoo.import_folder(truth.folder, folder)
    return str(folder)


def test_texts_with_images(
    truth: OfKind, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, place = draw("one.png"), draw("other.jpg", 29, 20), truth.kind.place
    text = f"{place} w8 w9"
    found = run(capsys, model, text, "--image", one)
    assert found["ids"] == truth.ids(text, [one])
    assert found["score"] != run(capsys, model, text, "--image", other)["score"]
    both = f"{place}w9\nw8{place} w10"
    images = ("--image", one, "--image", other)
    assert run(capsys, model, both, *images)["ids"] == truth.ids(both, [one, other])


def test_several_texts(truth: OfKind, model: str, project: Path) -> None:
    """Of other lengths and numbers of images, with a cache and without."""
    one, other, place = draw("one.png"), draw("other.jpg", 29, 20), truth.kind.place
    texts = [f"{place} w8 w9", f"{place} w50 {place} w51 w52 w53", f"{place}w14"]
    images = [[other], [one, other], [one]]
    text_model = zoo.TextModel.load(model)
    found = text_model.run(texts, images=images, max_new_tokens=N_NEW)
    wanted = [truth.ids(text, seen) for text, seen in zip(texts, images, strict=True)]
    assert [one["ids"] for one in found] == wanted
    assert text_model.images is not None
    rows = [text_model.images.row(text, seen) for text, seen in zip(texts, images, strict=True)]
    pixels = [pixels for row in rows for pixels in row.images]
    of_one_size = len({image.shape for image in pixels if isinstance(image, torch.Tensor)}) == 1
    generated = zoo.generate(
        text_model.transformer,
        [row.ids for row in rows],
        images=torch.stack(pixels) if of_one_size else pixels,
        max_new_tokens=N_NEW,
        eos=2,
        cache=False,
    )
    assert [list(one.ids) for one in generated] == wanted


def test_chats_with_images(
    truth: OfKind, model: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = draw("one.png")
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "w8 w9"}]}]
    wanted = truth.of_chat(chat, [one])
    assert run(capsys, model, "w8 w9", "--chat", "--image", one)["ids"] == wanted


def test_what_does_not_fit(truth: OfKind, model: str, project: Path, refused: Refused) -> None:
    one, place = draw("one.png"), truth.kind.place
    told = refused("run", model, "w8", "--image", one)
    assert f"the text has 0 places for an image, `{place}`, and 1 image given" in told
    if place != (token := truth.kind.special[90]):
        told = refused("run", model, f"{token} {place}", "--image", one)
        numbers = re.search(
            rf"(\d+) places for images, `{re.escape(token)}`, and .* (\d+) part", told
        )
        assert numbers is not None
        assert int(numbers[1]) == int(numbers[2]) + 1


def test_a_processor_that_is_not_known(
    truth: OfKind, model: str, project: Path, refused: Refused
) -> None:
    path = Path(model, "processor_config.json")
    before = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(before) | {"processor_class": "OtherProcessor"}))
        told = refused("run", model, f"{truth.kind.place} w8", "--image", draw("one.png"))
    finally:
        path.write_text(before)
    assert "how the processor `OtherProcessor` writes images into a text is not known" in told
    assert "processor_config.json:1:" in told


@pytest.mark.parametrize("truth", ["mistral3"], indirect=True)
def test_a_row_ends_with_a_token_that_the_tokenizer_knows(
    truth: OfKind, project: Path, refused: Refused
) -> None:
    """Where no file names the token, it is that of published models, which this one has not."""
    zoo.import_folder(truth.folder, project / "own")
    path = Path("own/processor_config.json")
    settings = json.loads(path.read_text())
    del settings["image_break_token"]
    path.write_text(json.dumps(settings))
    told = refused("run", "own", "[IMG] w8", "--image", draw("one.png"))
    assert "the tokenizer has no token `[IMG_BREAK]`, which ends rows of an image" in told
    assert "state the token that does as `image_break_token` in processor_config.json" in told


def test_ids_alone(truth: OfKind, model: str, project: Path, refused: Refused) -> None:
    """Without a tokenizer, all tokens are written, and each part of an image, or row of it, has a
    place."""
    one, place = draw("one.png"), truth.kind.place
    text_model = zoo.TextModel.load(model)
    assert text_model.images is not None
    row = text_model.images.row(f"{place} w8 w9", [one])
    written: list[str] = []
    for id_, same in groupby(row.ids):
        n = len(list(same))
        written += [str(id_)] * (n // (truth.kind.part_states or n) if id_ == 90 else n)
    shutil.copytree(model, "alone")
    Path("alone/tokenizer.json").unlink()
    alone = zoo.TextModel.load("alone")
    assert alone.images is not None
    assert alone.images.row(" ".join(written), [one]).ids == row.ids
    told = refused("run", "alone", " ".join([*written, "90"]), "--image", one)
    assert "write the id 90 once for each part of an image" in told

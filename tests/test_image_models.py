"""Images on the command line: from a published model and a file to what `transformers` says."""

from __future__ import annotations

import io
import json
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
import word_tokenizers
from families.cases import all_cases
from families.checkpoints import make_model, save
from PIL import Image
from trials import Refused, reported

import zoo
from zoo.cli import run
from zoo.errors import InputError
from zoo.images.files import read_image

CASES = all_cases()
PROCESSORS = {
    "vit": transformers.ViTImageProcessorPil(size={"height": 12, "width": 12}),
    "deit": transformers.DeiTImageProcessorPil(size=14, crop_size=12),
    "dinov2": transformers.BitImageProcessorPil(size={"shortest_edge": 15}, crop_size=12),
    "beit": transformers.BeitImageProcessorPil(size=14, crop_size=12, do_center_crop=True),
    "clip": transformers.CLIPImageProcessorPil(size=12, crop_size=12),
    "siglip": transformers.SiglipImageProcessorPil(size={"height": 12, "width": 12}),
}
OTHER_TYPES = {"data2vec-vision": "beit", "ijepa": "vit", "vit_msn": "vit"}
CLASSIFIERS = [n for n, c in CASES.items() if "ForImageClassification" in c.model_class]
ENCODERS = [
    "vit.base_pooler",
    "vit_msn",
    "deit.base_pooler",
    "ijepa.base",
    "dinov2",
    "dinov2_with_registers",
    "beit.base_pooler",
    "beit.first_pooler",
    "data2vec-vision.base_pooler",
    "clip_vision_model",
    "clip_vision_model.projected",
    "siglip_vision_model",
    "siglip_vision_model.states",
]
WORDS = [f"w{number}" for number in range(97)]
LABELS = ["w3 w4 w5", "w8", "w9 w9 w2 w20", "w7 w1"]


def processor_of(name: str) -> Any:
    """The image processor of the family of a case."""
    model_type = CASES[name].model_type
    found = OTHER_TYPES.get(model_type, model_type)
    return next(p for n, p in PROCESSORS.items() if found.startswith(n))


def published(name: str, folder: Path) -> transformers.PreTrainedModel:
    """Publish the model of a case with its image processor in a new folder."""
    model = make_model(CASES[name])
    save(model, CASES[name], folder)
    processor_of(name).save_pretrained(folder)
    return model


def imported(folder: Path, output: str = "model") -> str:
    assert run(["import", str(folder), "-o", output]) == 0
    return output


def draw(path: str, height: int = 37, width: int = 53, mode: str = "RGB") -> str:
    random = np.random.default_rng(height)
    values = random.integers(0, 256, (height, width, 4)).astype(np.uint8)
    Image.fromarray(values, "RGBA").convert(mode).save(path)
    return path


def scores(classes: list[dict[str, Any]]) -> dict[str, float]:
    return {found["label"]: found["probability"] for found in classes}


def word_tokenizer(end_id: int, pad: str) -> transformers.PreTrainedTokenizerFast:
    tokenizer = word_tokenizers.word_tokenizer(WORDS, "w0", single=f"$A w{end_id}")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, model_input_names=["input_ids"]
    )


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_says_what_the_pipeline_says(
    name: str, tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(name, tmp_path / "hf")
    images = [draw("a.png"), draw("b.png", 61, 20, "LA"), draw("c.jpg", 12, 12, "L")]
    pipeline = transformers.pipeline("image-classification", str(tmp_path / "hf"), device="cpu")
    model = imported(tmp_path / "hf")
    for image, found in zip(images, zoo.ImageModel.load(model).run(images), strict=True):
        assert found["task"] == "classify"
        expected = {one["label"]: one["score"] for one in pipeline(image)}
        assert scores(found["classes"]) == pytest.approx(expected, abs=1e-5)
        assert list(scores(found["classes"])) == list(expected)
    assert reported(capsys, model, "a.png")["classes"][0]["label"] == pipeline("a.png")[0]["label"]


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_makes_the_vector_of_transformers(
    name: str, tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pooler's or its map's; or else, as its paper takes it, that of the class token or the
    mean of the patches."""
    theirs = published(name, tmp_path / "hf")
    image = transformers.image_utils.load_image(draw("a.png"))
    with torch.no_grad():
        output = theirs(**processor_of(name)(images=image, return_tensors="pt"))
    states = output.last_hidden_state[0]
    expected = states.mean(0) if name in ("ijepa.base", "siglip_vision_model.states") else states[0]
    for key in ("pooler_output", "image_embeds"):
        if output.get(key) is not None:
            expected = output[key][0]
    found = reported(capsys, imported(tmp_path / "hf"), "a.png")
    assert found["task"] == "embed"
    torch.testing.assert_close(torch.tensor(found["embedding"]), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_labels_get_the_probabilities_of_the_pipeline(
    name: str, tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, tokenizer = published(name, tmp_path / "hf"), word_tokenizer(73, "w1")
    tokenizer.save_pretrained(tmp_path / "hf")
    pipeline = transformers.pipeline(
        "zero-shot-image-classification",
        theirs,
        tokenizer=tokenizer,
        image_processor=processor_of(name),
        device="cpu",
    )
    model = imported(tmp_path / "hf")
    options = [part for label in LABELS for part in ("--label", label)]
    for image in (draw("a.png"), draw("b.png", 61, 20, "L")):
        expected = pipeline(image, candidate_labels=LABELS, hypothesis_template="{}")
        expected = {one["label"]: one["score"] for one in expected}
        found = reported(capsys, model, image, *options)
        assert found["task"] == "classify"
        assert scores(found["classes"]) == pytest.approx(expected, abs=1e-5)
        assert list(scores(found["classes"])) == list(expected)
        assert [LABELS[one["class"]] for one in found["classes"]] == list(expected)
    assert run(["run", model, "a.png", *options]) == 0
    best = next(iter(scores(reported(capsys, model, "a.png", *options)["classes"])))
    assert run(["run", model, "a.png", *options]) == 0
    assert capsys.readouterr().out.startswith(f"{best} 0.")


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_without_labels_a_dual_encoder_embeds(
    name: str, tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = published(name, tmp_path / "hf")
    image = transformers.image_utils.load_image(draw("a.png"))
    with torch.no_grad():
        inputs = processor_of(name)(images=image, return_tensors="pt")
        ids = torch.tensor([[3, 4, 73]])
        expected = theirs(**inputs, input_ids=ids).image_embeds[0]
    found = reported(capsys, imported(tmp_path / "hf"), "a.png")
    assert found["task"] == "embed"
    torch.testing.assert_close(torch.tensor(found["embedding"]), expected, rtol=0, atol=2e-5)


def test_labels_as_ids_without_a_tokenizer(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    published("siglip", tmp_path / "hf")
    model, image = imported(tmp_path / "hf"), draw("a.png")
    length = zoo.load(model).spec.model.called_with[0].longest
    assert length is not None
    whole = " ".join(["5", *["1"] * (length - 1)])
    assert reported(capsys, model, image, "--label", whole)["classes"][0]["label"] == whole
    message = refused("run", model, image, "--label", "5 9")
    assert f"reads texts that are padded to {length} tokens" in message
    assert "the label is empty" in refused("run", model, image, "--label", "")
    assert "outside the vocabulary" in refused("run", model, image, "--label", "5 99")
    assert "text is written as ids" in refused("run", model, image, "--label", "a cat")


def test_captions_of_a_model_that_states_its_tokens_elsewhere(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BLIP begins with `bos_token_id` and ends with `sep_token_id` of an inner table, where another
    token is said to be the end. A file of such settings goes first."""
    case = CASES["blip"]
    theirs = make_model(case).eval()
    processor = transformers.BlipImageProcessorPil(size={"height": 12, "width": 12})
    pixels = processor(images=[Image.open(draw("a.png"))], return_tensors="pt")["pixel_values"]
    endless = theirs.generate(pixels, max_new_tokens=6)[0].tolist()
    theirs.config.text_config.sep_token_id = endless[3]
    expected = theirs.generate(pixels, max_new_tokens=6)[0].tolist()
    assert expected == endless[: endless.index(endless[3]) + 1]
    save(theirs, case, tmp_path / "hf")
    processor.save_pretrained(tmp_path / "hf")
    own = tmp_path / "hf/generation_config.json"
    own.unlink(missing_ok=True)
    model = imported(tmp_path / "hf")
    told = capsys.readouterr().out
    assert "generation_config.json: made of config.json, since the checkpoint has none" in told
    assert "source.spm" not in told
    found = reported(capsys, model, "a.png", "-n", "6")
    assert [3, *found["ids"]] == expected
    assert run(["export", model, "--to", "hf", "-o", "back"]) == 0
    assert not Path("back/generation_config.json").exists()
    own.write_text('{"decoder_start_token_id": 3, "eos_token_id": 96}')
    found = reported(capsys, imported(tmp_path / "hf", "other"), "a.png", "-n", "6")
    assert [3, *found["ids"]] == endless


@pytest.mark.parametrize("variant", ["", ".trocr", ".small_trocr"])
def test_captions(
    variant: str,
    tmp_path: Path,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
) -> None:
    case = CASES[f"vision-encoder-decoder{variant}"]
    theirs = make_model(case).eval()
    save(theirs, case, tmp_path / "hf")
    processor = PROCESSORS["vit"]
    processor.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf/generation_config.json").write_text('{"eos_token_id": 2}')
    image = transformers.image_utils.load_image(draw("a.png"))
    pixels = processor(images=[image], return_tensors="pt")["pixel_values"]
    expected = theirs.generate(
        pixels,
        generation_config=transformers.GenerationConfig(
            decoder_start_token_id=3, eos_token_id=2, pad_token_id=1, max_new_tokens=6
        ),
    )[0, 1:].tolist()
    model = imported(tmp_path / "hf")
    found = reported(capsys, model, "a.png", "--start", "3", "-n", "6")
    assert found["task"] == "caption"
    assert found["ids"] == expected
    assert run(["run", model, "a.png", "a.png", "--start", "3", "-n", "6"]) == 0
    assert capsys.readouterr().out == f"{found['text']}\n" * 2
    assert "compares images with no texts" in refused("run", model, "a.png", "--label", "x")
    told = refused("run", model, "a.png", "--start", "3", "--cuda-graph")
    assert "on the device `cpu`, and `--cuda-graph` is for models on a GPU" in told
    told = refused("run", model, "a.png", "--start", "3", "--device", "meta")
    assert "is on the device `meta`, where it has no values" in told
    asked = (model, "a.png", "--start", "3", "-n", "6")
    best = reported(capsys, *asked, "--beams", "2", "--answers", "2")
    assert best["score"] >= best["others"][0]["score"]
    assert "so there is no text to `--stop` at" in refused("run", *asked, "--stop", "5")
    names = [f"w{n:03}" for n in range(theirs.config.decoder.vocab_size)]
    words = tokenizers.models.WordLevel({name: n for n, name in enumerate(names)}, names[0])
    tokenizers.Tokenizer(words).save(f"{model}/tokenizer.json")
    found = reported(capsys, *asked, "--stop", names[expected[1]])
    shown = expected[: expected.index(expected[1])]
    assert found["ids"] == [*shown, expected[1]]
    assert found["text"].split() == [names[id_] for id_ in shown]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that was imported."""
    folder = tmp_path_factory.mktemp("models")
    published("vit", folder / "hf")
    zoo.import_folder(folder / "hf", folder / "vit")
    return folder / "vit"


def test_images_from_the_standard_input(
    saved: Path,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    """Its lines are paths; with `-`, it is an image."""

    def said(raw: bytes, *arguments: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        capsys.readouterr()
        assert run(["run", str(saved), *arguments]) == 0
        return capsys.readouterr().out

    paths = [draw("a.png"), draw("b c.png", 20, 30)]
    lines = said(b"", *paths)
    assert lines.count("\n") == 2
    assert said("\n".join(paths).encode()) == lines
    assert said(Path("a.png").read_bytes(), "-").strip() == lines.splitlines()[0]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a.png\n\nno.png\n")))
    message = refused("run", str(saved))
    assert "standard input:2: error: the path of an image is empty" in message
    assert "no.png: error: there is no such file" in message
    monkeypatch.setattr(sys, "stdin", None)  # closed
    message = refused("run", str(saved), "-")
    assert message.startswith("standard input: error: the file is empty")


def test_images_in_python(saved: Path, project: Path) -> None:
    model = zoo.ImageModel.load(saved)
    assert repr(model) == f"<ImageModel {model.transformer.spec.name}>"
    path = draw("a.png")
    (expected,) = model.run([path])
    with Image.open(path) as image:
        for one in (Path(path), Path(path).read_bytes(), image, image.copy()):
            assert model.run([one]) == [expected]
    many = model.run([path] * 40)  # more than a batch
    assert len(many) == 40
    assert scores(many[-1]["classes"]) == pytest.approx(scores(expected["classes"]), abs=1e-6)
    assert model.run([]) == []
    for images in (path, Path(path).read_bytes(), None, 3):
        with pytest.raises(zoo.InputError, match="images are a list, of one image too"):
            model.run(images)  # type: ignore[arg-type]
    with pytest.raises(zoo.InputError, match=r"image 1: error: an image is the path of a file"):
        model.run([np.zeros((3, 3))])  # type: ignore[list-item]
    with pytest.raises(zoo.InputError, match="not of the type `ndarray`"):
        model.run(np.zeros((2, 5, 5, 3)))  # type: ignore[arg-type]
    (best,) = model.run([path], top=1)
    assert best["classes"] == expected["classes"][:1]
    with pytest.raises(zoo.InputError, match="compares images with no texts"):
        model.run([path], labels=["a"])
    for asked in ({"method": zoo.Beam()}, {"eos": 0}, {"start": 0}, {"cuda_graph": True}):
        (name,) = asked
        with pytest.raises(zoo.InputError, match=f"generates no text: leave `{name}` out"):
            model.run([path], **asked)


def test_labels_in_the_spec_and_another_dtype(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {
        "format": 1,
        "name": "own",
        "builder": "encoder",
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 8,
        "embedding": {"kind": "patches", "image_size": 12, "patch_size": 4},
        "position": {"kind": "learned", "max_length": 10},
        "head": {"kind": "classifier", "n_classes": 2, "labels": ["cat", "dog"]},
    }
    zoo.save(zoo.build(spec), "own")
    PROCESSORS["vit"].save_pretrained("own")
    found = reported(capsys, "own", draw("a.png"), "--dtype", "bfloat16")
    assert set(scores(found["classes"])) == {"cat", "dog"}
    assert found == zoo.ImageModel.load("own", dtype="bfloat16").run(["a.png"])[0]
    assert found != reported(capsys, "own", "a.png")


def test_the_settings_travel_with_the_model(
    saved: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bundle and an export have the same bytes, and a changed byte is noticed."""
    name = "preprocessor_config.json"
    original = (saved.parent / "hf" / name).read_bytes()
    zoo.export_folder(saved, "exported")
    assert Path("exported", name).read_bytes() == original
    assert run(["bundle", "make", str(saved), "bundled", "--license", "mit"]) == 0
    assert Path("bundled", name).read_bytes() == original
    capsys.readouterr()
    expected = reported(capsys, str(saved), draw("a.png"))
    assert reported(capsys, "bundled", "a.png") == expected
    Path("bundled", name).write_bytes(original.replace(b"0.5", b"0.6"))
    assert run(["run", "bundled", "a.png"]) == 2
    assert "its bytes differ from those recorded in zoo.lock" in capsys.readouterr().err


WRONG_FILES: dict[str, tuple[bytes | None, str]] = {
    "nothing": (b"", "the file is empty"),
    "a text": (b"no image at all, but a text", "this is not an image that can be read"),
    "a header": (b"\x89PNG\r\n\x1a\n", "this is not an image that can be read"),
    "a vector graphic": (b"<svg xmlns='x'></svg>", "this is not an image that can be read"),
    "a program for a printer": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
        "this is not an image that can be read",
    ),
    "a folder": (None, "this is a folder, and not an image"),
}


@pytest.mark.parametrize(("raw", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_files_that_are_no_images(
    raw: bytes | None, message: str, saved: Path, project: Path, refused: Refused
) -> None:
    path = Path("wrong.png")
    path.mkdir() if raw is None else path.write_bytes(raw)
    found = refused("run", str(saved), "wrong.png")
    assert f"wrong.png: error: {message}" in found
    assert found.count("error:") == 1


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tiff", "a.webp", "a.gif", "a.bmp"])
def test_damaged_images(name: str, saved: Path, project: Path, refused: Refused) -> None:
    raw = Path(draw(name, 90, 120)).read_bytes()
    Path(name).write_bytes(raw[: len(raw) // 2])
    assert f"{name}: error: the image is damaged or cut off: " in refused("run", str(saved), name)


def test_images_that_are_too_large(saved: Path, project: Path, refused: Refused) -> None:
    """Files of some kilobytes: a bomb of 400 megapixels, one of 100, and strips of which the
    shorter side would be enlarged."""
    for side in (10_000, 20_000):
        Image.new("1", (side, side)).save("bomb.png")
        message = refused("run", str(saved), "bomb.png")
        assert "bomb.png: error: the image is too large" in message
        assert "Warning" not in message
    settings = json.loads((saved / "preprocessor_config.json").read_text())
    other = Path("strips")
    other.mkdir()
    (other / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes())
    crop = {"do_center_crop": True, "crop_size": 12, "size": {"shortest_edge": 1200}}
    (other / "preprocessor_config.json").write_text(json.dumps(settings | crop))
    Image.new("L", (80_000, 1)).save("strip.png")
    message = refused("run", "strips", "strip.png")
    assert "80,000 x 1 pixels would become 96,000,000 x 1,200, more than" in message


def test_images_read_in_several_threads_leave_warnings_as_they_were(project: Path) -> None:
    raw, before = Path(draw("a.png", 200, 200)).read_bytes(), list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(read_image, [raw] * 200))) == 200
    assert warnings.filters == before


def test_an_image_without_pixels(saved: Path) -> None:
    """No file holds one, but a program can make one."""
    with pytest.raises(InputError, match="the image has no pixels"):
        zoo.ImageModel.load(saved).run([Image.new("RGB", (0, 4))])


def test_all_wrong_images_are_told_at_once(saved: Path, project: Path, refused: Refused) -> None:
    Path("b.png").write_bytes(b"")
    message = refused("run", str(saved), draw("a.png"), "b.png", "no.png")
    assert "b.png: error: the file is empty" in message
    assert "no.png: error: there is no such file" in message


def test_a_model_and_settings_that_do_not_fit(saved: Path, project: Path, refused: Refused) -> None:
    draw("a.png")
    Path("m").mkdir()
    Path("m/model.safetensors").write_bytes((saved / "model.safetensors").read_bytes())
    assert "there is no preprocessor_config.json" in refused("run", "m", "a.png")
    file = Path("m/preprocessor_config.json")
    file.write_text('{\n  "image_processor_type": "ViTImageProcessor",\n  "size": 16\n}')
    message = refused("run", "m", "a.png")
    assert (
        "m/preprocessor_config.json:3:3: error: by these settings images become 16 x 16" in message
    )
    assert "takes 12 x 12" in message
    assert "as those of DINOv2, the zoo does not: state the size that the model takes" in message
    file.write_text('{"image_processor_type": "ViTImageProcessor", "size": {"shortest_edge": 12}}')
    assert "a.png: error: the image becomes 12 x 17 pixels" in refused("run", "m", "a.png")
    assert run(["run", "m", draw("b.png", 20, 20)]) == 0  # of this shape it fits
    file.write_text('{"image_processor_type": "ViTImageProcessor", "do_resize": false}')
    assert "a.png: error: the image becomes 37 x 53 pixels" in refused("run", "m", "a.png")


def test_a_model_of_grey_images(tmp_path: Path, project: Path, refused: Refused) -> None:
    save(make_model(CASES["vit.gray"]), CASES["vit.gray"], tmp_path / "hf")
    PROCESSORS["vit"].save_pretrained(tmp_path / "hf")
    model = imported(tmp_path / "hf")
    draw("a.png")
    assert "takes images of 1 channel" in refused("run", model, "a.png")


def test_options_of_texts(saved: Path, project: Path, refused: Refused) -> None:
    draw("a.png")
    model = str(saved)
    assert "--chat: vit takes no texts" in refused("run", model, "a.png", "--chat")
    assert "--mask-id: vit takes no texts" in refused("run", model, "a.png", "--mask-id", "3")
    assert "--beams: vit generates no text" in refused("run", model, "a.png", "--beams", "3")
    assert "vit compares images with no texts" in refused("run", model, "a.png", "--label", "x")
    sizes = {"format": 1, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    zoo.save(zoo.build({**sizes, "name": "t", "builder": "decoder", "vocab": 9}), "texts")
    assert "--label: t takes no images" in refused("run", "texts", "3 4", "--label", "x")
    with pytest.raises(zoo.InputError, match="t takes no images"):
        zoo.ImageModel.load("texts")


def test_without_pillow(
    saved: Path, project: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    message = refused("run", str(saved), "a.png")
    assert "reading images needs the package `pillow`, which is not installed" in message
    assert "pip install 'zoo[images]'" in message


def test_a_model_without_a_task(project: Path, refused: Refused) -> None:
    spec = {
        "format": 1,
        "name": "own",
        "builder": "encoder",
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 8,
        "vocab": 9,
        "embedding": {"kind": "patches", "image_size": 12, "patch_size": 4},
        "head": "mlm",
    }
    zoo.save(zoo.build(spec), "own")
    PROCESSORS["vit"].save_pretrained("own")
    assert "makes neither classes nor a vector of an image" in refused("run", "own", draw("a.png"))

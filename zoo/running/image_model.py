"""A model with the files of its folder that images need: from images to the result of its task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from zoo.errors import InputError, Place, placing
from zoo.generation import Beam, Greedy, Sampling
from zoo.generation.evaluating import evaluating
from zoo.generation.inputs import Given
from zoo.generation.outputs import check_numbers
from zoo.loading import OpenModel
from zoo.machine.devices import as_input
from zoo.purpose import Task
from zoo.running.asked import Asked
from zoo.running.batches import cut
from zoo.running.compared_texts import ids_to_compare, vectors_of
from zoo.running.folder_model import FolderModel
from zoo.running.generating import Writer
from zoo.running.image_reader import ImageReader
from zoo.running.labels import labels_of
from zoo.running.media import places_of, read_each
from zoo.running.settings import Settings, read_settings
from zoo.running.tasks import check_top, classes_of, compared
from zoo.running.text import Input, Text
from zoo.running.tokenized import read_text
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

if TYPE_CHECKING:
    from PIL.Image import Image

    from zoo.transformer import Comparing


@dataclass(frozen=True, slots=True, repr=False)
class ImageModel(FolderModel):
    """A model that takes images, with what says how they become pixels (`preprocessor_config.json`,
    or `processor_config.json`) and, if it reads or writes texts too, its tokenizer and its settings
    of generation, as `zoo.TextModel`.

    Args:
        transformer: the model.
        reader: makes pixels of images.
        text: turns the texts that images are compared with into ids, and ids into captions.
        settings: how the publisher has set up generation.
    """

    transformer: Transformer
    reader: ImageReader
    text: Text
    settings: Settings

    @classmethod
    def of(cls, opened: OpenModel) -> Self:
        """The model that is open, with the files beside it.

        Raises:
            ZooError: as `zoo.load`; or Pillow is not installed.
            InputError: the model takes no images, or more than images and texts.
            WeightsError: the file that says how images become pixels is missing, has a setting that
                is not supported, or makes images of another size than the model takes; or another
                file beside the weights is damaged.
        """
        spec, folder, config = opened.spec, opened.folder, opened.config
        reader = ImageReader(folder, config, spec, _image_shape(spec))
        text, settings = read_text(folder), Settings()
        _ = reader.settings, text.pad_id  # raises now if a file is damaged
        if spec.model.generation is not None:
            settings = read_settings(folder, config, has_source=True)
        return cls(opened.read(), reader, text, settings)

    @property
    def task(self) -> Task:
        """The task of the model without labels.

        Raises:
            InputError: the model has no task that takes images.
        """
        spec = self.transformer.spec
        if spec.model.task not in ("classify", "embed", "caption"):
            raise InputError(
                f"`zoo run` has no task for {spec.name}: its head makes neither classes nor a "
                "vector of an image"
            )
        return spec.model.task

    def run(
        self,
        images: Iterable[str | os.PathLike[str] | bytes | Image],
        *,
        labels: Sequence[str] | None = None,
        top: int | None = None,
        max_new_tokens: int = 64,
        method: Greedy | Sampling | Beam | None = None,
        eos: int | None = None,
        start: int | Sequence[int] | None = None,
        stop: Sequence[str] = (),
        cuda_graph: bool = False,
        places: Sequence[Place] | None = None,
    ) -> list[dict[str, Any]]:
        """Run the model's task: classify images, embed them, or write their captions.

        Args:
            images: paths of files, bytes of files, or images of Pillow.
            labels: for a model that compares images with texts, the texts of which each gets its
                probability; as they are, without words around them. Without labels, such a model
                embeds images.
            top: how many of the likeliest classes or labels are told. By default all labels; five
                classes, and of a model whose images may be of several classes also all that are
                likelier than not.
            max_new_tokens, method, eos, start, stop, cuda_graph: for captions, as in
                `TextModel.run`.
            places: where each image is, for messages; by default a file's path, or `image 2`.

        Returns:
            A result for each image: its `task`, and depending on the task the likeliest `classes`,
            or all labels as such, the likeliest first; `embedding`; or `text`, `ids`, `score` and
            `ended` (see `zoo.Generated`).

        Raises:
            InputError: the model has no task, or an image or a label does not fit it.
            WeightsError: what the model computes is NaN.
        """
        asked = Asked(
            max_new_tokens=max_new_tokens,
            method=method,
            eos=eos,
            start=start,
            stop=stop,
            cuda_graph=cuda_graph,
            labels=labels,
            top=top,
        )
        return self.answers(images, asked, places)

    def answers(
        self,
        images: Iterable[str | os.PathLike[str] | bytes | Image],
        asked: Asked,
        places: Sequence[Place] | None = None,
    ) -> list[dict[str, Any]]:
        """The results of `run`. Raises as it does."""
        if isinstance(images, str | bytes) or not isinstance(images, Iterable):
            raise InputError('images are a list, of one image too: `run(["photo.jpg"])`')
        images, task, spec = list(images), self.task, self.transformer.spec
        if places is None:
            places = places_of(images, "image")
        writer = None
        if spec.model.generation is None:
            asked.refuse_generating(spec.name)
        else:
            writer = Writer.read(self.transformer, self.text, self.settings, asked)
        texts = None
        if asked.labels is not None:
            texts, task = self._encode_texts(asked.labels), "classify"
        check_top(asked.top, task, spec.name)
        results: list[dict[str, Any]] = []
        for number, batch in enumerate(cut(list(zip(images, places, strict=True)))):
            pixels = torch.stack(read_each(batch, self.reader.pixels))
            if writer is None:
                found = list(self._read(pixels, texts, asked))
            else:
                found = writer.results(Given(pixels), batch=number)
            results += [{"task": task, **one} for one in found]
        return results

    def _read(
        self, pixels: torch.Tensor, texts: torch.Tensor | None, asked: Asked
    ) -> Iterator[dict[str, Any]]:
        """Run the model on pixels, and read off the results; `texts` are the vectors of labels."""
        model = cast("Comparing", self.transformer)
        comparison = self.transformer.spec.model.comparison
        with torch.inference_mode(), evaluating(self.transformer):
            pixels = as_input(self.transformer, pixels)
            embeds = self.task == "embed"
            outputs = model.encode_image(pixels) if embeds else cast("Any", model)(pixels)
            if texts is not None:
                outputs = model.compare(outputs, texts)
        check_numbers(outputs, self.transformer.spec.name)
        names = labels_of(self.transformer.spec, self.transformer.origin)
        for output in outputs:
            if asked.labels is not None and comparison is not None:
                yield compared(output, comparison, asked.labels, asked.top)
            elif embeds:
                yield {"embedding": output.tolist()}
            else:
                yield classes_of(output, names, top=asked.top)

    def _encode_texts(self, labels: Sequence[str]) -> torch.Tensor:
        """The vectors of labels, (labels, width). Raises InputError if the model compares nothing
        with texts, or one does not fit it."""
        spec = self.transformer.spec
        if spec.model.comparison is None:
            raise InputError(
                f"{spec.name} compares images with no texts, so there can be no labels",
                help="labels are for models with an encoder of texts too, such as CLIP",
            )
        stated = isinstance(labels, list | tuple) and all(isinstance(one, str) for one in labels)
        if not stated or not labels:
            raise InputError('labels are a list of texts: `labels=["a cat", "a dog"]`')
        rows: list[Input] = []
        for number, label in enumerate(labels):
            with placing(Place(f"label {label!r:.80}")):
                if label in labels[:number]:
                    raise InputError("the label is stated twice")
                rows.append(Input(ids_to_compare(self.text, label, spec=spec, what="label")))
        return torch.stack(vectors_of(self.transformer, rows))


def _image_shape(spec: ModelSpec) -> tuple[int, int, int]:
    """The (channels, height, width) of the model's images.

    Raises:
        InputError: it takes none, or inputs of more kinds than images and texts.
    """
    shapes = list(spec.model.images.values())
    if not shapes:
        raise InputError(f"{spec.name} takes no images", help="`zoo.TextModel` takes texts")
    if len(shapes) > 1:
        hint = "in Python, `zoo.load` returns the model, to be called with its own inputs"
        raise InputError(f"{spec.name} takes several images at once", help=hint)
    return shapes[0]

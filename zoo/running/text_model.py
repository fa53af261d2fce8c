"""A model with the tokenizer of its folder: from text to the result of the model's task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch

from zoo.arguments import check_count
from zoo.errors import InputError, Place, placing
from zoo.generation import Beam, Draft, Greedy, Lookup, Sampling
from zoo.generation.inputs import Given
from zoo.loading import OpenModel
from zoo.machine.devices import input_device
from zoo.purpose import Task
from zoo.running.asked import Asked
from zoo.running.batches import cut, outputs_of
from zoo.running.compared_texts import vectors_of
from zoo.running.folder_model import FolderModel
from zoo.running.generating import Writer
from zoo.running.images_in_text import ImagesInText
from zoo.running.labels import labels_of
from zoo.running.languages import from_language, into_language
from zoo.running.settings import Settings, read_settings
from zoo.running.sounds_in_text import SoundsInText
from zoo.running.tasks import check_top, read_off
from zoo.running.text import Input, Text
from zoo.running.text_inputs import TextInputs, text_reading
from zoo.running.tokenized import Tokenized, read_text
from zoo.running.tokenizer_file import Strategy
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.wording import counted, quoted

if TYPE_CHECKING:
    from zoo.running.chat import Prompt, Tools
    from zoo.running.image_reader import ImageFile
    from zoo.running.sounds_in_text import SoundFile


@dataclass(frozen=True, slots=True, repr=False)
class TextModel(FolderModel):
    """A model that takes text, with its tokenizer (`tokenizer.json`, and `tokenizer_target.json` if
    the output has a different one) and its settings of generation (`generation_config.json`, or
    else the `config.json` of an imported model). Without a tokenizer, text is written as ids:
    `5 9 33`.

    Args:
        transformer: the model.
        text: turns text into its ids and back.
        settings: how the publisher has set up generation.
        images: of a model in whose texts images may stand, reads texts with them.
        sounds: the same for sounds.
    """

    transformer: Transformer
    text: Text
    settings: Settings
    images: ImagesInText | None = None
    sounds: SoundsInText | None = None

    @classmethod
    def of(cls, opened: OpenModel) -> Self:
        """The model that is open, with the files beside it.

        Raises:
            ZooError: as `zoo.load`; or a file beside the weights is damaged.
        """
        spec, folder, config = opened.spec, opened.folder, opened.config
        text, settings = read_text(folder), Settings()
        images = sounds = None
        how = spec.model.generation
        if how is not None or spec.model.rereads is not None:
            has_source = how is None or how.has_source
            settings = read_settings(folder, config, has_source=has_source)
        if spec.model.comparison is not None:
            _ = text.pad_id  # raises now if a file is damaged: such a model may read padding
        if how is not None and how.inserted_images is not None:
            images = ImagesInText(folder, config, spec, how.inserted_images, text)
        if how is not None and how.inserted_sounds is not None:
            sounds = SoundsInText(folder, config, spec, how.inserted_sounds, text)
        return cls(opened.read(), text, settings, images, sounds)

    @property
    def task(self) -> Task:
        """The task of the model.

        Raises:
            InputError: the model has no task that takes text.
        """
        spec = self.transformer.spec
        takes_text = spec.model.called_with_ids_alone or spec.model.rereads is not None
        if spec.model.comparison is None and not takes_text:
            raise _not_called_with_ids(spec)
        if spec.model.task is None:
            raise InputError(f"`zoo run` has no task for {spec.name}: its head says none")
        return spec.model.task

    def run(
        self,
        texts: Iterable[Prompt],
        *,
        max_new_tokens: int = 64,
        method: Greedy | Sampling | Beam | None = None,
        eos: int | None = None,
        start: int | Sequence[int] | None = None,
        stop: Sequence[str] = (),
        images: Sequence[Sequence[ImageFile]] = (),
        sounds: Sequence[Sequence[SoundFile]] = (),
        mask_id: int | None = None,
        top: int | None = None,
        places: Sequence[Place] | None = None,
        draft: Draft | Lookup | None = None,
        cuda_graph: bool = False,
        tools: Tools | None = None,
    ) -> list[dict[str, Any]]:
        """Run the model's task: translate, continue, chat, embed, fill masked tokens, classify, or
        find answers.

        Args:
            texts: the texts; those of similar lengths are computed together. In place of a text, a
                model that reads texts as a whole takes a pair of texts, `("It rains.", "It is
                wet.")`, which its tokenizer joins; one that finds answers takes pairs alone, of a
                question and a text; and one that was trained on chats the messages
                of a chat, such as `[{"role": "user", "content": "Hello!"}]`, which it answers.
            max_new_tokens: the most tokens that are generated for a text.
            method: how generated tokens are chosen, and how many texts are generated of each; by
                default as the model's folder says, and else the likeliest. What the folder forces
                or forbids, such as the id of a language that a target begins with, holds for a
                method too that does not state it.
            eos: the id that ends generated text; overrides that of the model's folder.
            start: the id or ids that a target begins with; override that of the model's folder.
            stop: texts that end a generated text, which stops before the first of them, whichever
                tokens it comes in; or special tokens, by their text.
            images: for a model in whose texts images may stand, those of each text: a list for each
                text, of paths of files, bytes of files, or images of Pillow. Its token for images,
                such as `<image>`, marks their places in a text. In a chat, a part
                `{"type": "image"}` does; without any, they stand before the first text of the user.
            sounds: likewise, for a model in whose texts sounds may stand: paths of WAV files, or
                bytes of files. In a chat, their places are the parts `{"type": "audio"}`.
            mask_id: the id of a masked token; overrides that of the tokenizer.
            top: how many of the likeliest classes, tokens or answers are told. By default five, but
                one answer; of a model whose texts may be of several classes also all that are
                likelier than not, and of a regression all values.
            places: where each text was written, for messages; by default `text 2` and so on.
            draft: what guesses tokens, of which the model checks several in one pass: `draft(...)`
                of a smaller model, or `zoo.Lookup()`. Texts are generated one by one.
            cuda_graph: whether the steps of generation are recorded, as in `zoo.generate`.
            tools: for chats, the tools that the model may call, each as a JSON Schema.

        Returns:
            A result for each text, a dict with its `task` and what belongs to this:

            - generated text: `text`, `ids`, `score` and `ended` (see `zoo.Generated`), and with
              `n_answers` of the method `others` alike; the translation of a blank text is empty;
            - a vector: `embedding`;
            - masked tokens: the filled `text`, and the likeliest `tokens` for each of them;
            - classes: the likeliest `classes`, best first;
            - classes of tokens: the `classes` of each token, and as `spans` the entities of the
              text, or its words, with their labels;
            - answers in a text: the likeliest as `spans`.

        Raises:
            InputError: the model has no task, or a text does not fit it.
            WeightsError: what the model computes is NaN.
        """
        asked = Asked(
            max_new_tokens=max_new_tokens,
            method=method,
            eos=eos,
            start=start,
            stop=stop,
            draft=draft,
            cuda_graph=cuda_graph,
            images=images,
            sounds=sounds,
            mask_id=mask_id,
            top=top,
            tools=tools,
        )
        return self.answers(texts, asked, places)

    def answers(
        self, texts: Iterable[Prompt], asked: Asked, places: Sequence[Place] | None = None
    ) -> list[dict[str, Any]]:
        """The results of `run`. Raises as it does."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise InputError('texts are a list, of one text too: `run(["..."])`')
        texts, task, spec = list(texts), self.task, self.transformer.spec
        writer = None
        if spec.model.generation is None:
            asked.refuse_generating(spec.name)
        else:
            writer = Writer.read(self.transformer, self.text, self.settings, asked)
        if asked.mask_id is None:
            asked = replace(asked, mask_id=self.text.mask_id())
        elif task != "fill_mask":
            raise InputError(f"{spec.name} fills no masked tokens")
        check_top(asked.top, task, spec.name)
        if places is None and len(texts) > 1:
            places = [Place(f"text {number}") for number in range(1, len(texts) + 1)]
        rows = self._given(texts, asked, places)
        found = self._read(rows, asked) if writer is None else _written(rows, writer)
        return [{"task": task, **one} for one in found]

    def stream(
        self,
        text: Prompt,
        *,
        max_new_tokens: int = 64,
        method: Greedy | Sampling | None = None,
        eos: int | None = None,
        start: int | Sequence[int] | None = None,
        stop: Sequence[str] = (),
        images: Sequence[ImageFile] = (),
        sounds: Sequence[SoundFile] = (),
        draft: Draft | Lookup | None = None,
        cuda_graph: bool = False,
        tools: Tools | None = None,
    ) -> Iterator[str]:
        """Continue a text or answer a chat, and yield the new text in pieces as the tokens come.
        The arguments are those of `run`, `images` and `sounds` those of this text. If the model's
        folder asks for beams, whose tokens are known only at the end, the text is a single piece.

        Raises:
            InputError: the model does not generate, or the text does not fit it.
        """
        asked = Asked(
            max_new_tokens=max_new_tokens,
            method=method,
            eos=eos,
            start=start,
            stop=stop,
            draft=draft,
            cuda_graph=cuda_graph,
            images=[images] if images else (),
            sounds=[sounds] if sounds else (),
            tools=tools,
        )
        return self.pieces(text, asked)

    def pieces(self, text: Prompt, asked: Asked) -> Iterator[str]:
        """The result of `stream`. Raises as it does."""
        if self.transformer.spec.model.generation is None:
            raise InputError(
                f"{self.transformer.spec.name} does not generate",
                help=f"its task is {self.task}: `run` returns its outputs",
            )
        writer = Writer.read(self.transformer, self.text, self.settings, asked)
        row = self._inputs(asked).read(text, *self._media_of(1, asked))
        if not row.ids:
            return iter(())
        if asked.method is None and isinstance(writer.request.method, Beam):
            return (found["text"] for found in _written([row], writer))
        return writer.pieces(_given_of([row]))

    def translating(self, *, source: str | None = None, target: str | None = None) -> Self:
        """Take this translator, which knows several languages, for two of them.

        Args:
            source: the language of the texts, as its token is written in the tokenizer: `eng_Latn`
                for NLLB, `en_XX` for mBART, and `en` or `__en__` for M2M100. By default that for
                which the tokenizer was saved.
            target: the language of the translations, likewise. By default that of the model's
                folder.

        Raises:
            InputError: this is no translator with a tokenizer, there is no such language, or the
                tokenizer marks no texts by one.
        """
        if self.task != "translate" or not isinstance(self.text, Tokenized):
            raise InputError(f"{self.transformer.spec.name} is no translator with a tokenizer")
        text, settings = self.text, self.settings
        if target is not None:
            settings = into_language(settings, text, target)
        if source is not None:
            text = from_language(text, source)
        return replace(self, text=text, settings=settings)

    def truncating(self, n_tokens: int | None = None) -> Self:
        """Take this model for texts that may be too long for it: of each, the end that does not fit
        is not read, and a `UserWarning` tells it. Of a pair, the longer text is cut, and of a
        question and a text, the text.

        Args:
            n_tokens: how many tokens of a text are read, with the special ones that the tokenizer
                adds; by default as many as the model has positions.

        Raises:
            InputError: the model continues texts, and so their ends; it has no tokenizer;
                `n_tokens` is none of its positions; or it is not given, and they have no end.
        """
        name, task = self.transformer.spec.name, self.task
        if task == "generate":
            raise InputError(f"{name} goes on where a text ends, so that no end is left out")
        longest = text_reading(self.transformer.spec).longest
        if not isinstance(self.text, Tokenized):
            raise InputError(f"{name} has no tokenizer, so texts are ids: leave some out yourself")
        if n_tokens is None and longest is None:
            raise InputError(f"{name} has positions without an end: state `n_tokens`")
        most = longest if n_tokens is None else check_count("n_tokens", n_tokens)
        assert most is not None
        if longest is not None and most > longest:
            raise InputError(f"{name} has {longest} positions, fewer than {most} tokens")
        strategy: Strategy = "only_second" if task == "answer" else "longest_first"
        return replace(self, text=self.text.truncating(most, strategy))

    def draft(self, smaller: TextModel, *, n_tokens: int = 4) -> Draft:
        """Take a smaller model as what guesses this one's tokens.

        Args:
            smaller: a model of the same task, with the same tokenizer.
            n_tokens: how many tokens it guesses at a time.

        Raises:
            InputError: the tokenizers differ.
        """
        name, other = self.transformer.spec.name, smaller.transformer.spec.name
        if self.text.writes_ids != smaller.text.writes_ids:
            raise InputError(
                f"{other} cannot guess the tokens of {name}: only one of them has a tokenizer"
            )
        for own, theirs in zip(self.text.tokens(), smaller.text.tokens(), strict=True):
            # Families of models share a tokenizer, and the larger ones have some tokens more.
            for id_ in sorted(own.keys() & theirs.keys()):
                if own[id_] != theirs[id_]:
                    raise InputError(
                        f"{other} cannot guess the tokens of {name}: the id {id_} is "
                        f"{quoted(theirs[id_])} in its tokenizer, not {quoted(own[id_])}"
                    )
        return Draft(smaller.transformer, n_tokens)

    def _media_of(self, n_texts: int, asked: Asked) -> Sequence[Sequence[Any]]:
        """The images or sounds of each text. Raises InputError if the model takes none, or they are
        not of so many texts."""
        found: Sequence[Sequence[Any]] = [()] * n_texts
        for name, given, taken, file in (
            ("images", asked.images, self.images, "photo.jpg"),
            ("sounds", asked.sounds, self.sounds, "speech.wav"),
        ):
            if not given:
                continue
            if taken is None:
                raise InputError(f"{self.transformer.spec.name} takes no {name} in its texts")
            kinds = (list, tuple)
            alike = isinstance(given, kinds) and all(isinstance(one, kinds) for one in given)
            if not alike or len(given) != n_texts:
                raise InputError(
                    f"`{name}` are a list for each of {counted(n_texts, 'text')}, of the {name} "
                    f'that stand in it: `run(["<{name[:-1]}> What is it?"], {name}=[["{file}"]])`'
                )
            found = given
        return found

    def _given(
        self, texts: Sequence[Prompt], asked: Asked, places: Sequence[Place] | None
    ) -> list[Input]:
        """What the model reads of each text. Raises InputError, with its place, if one does not fit
        the model."""
        media, inputs = self._media_of(len(texts), asked), self._inputs(asked)
        rows: list[Input] = []
        for number, text in enumerate(texts):
            with placing(places[number] if places else None):
                rows.append(inputs.read(text, media[number]))
        return rows

    def _inputs(self, asked: Asked) -> TextInputs:
        """What makes the inputs of the model."""
        media = self.images or self.sounds
        return TextInputs(self.transformer.spec, self.text, self.settings, media, asked)

    def _read(self, rows: Sequence[Input], asked: Asked) -> Iterator[dict[str, Any]]:
        """Run the model on texts, and read off the results."""
        model = self.transformer
        labels = labels_of(model.spec, model.origin)
        if model.spec.model.comparison is not None:
            found = vectors_of(model, rows)
        else:
            found = outputs_of(model, rows, self._outputs)
        for output, row in zip(found, rows, strict=True):
            yield read_off(self.task, output, row, text=self.text, labels=labels, asked=asked)

    def _outputs(self, rows: Sequence[Input]) -> torch.Tensor:
        """The outputs of the model for texts of one length."""
        model, device = self.transformer, input_device(self.transformer)
        ids = torch.tensor([row.ids for row in rows], device=device)
        given, start = [ids], self.settings.decoder_start_token_id
        if model.spec.model.rereads is not None and start is not None:
            first = torch.full_like(ids[:, :1], start)
            given.append(torch.cat([first, ids[:, :-1]], 1))
        outputs: torch.Tensor = model(*given, **_token_types(rows, device))
        return outputs


def _written(rows: Sequence[Input], writer: Writer) -> list[dict[str, Any]]:
    """The results of generating text, of no ids none; inputs of similar lengths are computed
    together."""
    found: dict[int, dict[str, Any]] = {}
    read = [place for place, row in enumerate(rows) if row.ids]
    order = sorted(read, key=lambda place: len(rows[place].ids))
    for number, places in enumerate(cut(order)):
        made = writer.results(_given_of([rows[place] for place in places]), batch=number)
        found.update(zip(places, made, strict=True))
    return [found[place] if row.ids else writer.blank() for place, row in enumerate(rows)]


def _given_of(rows: Sequence[Input]) -> Given:
    """What a model that generates is given: ids, and the pixels of all images that stand in them,
    which are of several sizes for a model that sees any, or the spectrograms of all sounds."""
    images = [image for row in rows for image in row.images]
    whole = [image for image in images if isinstance(image, torch.Tensor)]
    alike = len(whole) == len(images) and len({image.shape for image in whole}) == 1
    pixels = torch.stack(whole) if alike else images or None
    sounds = [sound for row in rows for sound in row.sounds] or None
    return Given([row.ids for row in rows], images=pixels, sounds=sounds)


def _token_types(batch: Sequence[Input], device: torch.device) -> dict[str, torch.Tensor]:
    """The types of the tokens of texts of one length, as an argument of the model; none if all are
    0."""
    if all(row.types is None for row in batch):
        return {}
    types = [row.types or [0] * len(row.ids) for row in batch]
    return {"token_types": torch.tensor(types, device=device)}


def _not_called_with_ids(spec: ModelSpec) -> InputError:
    hint = "in Python, `zoo.load` returns the model, "
    if spec.model.images:
        hint = "`zoo run` takes images in place of texts, and in Python `zoo.ImageModel` does"
    elif spec.model.hears:
        hint = "`zoo run` takes sounds in place of texts, and in Python `zoo.SoundModel` does"
    elif spec.model.generation is None:
        hint += "to be called with its own inputs"
    else:
        hint += "and `zoo.generate` takes it with its own inputs"
    return InputError(f"text becomes ids, and {spec.name} is not called with ids alone", help=hint)

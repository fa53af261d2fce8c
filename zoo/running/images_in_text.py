"""Images in a text: their pixels, and the text with their places, as the publisher's processor
writes it."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.errors import InputError, Place, WeightsError
from zoo.files.of_model import PREPROCESSOR_SETTINGS, PROCESSOR_SETTINGS, TOKENIZER_CONFIG
from zoo.image_inputs import rows_of
from zoo.images.pixels import Parts
from zoo.json_files import read_json, read_json_if_there
from zoo.running.image_reader import ImageReader
from zoo.running.media import places_of, read_each
from zoo.running.text import Input, Text
from zoo.running.tokenizer_config import read_special_tokens
from zoo.spec import ModelSpec
from zoo.wording import allowed, counted, did_you_mean, quoted

if TYPE_CHECKING:
    from zoo.purpose import InsertedImages
    from zoo.running.chat import Chat, Tools
    from zoo.running.image_reader import ImageFile
    from zoo.transformer import Pixels

_CLASS = "processor_class"
_NAME = re.compile(r"\{(\w+)\}")


class Writing(NamedTuple):
    """How a processor writes images into a text: a table of images_in_text.toml, which says what
    each key is."""

    place: str = "{image}"
    image: str = "{image}"
    before_image: str = ""
    row: str = ""
    last_row: str = ""
    part: str = "{image}"
    after_row: str = ""
    after_parts: str = ""
    after_images: str = ""
    end: str = ""
    special: bool = True
    tiles_alone: bool = False
    settings: Mapping[str, object] = {}
    tokens: Mapping[str, str] = {}


@cache
def _table() -> tuple[Mapping[str, Writing], Mapping[str, Writing]]:
    """The processors by all their names, and by the model types that have them."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    by_name: dict[str, Writing] = {}
    of_types: dict[str, Writing] = {}
    for name, stated in data.items():
        names, types = [name, *stated.pop("also", ())], stated.pop("model_types")
        found = Writing(**stated)
        by_name.update(dict.fromkeys(names, found))
        of_types.update(dict.fromkeys(types, found))
    return by_name, of_types


class ImagesInText:
    """Makes ids and pixels of texts with images in them.

    Args:
        folder: that of the model.
        config: the text of the `config.json` that it was imported with, if there was one.
        spec: the model's.
        how: the images that may stand in its texts.
        text: turns text into its ids.
    """

    def __init__(
        self, folder: Path, config: str | None, spec: ModelSpec, how: InsertedImages, text: Text
    ) -> None:
        self.folder, self.config, self.spec = folder, config, spec
        self.how, self.text = how, text

    @cached_property
    def reader(self) -> ImageReader:
        """Makes pixels of images, as the processor says. Raises WeightsError if it is not known."""
        how = self.how
        return ImageReader(
            self.folder,
            self.config,
            self.spec,
            how.shape,
            any_size=how.any_size,
            tiling=how.tiling,
            fixed=self._writing.settings,
        )

    def row(
        self, text: str | Chat, images: Sequence[ImageFile], tools: Tools | None = None
    ) -> Input:
        """The ids of a text or of a chat in which `tools` may be called, with as many tokens for
        each image as it has states, and the pixels of the images.

        Raises:
            InputError: it has places for another number of images; or as `Text.encode` and
                `Text.write_chat`.
            WeightsError: the files of the folder that say how images are read or written are
                damaged, or not supported.
        """
        special = isinstance(text, str)  # a chat template writes the special tokens itself
        written = (
            text
            if isinstance(text, str)
            else self.text.write_chat(text, tools=tools, n_images=len(images))
        )
        if self.text.writes_ids:
            parts, ids = self._read(images), self.text.encode(written)
        else:
            place = self._filled(self._writing.place)
            self._check_places(written.count(place), len(images), place)
            parts = self._read(images)
            whole = self._written(written, place, parts)
            ids = self.text.encode(whole, special=special and self._writing.special)
        pixels = tuple(pixels for one in parts for pixels in one.pixels)
        n_states = iter(self._states(ids, pixels))
        each = (next(n_states) if id_ == self.how.image_id else 1 for id_ in ids)
        ids = [new for old, n in zip(ids, each, strict=True) for new in [old] * n]
        return Input(ids, images=pixels)

    def _states(self, ids: Sequence[int], pixels: Pixels) -> list[int]:
        """How many states each place of images in the ids stands for: those of a part or, if images
        are written row by row, those of a row. Raises InputError if there are other places."""
        rows = rows_of(pixels, self.how)
        of_parts, of_rows = [sum(one) for one in rows], [n for one in rows for n in one]
        n_places = ids.count(self.how.image_id)
        by_row = n_places == len(of_rows) if self.text.writes_ids else bool(self._writing.row)
        found = of_rows if by_row else of_parts
        if n_places != len(found):
            raise self._other_places(n_places, counted(len(found), "row" if by_row else "part"))
        return found

    @property
    def _token(self) -> str:
        return self.text.token_of(self.how.image_id)

    @cached_property
    def _writing(self) -> Writing:
        """As the `processor_class` of the folder's files says, in the order in which `transformers`
        looks for one, or else the model type. Raises WeightsError if it is not known."""
        by_name, of_types = _table()
        for name in (PROCESSOR_SETTINGS, PREPROCESSOR_SETTINGS, TOKENIZER_CONFIG):
            if not os.path.lexists(self.folder / name):
                continue
            file = read_json(self.folder / name)
            stated = file.data.get(_CLASS)
            if isinstance(stated, str) and stated in by_name:
                return by_name[stated]
            if stated is not None:
                message = (
                    f"how the processor {quoted(stated)} writes images into a text is not known"
                )
                hint = did_you_mean(str(stated), by_name) or allowed(by_name)
                raise WeightsError(message, file.place(_CLASS), hint)
        type_ = None if self.config is None else json.loads(self.config).get("model_type")
        return of_types.get(type_, Writing()) if isinstance(type_, str) else Writing()

    @cached_property
    def _tokens(self) -> Mapping[str, str]:
        """The texts of the special tokens by their names, and that of the token for images. What
        the settings of a whole processor say counts before what those of its tokenizer do."""
        ours, stated = self._writing.tokens, read_special_tokens(self.folder)
        whole = read_json_if_there(self.folder / PROCESSOR_SETTINGS)
        of_whole = {name: text for name in ours if isinstance(text := whole.get(name), str)}
        return {**ours, **stated, **of_whole, "image": self._token}

    def _filled(self, template: str, **more: object) -> str:
        """A text of the table with the values of the names in it."""
        known: Mapping[str, Any] = {**self._tokens, **more}
        return _NAME.sub(lambda found: str(known[found[1]]), template)

    def _written(self, text: str, place: str, parts: Sequence[Parts]) -> str:
        """A text with what stands at the places of images, one token for each part or row."""
        how = self._writing
        *before, rest = text.split(place)
        seen = [first + self._image(one) for first, one in zip(before, parts, strict=True)]
        return "".join(seen) + self._filled(how.after_images) + rest + self._filled(how.end)

    def _image(self, parts: Parts) -> str:
        how = self._writing
        if how.row:
            self._check_rows()
            (pixels,) = parts.pixels
            n_rows = len(rows_of([pixels], self.how)[0])
            return self._filled(how.row) * (n_rows - 1) + self._filled(how.last_row)
        found = ""
        for row in range(parts.rows):
            for column in range(parts.columns):
                number = row * parts.columns + column + 1
                places = {"row": row + 1, "column": column + 1, "number": number}
                found += self._filled(how.part, **places)
            found += how.after_row
        found = found and found + how.after_parts
        return self._filled(how.before_image) + found + self._filled(how.image)

    def _check_rows(self) -> None:
        """Raise WeightsError if the tokenizer does not know what ends a row of states."""
        for name in _NAME.findall(self._writing.row + self._writing.last_row):
            if self.text.id_of(token := self._tokens[name]) is None:
                message = f"the tokenizer has no token `{token}`, which ends rows of an image"
                hint = f"state the token that does as `{name}` in {PROCESSOR_SETTINGS}"
                raise WeightsError(message, Place(str(self.folder)), hint)

    def _read(self, images: Sequence[ImageFile]) -> list[Parts]:
        squares = self._writing.tiles_alone and len(images) > 1
        read = self.reader.square if squares else self.reader.parts
        return read_each(zip(images, places_of(images, "image"), strict=True), read)

    def _check_places(self, n_places: int, n_images: int, place: str) -> None:
        """Raise InputError unless there is a place for each image."""
        if n_places != n_images:
            raise InputError(
                f"the text has {counted(n_places, 'place')} for an image, `{place}`, and "
                f"{counted(n_images, 'image')} given",
                help=f"write `{place}` once in the text for each image, where it stands",
            )

    def _other_places(self, n_places: int, wanted: str) -> InputError:
        """The error for a text whose ids hold the token of images too often or too seldom."""
        if self.text.writes_ids:
            hint = f"write the id {self.how.image_id} once for each part of an image"
            if self.how.any_size is not None:
                hint += ", or once for each row of its states"
        else:
            place = self._filled(self._writing.place)
            hint = f"write `{place}` where an image stands, and nothing else that is read as one"
        return InputError(
            f"the ids of the text have {counted(n_places, 'place')} for images, "
            f"`{self._token}`, and these have {wanted}",
            help=hint,
        )

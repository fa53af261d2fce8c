"""Images in a text: their pixels, and the text with their places, as the publisher's processor
writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from zoo.errors import Place, WeightsError
from zoo.files.of_model import PROCESSOR_SETTINGS
from zoo.images.pixels import Parts
from zoo.inputs.images import rows_of
from zoo.running.image_reader import ImageReader
from zoo.running.media import places_of, read_each
from zoo.running.media_in_text import NAME, MediaInText
from zoo.running.text import Input, Text
from zoo.spec import ModelSpec
from zoo.wording import counted

if TYPE_CHECKING:
    import torch

    from zoo.purpose import InsertedImages
    from zoo.running.image_reader import ImageFile
    from zoo.transformer import TiledImage


class Writing(NamedTuple):
    """How a processor writes images into a text: a table of images_in_text.toml, which says what
    each key is."""

    place: str = "{image}"
    image: str = "{image}"
    before_image: str = ""
    row: str = ""
    last_row: str = ""
    part: str = "{image}"
    between_parts: str = ""
    after_row: str = ""
    after_parts: str = ""
    after_images: str = ""
    end: str = ""
    special: bool = True
    tiles_alone: bool = False
    settings: Mapping[str, object] = {}
    tokens: Mapping[str, str] = {}


class ImagesInText(MediaInText[Writing, "ImageFile", Parts]):
    """Makes ids and pixels of texts with images in them.

    Args:
        folder: that of the model.
        config: the text of the `config.json` that it was imported with, if there was one.
        spec: the model's.
        how: the images that may stand in its texts.
        text: turns text into its ids.
    """

    medium: ClassVar[str] = "image"
    part: ClassVar[str] = "image"
    table: ClassVar[Path] = Path(__file__).with_suffix(".toml")

    def __init__(
        self, folder: Path, config: str | None, spec: ModelSpec, how: InsertedImages, text: Text
    ) -> None:
        super().__init__(folder, config, spec, text)
        self.how = how

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

    def _states(self, ids: Sequence[int], read: Sequence[Parts]) -> list[int]:
        """How many states each place of images in the ids stands for: those of a part or, if images
        are written row by row, those of a row. Raises InputError if there are other places."""
        rows = rows_of(_pixels(read), self.how)
        of_parts, of_rows = [sum(one) for one in rows], [n for one in rows for n in one]
        n_places = ids.count(self.how.image_id)
        by_row = n_places == len(of_rows) if self.text.writes_ids else bool(self._writing.row)
        found = of_rows if by_row else of_parts
        if n_places != len(found):
            of_them = f"these have {counted(len(found), 'row' if by_row else 'part')}"
            once_for = "each part of an image"
            if self.how.any_size is not None:
                once_for += ", or once for each row of its states"
            raise self._other_places(n_places, of_them, once_for=once_for)
        return found

    def _input(self, ids: list[int], read: Sequence[Parts]) -> Input:
        return Input(ids, images=_pixels(read))

    @property
    def _inserted_id(self) -> int:
        return self.how.image_id

    @cached_property
    def _writing(self) -> Writing:
        return Writing(**self._stated())

    def _written(self, text: str, place: str, read: Sequence[Parts]) -> str:
        """A text with what stands at the places of images, one token for each part or row."""
        how = self._writing
        *before, rest = text.split(place)
        seen = [first + self._one(one) for first, one in zip(before, read, strict=True)]
        return "".join(seen) + self._filled(how.after_images) + rest + self._filled(how.end)

    def _one(self, read: Parts) -> str:
        how = self._writing
        if how.row:
            self._check_rows()
            (pixels,) = read.pixels
            n_rows = len(rows_of([pixels], self.how)[0])
            return self._filled(how.row) * (n_rows - 1) + self._filled(how.last_row)
        found = ""
        for row in range(read.rows):
            parts: list[str] = []
            for column in range(read.columns):
                number = row * read.columns + column + 1
                places = {"row": row + 1, "column": column + 1, "number": number}
                parts.append(self._filled(how.part, **places))
            found += how.between_parts.join(parts) + how.after_row
        found = found and found + self._filled(how.after_parts)
        return self._filled(how.before_image) + found + self._filled(how.image)

    def _check_rows(self) -> None:
        """Raise WeightsError if the tokenizer does not know what ends a row of states."""
        for name in NAME.findall(self._writing.row + self._writing.last_row):
            if self.text.id_of(token := self._tokens[name]) is None:
                message = f"the tokenizer has no token `{token}`, which ends rows of an image"
                hint = f"state the token that does as `{name}` in {PROCESSOR_SETTINGS}"
                raise WeightsError(message, Place(str(self.folder)), hint)

    def _read(self, media: Sequence[ImageFile]) -> list[Parts]:
        squares = self._writing.tiles_alone and len(media) > 1
        read = self.reader.square if squares else self.reader.parts
        return read_each(zip(media, places_of(media, "image"), strict=True), read)


def _pixels(read: Sequence[Parts]) -> tuple[torch.Tensor | TiledImage, ...]:
    return tuple(pixels for one in read for pixels in one.pixels)

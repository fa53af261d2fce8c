"""The settings of images that the publisher of a model has stated. Imports no torch.

They are those of the image processors of `transformers`, in the `preprocessor_config.json` of a
model's folder, or under `image_processor` in its `processor_config.json`. A setting that is not
known here is refused: ignored, it would give the model other pixels than those of its training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from zoo.errors import Problem, WeightsError, in_order
from zoo.images.settings import OF_ANY_SIZE, ImageSettings
from zoo.processor_files import ProcessorFile, read_processor_file
from zoo.wording import allowed, did_you_mean, quoted

TYPE, OLDER_TYPE = "image_processor_type", "feature_extractor_type"
"""The keys that name the image processor."""
_OF_BUDGET = ("pooling_kernel_size", "max_soft_tokens")
"""The settings that only image processors have that give images as many squares as they may
have."""
_OF_LARGE = (
    *("encoder_patch_size", "downsample_factor", "min_image_tokens", "max_image_tokens"),
    *("tile_size", "min_tiles", "max_tiles", "max_pixels_tolerance", "use_thumbnail"),
)
"""The settings that only image processors have that read a large image of any size in tiles."""
_OF_TILES = (
    *("crop_to_patches", "image_grid_pinpoints", "min_patches", "max_patches"),
    "resize_to_max_canvas",
)
"""The settings that only image processors have that make tiles."""
_OWN = frozenset({"order", "canvas", "precision"})
"""What is the image processor's, and no setting."""
_FIELDS = ImageSettings.model_fields.keys() - _OWN
"""The settings that are read."""


class _Processor(NamedTuple):
    """An image processor of the table."""

    own: Mapping[str, str]
    inert: frozenset[str]
    defaults: Mapping[str, Any]

    @property
    def fields(self) -> Set[str]:
        """The settings that it has."""
        of_others = {*_OF_TILES, *_OF_BUDGET, *_OF_LARGE}
        of_others |= {*(() if "merge_size" in self.defaults else OF_ANY_SIZE)}
        return _FIELDS - (of_others - self.defaults.keys()) - self.inert


class _Table(NamedTuple):
    """The image processors by all their names, and by the model types that have them; and the
    settings that change no pixel."""

    processors: Mapping[str, _Processor]
    of_types: Mapping[str, _Processor]
    inert: frozenset[str]


@cache
def _table() -> _Table:
    import tomllib

    data = tomllib.loads(Path(__file__).with_name("processors.toml").read_text("utf-8"))
    inert = frozenset(data.pop("inert"))
    processors: dict[str, _Processor] = {}
    of_types: dict[str, _Processor] = {}
    for name, defaults in data.items():
        names, types = [name, *defaults.pop("also")], defaults.pop("model_types")
        own = {key: defaults.pop(key) for key in _OWN & defaults.keys()}
        found = _Processor(own, frozenset(defaults.pop("inert", ())), defaults)
        processors.update(dict.fromkeys(names, found))
        of_types.update(dict.fromkeys(types, found))
    return _Table(processors, of_types, inert)


class PublishedSettings(NamedTuple):
    """The settings of a model's folder, and where they are."""

    settings: ImageSettings
    file: ProcessorFile


def read_image_settings(
    folder: Path, config: str | None = None, fixed: Mapping[str, object] = MappingProxyType({})
) -> PublishedSettings:
    """Read how images become pixels for the model in a folder. As in `transformers`, the
    `image_processor` of a `processor_config.json` counts before a `preprocessor_config.json`, and
    null means what is not written, but for a step that would then be taken: of these, versions of
    `transformers` differ.

    Args:
        folder: the model's.
        config: the text of the `config.json` that it was imported with, if there was one. Its model
            type says which image processor counts if the settings do not.
        fixed: the settings that the model's processor passes on in the place of what is written.

    Raises:
        WeightsError: there is no such file; it cannot be read; its image processor is not known; or
            a setting is not known or has a wrong value. All problems are reported.
    """
    file = read_processor_file(
        folder,
        "image_processor",
        what="how images become pixels",
        example='{"image_processor_type": "ViTImageProcessor", "size": 224}',
    )
    written = {key: value for key, value in file.settings.items() if value is not None}
    processor = _processor_of(written, config, file)
    problems = [*_unread_settings(file, processor)]
    stated = {key: value for key, value in written.items() if key in processor.fields}
    try:
        settings = ImageSettings.model_validate(
            {**processor.defaults, **stated, **fixed, **processor.own}
        )
    except ValidationError as error:
        problems += [
            file.problem(details, "images", processor.fields) for details in error.errors()
        ]
    if problems:
        raise WeightsError(in_order(problems))
    return PublishedSettings(settings, file)


def _unread_settings(file: ProcessorFile, processor: _Processor) -> Iterator[Problem]:
    """Yield a problem for each setting that is not known, or a null of which versions of
    `transformers` differ."""
    known = processor.fields | processor.inert | _table().inert | {TYPE, OLDER_TYPE}
    own = {key: field.default for key, field in ImageSettings.model_fields.items()}
    defaults = {**own, **processor.defaults}
    for key, value in file.settings.items():
        if value is None and key.startswith("do_") and defaults.get(key) is True:
            message = f"`{key}` is null, which versions of `transformers` read as true or as false"
            yield Problem(message, file.place(key), "state `true` or `false`")
        elif value is not None and key not in known:
            message = f"`{key}` is a setting of images that is not supported"
            yield Problem(message, file.place(key), did_you_mean(key, processor.fields))


def _processor_of(
    written: Mapping[str, Any], config: str | None, file: ProcessorFile
) -> _Processor:
    table = _table()
    key = TYPE if TYPE in written else OLDER_TYPE
    name = written.get(key)
    if isinstance(name, str) and name in table.processors:
        return table.processors[name]
    if name is not None:
        message, hint = f"the image processor {quoted(name)} is not supported", str(name)
        place = file.place(key)
        raise WeightsError(message, place, did_you_mean(hint, table.processors))
    type_ = None if config is None else json.loads(config).get("model_type")
    if isinstance(type_, str) and type_ in table.of_types:
        return table.of_types[type_]
    message = f"it does not state `{TYPE}`, which says what counts where a setting is missing"
    raise WeightsError(message, file.place(), allowed(table.processors))

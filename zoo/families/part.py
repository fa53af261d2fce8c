"""One model of a checkpoint of several, such as the language model that also reads images, as a
checkpoint of its own: its configuration, its tensors, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.stated import KEY
from zoo.families.registered import Families
from zoo.families.vocabulary import PartWords
from zoo.json_files import JsonFile
from zoo.wording import did_you_mean, quoted

_TIED = "tie_word_embeddings"
_ENCODES = "is_encoder_decoder"
_OF_ALL = ("dtype", "torch_dtype", KEY, _TIED)
"""The keys of all models of a checkpoint: what the outer configuration states of them counts."""


@dataclass(frozen=True)
class LeftOut:
    """The tensors of another part: how their names begin, their number, and their bytes."""

    prefix: str
    n_tensors: int
    n_bytes: int


@dataclass(frozen=True)
class Part:
    """A part of a checkpoint: what tells it from the others, and its configuration."""

    words: PartWords
    file: JsonFile

    def sorted_out(
        self, stored: Mapping[str, Stored], where: Place
    ) -> tuple[dict[str, Stored], tuple[LeftOut, ...]]:
        """Tell the tensors of the part, by the names that they have in its class, from those of
        others. What is of neither keeps its name, and is for the rules of the family.

        Raises:
            WeightsError: two tensors would have one name.
        """
        found: dict[str, Stored] = {}
        others: dict[str, list[Stored]] = {}
        for name, tensor in sorted(stored.items()):
            if (prefix := self.words.other(name)) is not None:
                others.setdefault(prefix, []).append(tensor)
            elif (own := self.words.own(name)) in found:
                message = f"two tensors would be the `{own}` of the part, one of them `{name}`"
                raise WeightsError(message, where)
            else:
                found[own] = tensor
        left_out = (
            LeftOut(prefix, len(tensors), sum(tensor.n_bytes for tensor in tensors))
            for prefix, tensors in others.items()
        )
        return found, tuple(left_out)


@dataclass(frozen=True)
class _Inner(JsonFile):
    """A configuration in another one, under a key. `text` is that of the whole file."""

    key: str

    def place(self, *keys: str) -> Place:
        found = super().place(self.key, *keys)
        return found if found.line is not None else super().place(*keys)


def find_part(name: str, file: JsonFile, families: Families) -> Part:
    """Find a part of a checkpoint.

    Args:
        name: the part, such as `text`.
        file: the config.json of the checkpoint.
        families: know which parts there are, and the model types.

    Raises:
        WeightsError: there is no such part, no family reads it, or no class of `transformers` is
            this part alone.
    """
    known = families.vocabulary.parts
    if name not in known:
        hint = did_you_mean(name, known, f"there is {', '.join(f'`{one}`' for one in known)}")
        raise WeightsError(f"no checkpoint has a part {quoted(name)}", help=hint)
    words = known[name]
    inner = file.data.get(words.config)
    if not isinstance(inner, dict):
        message = f"there is no table `{words.config}`, which would describe the part `{name}`"
        hint = "without `--part`, in Python `part`, the whole checkpoint is read"
        raise WeightsError(message, file.place(words.config), hint)
    part = _Inner(file.path, inner, file.text, words.config)
    families.family_of(part)
    data = {**inner, **_of_all(file, families), "architectures": [_class(part, words, families)]}
    return Part(words, replace(part, data=data))


def _of_all(file: JsonFile, families: Families) -> dict[str, Any]:
    """What the outer configuration states for all models, or takes for granted: whether tables are
    tied is looked up there alone."""
    usual = families.defaults(str(file.data.get("model_type"))).values
    taken = {_TIED: usual[_TIED]} if _TIED in usual else {}
    return taken | {key: file.data[key] for key in _OF_ALL if key in file.data}


def _class(part: JsonFile, words: PartWords, families: Families) -> str:
    """The class of `transformers` that is the part alone."""
    model_type = part.data["model_type"]
    defaults = families.defaults(model_type)
    # Of a model with an encoder of texts, such a class is the decoder.
    encodes = part.data.get(_ENCODES, defaults.values.get(_ENCODES))
    for one in defaults.classes:
        if one.endswith(words.architecture) and not encodes:
            return one
    message = f"`transformers` has no class `...{words.architecture}` of {quoted(model_type)} alone"
    raise WeightsError(message, part.place("model_type"))

"""Checkpoints as families read them: one model, its weights as floats, under the names of today."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored, find_tensors
from zoo.families.family import Family, with_rules
from zoo.families.part import LeftOut, Part, find_part
from zoo.families.quantized.dequantized import dequantized
from zoo.families.quantized.stated import KEY
from zoo.families.quantized.tensor import Quantized
from zoo.families.registered import Families
from zoo.families.sentence import SentenceHead, dense_rules, find_sentence_head
from zoo.json_files import JsonFile


@dataclass(frozen=True)
class Prepared:
    """A checkpoint, prepared for its family.

    Args:
        published: its config.json.
        part: the part of it that is read; None for the whole.
        family: the family, with rules for the layers of sentence-transformers.
        sentence: these layers.
        tensors: those of the model, by their names today.
        renamed: the older names that some have in the checkpoint.
        quantization: how its weights were quantized; None if they were not.
        left_out: its tensors that are of other parts.
    """

    published: JsonFile
    part: Part | None
    family: Family
    sentence: SentenceHead
    tensors: Mapping[str, Stored | Quantized]
    renamed: Mapping[str, str]
    quantization: str | None
    left_out: tuple[LeftOut, ...]

    @property
    def file(self) -> JsonFile:
        """The configuration that the family reads."""
        return self.published if self.part is None else self.part.file

    @property
    def config(self) -> str:
        """The text of this configuration, without what says that weights were quantized."""
        stated = {k: v for k, v in self.file.data.items() if not self.quantization or k != KEY}
        if stated == self.published.data:
            return self.published.text
        return json.dumps(stated, indent=2, ensure_ascii=False) + "\n"

    @property
    def part_of(self) -> str | None:
        """The `model_type` of the checkpoint of which a part is read."""
        return None if self.part is None else str(self.published.data.get("model_type"))

    @property
    def head(self) -> dict[str, Any]:
        """What the spec states that the family does not know."""
        return {"head": dict(self.sentence.spec)} if self.sentence.spec else {}


def prepared(source: Path, published: JsonFile, part: str | None, families: Families) -> Prepared:
    """Prepare a checkpoint. Of its tensors, only the headers are read.

    Args:
        source: its folder.
        published: its config.json.
        part: the name of the part that is read, such as `text`; None for the whole.
        families: where its family is looked up.

    Raises:
        WeightsError: no family reads it, it has no such part, or its tensors are missing, damaged
            or quantized in a way that is not read.
        SpecError: the file of its family is wrong.
    """
    where = Place(str(source))
    taken = None if part is None else find_part(part, published, families)
    file = published if taken is None else taken.file
    family = families.family_of(file)
    words = families.vocabulary.sentence
    sentence = SentenceHead() if words is None else find_sentence_head(source, words)
    family = with_rules(family, dense_rules(sentence.tensors))
    there, left_out = find_tensors(source), tuple[LeftOut, ...]()
    if taken is not None:
        there, left_out = taken.sorted_out(there, where)
    floats, quantization = dequantized(there, file)
    stored = {**floats, **sentence.tensors}
    old_names = _old_names(stored, family.legacy, where)
    tensors = {key: stored[old] for key, old in old_names.items()}
    renamed = {key: old for key, old in old_names.items() if key != old}
    return Prepared(published, taken, family, sentence, tensors, renamed, quantization, left_out)


def _old_names(stored: Iterable[str], legacy: Mapping[str, str], where: Place) -> Mapping[str, str]:
    """The stored name of each tensor, by its name today. Raises `WeightsError` if two are one."""
    found: dict[str, str] = {}
    for stated in stored:
        name = stated
        for old, new in legacy.items():
            name = name.replace(old, new)
        if name in found:
            message = "it holds a tensor under its old and its new name"
            raise WeightsError(message, where)
        found[name] = stated
    return found

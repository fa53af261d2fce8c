"""The files beside a trained model: its tokenizers, and how it is used."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from zoo.families.companions import Companion, read_companions
from zoo.files.atomic import new_file, remove_file, write_text
from zoo.files.of_model import COMPANIONS, MODULES, SETTINGS, TERMS, find_files
from zoo.provenance.origin import published_config
from zoo.running.settings import Settings, SettingsWarning, read_settings
from zoo.training.start import Start
from zoo.training.tables import OfModel
from zoo.training.tokens import AnyTokens, Tokens


def write_companions(tokens: AnyTokens, start: Start, folder: Path) -> None:
    """Write the tokenizers of a new run, with the ids of their special tokens.

    If they are those of the model that training starts from, all files beside it still hold true:
    its chat template, the configuration of its tokenizer, its settings of generation. They are
    copied byte by byte, so that the model is used and exported as before. With another tokenizer,
    only the terms of use still hold.

    What a run that ended before its first checkpoint has left of these files is removed, as it
    need not be true of this one.

    Raises:
        WeightsError: a file beside the model is damaged.
        ZooError: a file cannot be written or removed.
    """
    are_kept = isinstance(start.recipe.tokenizer, OfModel)
    kept = (*TERMS, *COMPANIONS, *MODULES) if are_kept else TERMS
    companions: list[Companion] = []
    if start.saved is not None:
        beside = start.saved.folder
        companions = read_companions(beside, find_files(beside, kept))
    for name in find_files(folder, (*COMPANIONS, *MODULES)):
        remove_file(folder / name)
    for companion in companions:
        with new_file(folder / companion.name) as file:
            file.write(companion.data)
    if not are_kept:
        tokens.save(folder)
    elif isinstance(tokens, Tokens) and (changed := _settings(tokens, start, folder)):
        write_text(folder / SETTINGS, json.dumps(changed, indent=2) + "\n")


def _settings(tokens: Tokens, start: Start, folder: Path) -> dict[str, Any] | None:
    """The settings of generation with the ids that the model learns to begin and to end with; None
    if those of the model already have them."""
    has_source = start.sides.has_source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsWarning)  # for who generates
        config = published_config(start.origin)
        found: Settings = read_settings(folder, config, has_source=has_source)
    ends = found.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    begins = not has_source or found.decoder_start_token_id == tokens.bos
    if begins and tokens.eos in ends:
        return None
    path = folder / SETTINGS
    stated: dict[str, Any] = (
        json.loads(path.read_bytes())
        if path.exists()
        else found.model_dump(exclude_none=True, exclude={"read_from"})
    )
    learned: dict[str, Any] = {"decoder_start_token_id": tokens.bos} if has_source else {}
    if tokens.eos not in ends:
        learned["eos_token_id"] = [*ends, tokens.eos] if ends else tokens.eos
    return {**tokens.ids, **stated, **learned}

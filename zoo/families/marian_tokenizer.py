"""The tokenizers of Marian's translators, such as opus-mt, made of the files that these have in
place of a `tokenizer.json`: a SentencePiece model for each side, and a table of the ids of both."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import Place, WeightsError
from zoo.families.companions import Companion
from zoo.files.of_model import TARGET_TOKENIZER, TOKENIZER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SOURCE, _TARGET, _IDS, _TARGET_IDS = "source.spm", "target.spm", "vocab.json", "target_vocab.json"
_END, _UNKNOWN, _PAD = "</s>", "<unk>", "<pad>"
_NORMAL, _UNIGRAM = 1, 1
"""The type of pieces of text, and that of models, as `sentencepiece_model.proto` numbers them."""
_OTHERS = (2, 3, 5)
"""The types of pieces that match no text: unknown, control and unused."""
_NEVER = -1e6
"""The score of a token that is no piece of a side: below that of any division into its pieces."""


@dataclass(frozen=True)
class _Pieces:
    """What a SentencePiece model says: the score of each piece, and how a text is normalized, as a
    table of the library."""

    scores: Mapping[str, float]
    charsmap: bytes


def marian_tokenizers(companions: Iterable[Companion], folder: Path) -> tuple[Companion, ...]:
    """Make the tokenizers of both sides.

    Texts become the ids that `MarianTokenizer` of transformers makes, where `sacremoses` is not
    installed, except for several characters in a row that the side does not know.

    Args:
        companions: the files beside the weights.
        folder: that of the checkpoint, for messages.

    Returns:
        The files, or none if there is a tokenizer already, or a file is missing or of a kind that
        is not converted, such as a model of byte pairs.

    Raises:
        WeightsError: a file is not a SentencePiece model.
    """
    files = {companion.name: companion.data for companion in companions}
    if TOKENIZER in files or not {_SOURCE, _TARGET, _IDS} <= files.keys():
        return ()
    sides = ((TOKENIZER, _SOURCE, _IDS), (TARGET_TOKENIZER, _TARGET, _TARGET_IDS))
    made: list[Companion] = []
    for name, model, table in sides:
        tokens = _tokens(json.loads(files.get(table, files[_IDS])))
        converted = tokens and _converted(files[model], tokens, folder / model)
        if not converted:
            return ()
        made.append(Companion(name, converted))
    return tuple(made)


def _tokens(table: Any) -> list[str] | None:
    """The tokens of a table in the order of their ids, which are all from 0 on; None if they are
    not, or a special token is missing."""
    if not isinstance(table, dict) or not {_END, _UNKNOWN, _PAD} <= table.keys():
        return None
    tokens = {id_: token for token, id_ in table.items() if type(id_) is int}
    if sorted(tokens) != list(range(len(table))):
        return None
    return [tokens[id_] for id_ in range(len(tokens))]


def _tokenizer(pieces: _Pieces, tokens: list[str]) -> Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    scored = [(token, pieces.scores.get(token, _NEVER)) for token in tokens]
    made = tokenizers.Tokenizer(models.Unigram(scored, unk_id=tokens.index(_UNKNOWN)))
    charsmap = [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []
    spaces = [normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
    made.normalizer = normalizers.Sequence([*charsmap, *spaces])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 1, 1)]
    )
    end = (_END, tokens.index(_END))
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {_END}", pair=f"$A $B {_END}", special_tokens=[end]
    )
    special = [tokenizers.AddedToken(t, normalized=False) for t in (_END, _UNKNOWN, _PAD)]
    made.add_special_tokens(special)
    # The language that a text is translated to, which the text begins with: `>>fra<<`.
    codes = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
    made.add_tokens([tokenizers.AddedToken(code, normalized=False) for code in codes])
    return made


def _converted(data: bytes, tokens: list[str], path: Path) -> bytes | None:
    """The text of a tokenizer, of a SentencePiece model and the tokens by their ids; None if the
    model is of a kind that is not converted."""
    try:
        pieces = _pieces(data)
        if pieces is None:
            return None
        return _tokenizer(pieces, tokens).to_str(pretty=True).encode()
    except Exception as error:  # the library `tokenizers` has no errors of its own
        message = f"this is not a SentencePiece model: {error}"
        raise WeightsError(message, Place(str(path))) from None


def _pieces(data: bytes) -> _Pieces | None:
    """Read a SentencePiece model; None if it is of a kind that is not converted."""
    scores: dict[str, float] = {}
    charsmap, kind = b"", _UNIGRAM
    adds_space = joins_spaces = True
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(value))
            type_ = piece.get(3, _NORMAL)
            if type_ == _NORMAL:
                scores[piece[1].decode()] = struct.unpack("<f", piece[2])[0]
            elif type_ not in _OTHERS:
                return None
        elif number == 2:
            kind = dict(_fields(value)).get(3, _UNIGRAM)
        elif number == 3:
            normalizer = dict(_fields(value))
            charsmap = normalizer.get(2, b"")
            adds_space, joins_spaces = normalizer.get(3, 1), normalizer.get(4, 1)
    if not scores:
        raise ValueError("it has no pieces")
    return _Pieces(scores, charsmap) if kind == _UNIGRAM and adds_space and joins_spaces else None


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message of protocol buffers: an integer, or
    the bytes of anything else. Raises `ValueError` if it is malformed."""
    at = 0
    while at < len(data):
        key, at = _integer(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _integer(data, at)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            length, at = _integer(data, at)
        if length is None or at + length > len(data):
            raise ValueError("it is cut off or of another format")
        yield number, data[at : at + length]
        at += length


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """The integer that begins at a byte, in 7 bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at == len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("it is cut off or of another format")

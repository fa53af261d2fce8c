"""Text that is told as its tokens come is the text of all tokens, for every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from zoo.running.text import Numbers, Text, pieces
from zoo.running.tokenized import Tokenized

WORDS = ["a", "\N{GREEK SMALL LETTER ALPHA}b", ".", ",", "n't", "'s", "\n", " ", "\N{ROCKET}x"]
BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA4, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x9A, 0x80)]
MARKED = ["\u2581", "\u2581\u2581", *WORDS, *(f"\u2581{word}" for word in WORDS)]
BY_BYTE = sorted(pre_tokenizers.ByteLevel.alphabet())
LETTERS = "\N{LATIN SMALL LETTER A WITH DIAERESIS}\N{ROCKET}\u4f60 \n.a"


def text_of(tokens: Sequence[str], decoder: decoders.Decoder | None) -> Text:
    """A tokenizer with these tokens and a special one, the last."""
    made = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, tokens[0]))
    if decoder is not None:
        made.decoder = decoder
    made.add_special_tokens(["<special>"])
    return Tokenized(made, made, Path())


def sentencepiece(tokens: Sequence[str]) -> Text:
    """As in Llama 2: bytes that no token has are tokens of their own."""
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    return text_of(tokens, decoders.Sequence(steps))


TEXTS = {
    "numbers": (Numbers(), 20),
    "words": (text_of(WORDS, None), len(WORDS)),
    "bytes": (text_of(BY_BYTE, decoders.ByteLevel()), 256),
    "metaspace": (text_of(MARKED, decoders.Metaspace()), len(MARKED)),
    "metaspace_never": (text_of(MARKED, decoders.Metaspace("\u2581", "never")), len(MARKED)),
    "sentencepiece": (sentencepiece(MARKED), len(MARKED)),
    "wordpiece": (
        text_of([*WORDS, *(f"##{word}" for word in WORDS)], decoders.WordPiece("##", cleanup=True)),
        2 * len(WORDS),
    ),
    "bpe": (
        text_of([*WORDS, *(f"{word}</w>" for word in WORDS)], decoders.BPEDecoder("</w>")),
        2 * len(WORDS),
    ),
    "fused": (text_of(WORDS, decoders.Fuse()), len(WORDS)),
}


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=300)
@given(data=st.data())
def test_the_pieces_are_the_whole(name: str, data: st.DataObject) -> None:
    text, last = TEXTS[name]
    most = 19 if name == "numbers" else last  # the last id is the special token's
    ids = data.draw(st.lists(st.integers(0, most), max_size=30))
    assert "".join(pieces(text, ids)) == text.decode(ids)


@settings(max_examples=300)
@given(st.text(LETTERS, max_size=12))
def test_characters_of_several_tokens_are_told_whole(letters: str) -> None:
    bytes_ = TEXTS["bytes"][0]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = [BY_BYTE.index(byte) for part, _ in spelled.pre_tokenize_str(letters) for byte in part]
    assert list(pieces(bytes_, ids)) == list(letters)


@settings(max_examples=300)
@given(st.lists(st.integers(0, len(BYTES) + 3), max_size=20))
def test_bytes_that_make_no_character_change_those_before_them(ids: list[int]) -> None:
    """The decoder makes `?` of each byte of a row that is not UTF-8, of its valid start, too."""
    text = sentencepiece([*BYTES, *WORDS[:3]])
    told = "".join(pieces(text, ids))
    assert told == text.decode(ids) or told.endswith(f"\n{text.decode(ids)}")
    assert "\N{REPLACEMENT CHARACTER}" in text.decode(ids) or told == text.decode(ids)


def test_an_end_that_changes_the_text_is_told_on_a_line_of_its_own() -> None:
    text = sentencepiece(BYTES)
    ids = [BYTES.index(byte) for byte in ("<0x41>", "<0x41>", "<0xC3>")]
    assert list(pieces(text, ids)) == ["A", "A", "\n" + "\N{REPLACEMENT CHARACTER}" * 3]


def test_what_is_decoded_grows_as_the_text() -> None:
    class Counting(Numbers):
        decoded = 0

        def decode(self, ids: Sequence[int]) -> str:
            self.decoded += len(ids)
            return super().decode(ids)

    text = Counting()
    assert "".join(pieces(text, range(1000))) == " ".join(map(str, range(1000)))
    assert text.decoded < 10 * 1000

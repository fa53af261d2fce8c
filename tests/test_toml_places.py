"""The positions of keys and values of a TOML text, checked by reading them with tomllib."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.document import parse
from zoo.toml.places import Span, find_places

KEYS = st.one_of(st.from_regex(r"[a-c_-]{1,3}", fullmatch=True), st.text("a. é日\"'\\", max_size=3))
SCALARS = st.one_of(
    st.integers(-9, 9), st.booleans(), st.floats(allow_nan=False), st.text("x#[]{}= é日\"'\\,.")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=5)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield all values except tables, and their paths; also the items of arrays."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
        return
    yield path, value
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))


def text_at(text: str, span: Span) -> str:
    line, column, width = span
    return text.split("\n")[line - 1][column - 1 : column - 1 + width]


@given(data=TABLES, comment=st.sampled_from(["", " # x = 1", '#"']))
@settings(max_examples=200)
def test_the_text_at_each_place_reads_as_the_value(data: dict[str, Any], comment: str) -> None:
    text = tomlkit.dumps(data).replace("\n", f"{comment}\n")
    spans = find_places(text).spans
    for path, value in leaves(tomllib.loads(text)):
        key, written = spans[path]
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            continue  # possibly `[[key]]`, which has no text of its own
        assert tomllib.loads(f"x = {text_at(text, written)}") == {"x": value}
        if isinstance(path[-1], str):
            assert tomllib.loads(f"{text_at(text, key)} = 1") == {path[-1]: 1}


@given(data=st.dictionaries(KEYS, SCALARS, min_size=1, max_size=5), draw=st.data())
@settings(max_examples=200)
def test_what_is_written_twice_can_be_taken_out(data: dict[str, Any], draw: st.DataObject) -> None:
    """At the top, in a table, and in an inline table; the rest reads as if it had been absent."""
    key = draw.draw(st.sampled_from(sorted(data)))
    again = tomlkit.dumps({key: [1, {"y": "日"}]}).strip().replace("\n", " ")
    plain = tomlkit.dumps(data)
    inline = "t = {" + ", ".join([*plain.strip("\n").split("\n"), again]) + "}\n"
    for prefix, text in (
        ((), f"{plain}{again}\n"),
        (("t",), f"[t]\n{plain}{again}"),
        (("t",), inline),
    ):
        places = find_places(text)
        (duplicate,) = places.duplicates
        assert duplicate.path == (*prefix, key)
        assert tomllib.loads(f"{text_at(text, duplicate.span)} = 1") == {key: 1}
        assert duplicate.first == places.spans[duplicate.path][0]
        left = tomllib.loads(places.text_without_duplicates)
        assert left == (tomllib.loads(plain) if not prefix else {"t": tomllib.loads(plain)})
        # All other text keeps its position.
        kept = zip(places.text_without_duplicates, text, strict=True)
        assert all(new in (old, " ") for new, old in kept)


def test_rows_of_dotted_keys_heads_and_arrays_of_tables() -> None:
    text = "a.b = 1\na.c = [1, #\n  2]\n[t.u]\nv = 3\n[[r]]\nx = 4\n[[r]]\nx = 5\n[r.s]\ny = 6\n"
    spans = find_places(text).spans
    assert {path: value for path, (_, value) in spans.items()} == {
        ("a",): (1, 1, 1),
        ("a", "b"): (1, 7, 1),
        ("a", "c"): (2, 7, 5),  # up to the end of its line
        ("a", "c", 0): (2, 8, 1),
        ("a", "c", 1): (3, 3, 1),
        ("t",): (4, 2, 1),
        ("t", "u"): (4, 4, 1),
        ("t", "u", "v"): (5, 5, 1),
        ("r",): (6, 3, 1),
        ("r", 0): (6, 3, 1),
        ("r", 0, "x"): (7, 5, 1),
        ("r", 1): (8, 3, 1),
        ("r", 1, "x"): (9, 5, 1),
        ("r", 1, "s"): (10, 4, 1),
        ("r", 1, "s", "y"): (11, 5, 1),
    }


def test_places_in_one_line_share_its_text() -> None:
    """So that the memory for the problems of an array in one line is not quadratic."""
    document = parse("a = [1, 2]\r\n", "spec.toml")
    first, second = (document.place(("a", index), value=True) for index in range(2))
    assert first.quote == "a = [1, 2]"
    assert first.quote is second.quote

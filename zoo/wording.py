"""The words of messages: names and paths quoted, counts, and suggestions of the nearest name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath


def printable(text: str) -> str:
    """Return `text` with a space for each tab, and a substitute for each character that is not
    printable or could control a terminal."""
    return "".join(
        c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def printable_lines(text: str) -> str:
    """Return `text` with each of its lines made `printable`."""
    return "\n".join(map(printable, text.split("\n")))


_CONTROLS: Mapping[int, str | None] = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n"
} | {ord("\r"): None}


def for_terminal(text: str) -> str:
    """Return `text` with a substitute for each character that controls a terminal, but for tabs and
    line ends, and without carriage returns. Unlike in `printable`, what joins characters stays, as
    in many emoji."""
    return text.translate(_CONTROLS)


def did_you_mean(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """Return a help text with the nearest known name; if no name is near, return `otherwise`, or by
    default the list of names. If `name` is another word for a known name with certain settings, the
    text has these too."""
    if close := nearest(name, known):
        kind, *settings = _other_words().get(name.lower(), [close])
        if settings and close == kind:
            table = ", ".join([f'kind = "{close}"', *settings])
            return f"did you mean `{{ {table} }}`?"
        return f"did you mean `{close}`?"
    return allowed(known) if otherwise is None else otherwise


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name for what other libraries call `name`, or the most similar one, if any.

    Matching costs the product of the lengths, so very long names are not matched.
    """
    if not name or len(name) > 100:
        return None
    import difflib  # here: a command that finds no mistake does without

    folded = {other.lower(): other for other in sorted(known)}
    name = name.lower()
    if meant(name) in folded:
        return folded[meant(name)]
    found = difflib.get_close_matches(name, folded, n=1, cutoff=0.6)
    if not found and len(name) >= 3:
        found = [other for other in folded if other.startswith(name) or other.endswith(name)]
        begins = [other for other in folded if len(other) >= 3 and name.startswith(other)]
        found = found or sorted(begins, key=len, reverse=True)
    return folded[found[0]] if found else None


@cache
def _other_words() -> dict[str, list[str]]:
    """Return the names in specs, by the names that other libraries and papers use; behind a name,
    the settings with which it means the same."""
    import tomllib

    words = tomllib.loads(Path(__file__).with_name("other_words.toml").read_text("utf-8"))
    return {word: [name] if isinstance(name, str) else name for word, name in words.items()}


def meant(name: str) -> str:
    """Return the name in specs and recipes for what others call `name`, or `name` itself."""
    return _other_words().get(name.lower(), [name])[0]


def allowed(known: Iterable[str]) -> str:
    """Return a help text that lists names."""
    names: Sequence[str] = sorted(set(known))
    if not names:
        return "nothing is allowed here"
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    return "allowed here: " + ", ".join(f"`{known}`" for known in names[:40]) + more


def first_of(items: Sequence[str], most: int) -> list[str]:
    """Return the first items, and after them how many more there are."""
    n_more = len(items) - most
    return [*items[:most], f"and {n_more} more"] if n_more > 0 else [*items]


PATH = 500
"""The most characters of a path in a message, and of a name that may be one."""


def quoted(name: object, most: int | None = None) -> str:
    """Return `name` quoted for a message, shortened to `most` characters: by default 80, or `PATH`
    for a path."""
    if most is None:
        most = PATH if isinstance(name, PurePath) else 80
    text = printable(str(name)[: most + 1])
    return f"`{text if len(text) <= most else text[: most - 3] + '...'}`"


def typed(path: object) -> str:
    """Return `path` quoted for a shell, for a command in a help text."""
    import shlex  # here: a command that finds no mistake does without

    return printable(shlex.quote(str(path)))


def dotted(path: Iterable[str | int]) -> str:
    """Return the path of a key in TOML notation: `encoder.block.ffn`."""
    return ".".join(map(str, path))


def counted(number: int, noun: str) -> str:
    """Return a count with its noun, as in `1 file` and `2,000 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""Selecting tensors by patterns such as `encoder.*`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from zoo.errors import Place, Problem, WeightsError
from zoo.weights.file import Header
from zoo.wording import counted, did_you_mean, quoted


def matching(header: Header, patterns: Sequence[str] | None, where: Place) -> set[str]:
    """The stored names of the tensors that have a name, tied ones included, which matches a
    pattern; all stored names if `patterns` is None.

    Raises:
        WeightsError: there is no pattern, or nothing matches one.
    """
    if patterns is None:
        return set(header.records)
    if not patterns:
        raise WeightsError("`only` holds no pattern, so nothing would be loaded", where)
    stored_as = {**{name: name for name in header.records}, **header.ties}
    found: set[str] = set()
    problems: list[Problem] = []
    for pattern in patterns:
        now = like(pattern, stored_as)
        if not now:
            message = (
                f"no tensor has a name like {quoted(pattern)}; there are "
                f"{counted(len(stored_as), 'name')}"
            )
            problems.append(Problem(message, where, _nearest(pattern, stored_as)))
        found |= now
    if problems:
        raise WeightsError(problems)
    return found


def like(pattern: str, stored_as: Mapping[str, str]) -> set[str]:
    """The stored names of the tensors that have a name which matches a pattern. `stored_as` maps
    every name to the one under which its tensor is stored."""
    return {first for name, first in stored_as.items() if fnmatchcase(name, pattern)}


def patterns_for(names: Collection[str]) -> set[str]:
    """All names, and the pattern of each module that they are in."""
    starts = {f"{name[:end]}.*" for name in names for end, sign in enumerate(name) if sign == "."}
    return {*names, *starts}


def _nearest(pattern: str, names: Collection[str]) -> str:
    """A help text: the nearest name or prefix of names, or examples of the first prefixes."""
    first = sorted({f"{name.partition('.')[0]}.*" for name in names})
    return did_you_mean(
        pattern, patterns_for(names), f"for example {', '.join(map(quoted, first))}"
    )

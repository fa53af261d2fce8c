"""Patterns of tensor names: `{@}layers.{i}.mlp.{p:gate|up|down}_proj.{w}`.

- `{i}` is a number.
- `{w}` is `weight` or `bias`.
- `{p:q|k}` is one of these words; `{p:query=q|key=k}` is `query` in a checkpoint and `q` in the
  zoo.
- `{rest}` is the rest of the name, whatever it is; only in rules that drop tensors.
- `{@}` is the prefix with which the checkpoint was saved.

The words of a placeholder are declared once in a rule, in the first pattern that has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

PLACEHOLDER = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
PREFIX = "{@}"
REST = "rest"

Words = Mapping[str, Mapping[str, str]]
"""For each placeholder for words, the checkpoint's words with the zoo's."""
Bindings = Mapping[str, str]
"""The value of each placeholder of a pattern: a number, or one of the zoo's words."""


class PatternError(ValueError):
    """A pattern that declares a placeholder twice or ambiguously."""


@dataclass(frozen=True)
class Pattern:
    """A pattern of names, whether or not it declares its words. `zoo_side` says whether it uses the
    zoo's words or the checkpoint's."""

    text: str
    words: Words
    zoo_side: bool = False

    @cached_property
    def placeholders(self) -> frozenset[str]:
        return frozenset(match[1] for match in PLACEHOLDER.finditer(self.text))

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        parts, end, seen = "", 0, set[str]()
        for match in PLACEHOLDER.finditer(self.text):
            parts += re.escape(self.text[end : match.start()])
            name = match[1]
            anything = ".+" if name == REST else r"\d+"
            known = "|".join(re.escape(word) for word in self._written(name)) or anything
            parts += f"(?P={name})" if name in seen else f"(?P<{name}>{known})"
            seen.add(name)
            end = match.end()
        return re.compile(parts + re.escape(self.text[end:]))

    def _written(self, placeholder: str) -> Mapping[str, str]:
        """Return the words of a placeholder on this side, with the zoo's."""
        words = self.words.get(placeholder, {})
        return {word: word for word in words.values()} if self.zoo_side else words

    def match(self, name: str) -> dict[str, str] | None:
        """Return the values of the placeholders in `name`, or None if it does not match."""
        found = self._regex.fullmatch(name)
        if found is None:
            return None
        return {
            placeholder: self._written(placeholder).get(word, word)
            for placeholder, word in found.groupdict().items()
        }

    def fill(self, bindings: Bindings) -> str:
        """Return the name in which the placeholders have the values `bindings`."""

        def written(match: re.Match[str]) -> str:
            word = bindings[match[1]]
            return self._spelled[match[1]].get(word, word)

        return PLACEHOLDER.sub(written, self.text)

    @cached_property
    def _spelled(self) -> Words:
        """For each placeholder, the zoo's words with those on this side."""
        return {
            name: {zoo: own for own, zoo in self._written(name).items()}
            for name in self.placeholders
        }


def declared_words(*patterns: str) -> dict[str, dict[str, str]]:
    """Return the words that patterns declare.

    Raises:
        PatternError: a placeholder has a name that none can have or is declared twice, or two of
            its words mean the same.
    """
    words: dict[str, dict[str, str]] = {}
    for pattern in patterns:
        for match in PLACEHOLDER.finditer(pattern):
            name, declared = match[1], match[2]
            if not name.isidentifier():
                raise PatternError(f"`{name}` cannot be a placeholder: it begins with a digit")
            if declared is None:
                if name == "w":
                    words.setdefault(name, {"weight": "weight", "bias": "bias"})
                continue
            if name in words:
                raise PatternError(f"`{name}` is declared twice")
            pairs = [word.partition("=") for word in declared.split("|")]
            words[name] = {own: zoo if sign else own for own, sign, zoo in pairs}
            if len(set(words[name].values())) != len(pairs):
                raise PatternError(f"two words of `{name}` mean the same: it cannot be inverted")
    return words

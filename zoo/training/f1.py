"""F1 scores: of classes, and of entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from zoo.running.entities import entities


def macro_f1(pairs: Sequence[tuple[int, int]]) -> float:
    """The mean over classes of 2 tp / (2 tp + fp + fn), the F1 score of a class, from pairs of the
    right class and the one that was found. Classes that occur in no pair do not count."""
    right, guessed = Counter(pair[0] for pair in pairs), Counter(pair[1] for pair in pairs)
    hits = Counter(one for one, guess in pairs if one == guess)
    each = [2 * hits[one] / (right[one] + guessed[one]) for one in right | guessed]
    return sum(each) / len(each)


def micro_and_macro_f1(
    right: Sequence[Sequence[bool]], found: Sequence[Sequence[bool]]
) -> tuple[float, float]:
    """The F1 scores of several classes of each text, from whether each class is right and whether
    it was found: that of all decisions together (micro), and the mean of those of the classes
    (macro). Classes that are never right nor found do not count in it; without any, both are 0."""
    hits: Counter[int] = Counter()
    either: Counter[int] = Counter()
    for one, other in zip(right, found, strict=True):
        for number, (is_right, is_found) in enumerate(zip(one, other, strict=True)):
            hits[number] += is_right and is_found
            either[number] += is_right + is_found
    each = [2 * hits[number] / count for number, count in either.items() if count]
    if not each:
        return 0.0, 0.0
    return 2 * hits.total() / either.total(), sum(each) / len(each)


class EntityScores(NamedTuple):
    """How well entities are found, each as a whole: all its words, and its type.

    Args:
        precision: the share of the found ones that are right; 0 if none is found.
        recall: the share of the right ones that are found; 0 if there are none.
        f1: the harmonic mean of both; 0 if one of them is.
    """

    precision: float
    recall: float
    f1: float


def entity_scores(right: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> EntityScores:
    """Score the entities that labels mark, over all texts, as CoNLL-2003 does (Tjong Kim Sang and
    De Meulder 2003, arXiv:cs/0306050, section 2.3).

    Args:
        right: the labels of the words of each text.
        found: the labels that were found.
    """
    n_hits = n_right = n_found = 0
    for one, other in zip(right, found, strict=True):
        wanted, got = entities(one), entities(other)
        n_hits += len({*wanted} & {*got})
        n_right += len(wanted)
        n_found += len(got)
    precision = n_hits / n_found if n_found else 0.0
    recall = n_hits / n_right if n_right else 0.0
    f1 = 2 * n_hits / (n_right + n_found) if n_hits else 0.0
    return EntityScores(precision, recall, f1)

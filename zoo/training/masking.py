"""Drawing the tokens that a masked language model has to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zoo.training.batches import IGNORED, Labelled
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.tables import Masking

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Masker:
    """Draws the tokens that are predicted, and what the model reads in their place (Devlin et al.
    2018, arXiv:1810.04805, section 3.1).

    Of the n tokens of a text that are not special, round(rate * n) are drawn, at least one. A
    random token is one that is not special either.

    Args:
        table: the recipe's `[masking]`.
        mask: the id of the mask token.
        special: the ids that are never drawn.
        ordinary: the ids that a random token is drawn from.
    """

    table: Masking
    mask: int
    special: Ids
    ordinary: Ids

    @classmethod
    def of(cls, table: Masking, tokens: ReaderTokens) -> Masker:
        """That of a model with this tokenizer, which has a mask token."""
        assert tokens.mask is not None  # such a tokenizer is refused
        special, ordinary = (
            np.array(ids, np.int64) for ids in (sorted(tokens.special), tokens.ordinary)
        )
        return cls(table, tokens.mask, special, ordinary)

    def drawn(self, rows: Sequence[Labelled], *, seed: int, step: int) -> list[Labelled]:
        """Draw what is predicted of each row. It depends on the rows, the seed and the step alone,
        so that all processes and a resumed run draw the same.

        Returns:
            Rows with the ids that the model reads, and the labels of the positions that were drawn.
        """
        if not rows:
            return []
        random = np.random.default_rng([seed, step, 1])  # the 1 sets it apart from those of epochs
        lengths = [len(row.ids) for row in rows]
        ids = np.concatenate([np.array(row.ids, np.int64) for row in rows])
        places = np.flatnonzero(~np.isin(ids, self.special))
        chosen = places[self._chosen(np.repeat(np.arange(len(rows)), lengths)[places], random)]
        labels = np.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        fate = random.random(len(chosen))
        table = self.table
        ids[chosen[fate < table.masked]] = self.mask
        changed = chosen[(fate >= table.masked) & (fate < table.masked + table.random)]
        ids[changed] = random.choice(self.ordinary, len(changed))
        ends = np.cumsum(lengths)[:-1]
        pairs = zip(np.split(ids, ends), np.split(labels, ends), strict=True)
        return [Labelled(one.tolist(), label.tolist()) for one, label in pairs]

    def _chosen(self, row_of: Ids, random: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Choose tokens, given the row of each, in their order: in each row the share that is
        predicted, each subset of this size equally likely."""
        counts = np.bincount(row_of)
        n_chosen = np.maximum(np.rint(self.table.rate * counts), 1)
        order = np.lexsort((random.random(len(row_of)), row_of))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen: npt.NDArray[np.bool_] = rank < n_chosen[row_of]
        return chosen

"""Embeddings of tokens, and of inputs that are vectors already."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import nn

from zoo.linear import Linear
from zoo.position import PositionScheme
from zoo_components.modules.dropout import Dropout
from zoo_components.modules.norm import Norm, put_norm, widen


class TokenDropout(NamedTuple):
    """Makes 0 of the vectors of mask tokens, and makes up for it in the others: they are multiplied
    by (1 - share) / (1 - the share of mask tokens in the sequence) (ESM-2: Lin et al. 2022).

    Args:
        share: of tokens that were replaced by mask tokens in training.
        mask_id: the id of the mask token.
    """

    share: float
    mask_id: int

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """x (batch, length, width) for ids (batch, length), of which a mask (batch, length) hides
        padding."""
        masks = ids == self.mask_id
        counted = masks if mask is None else masks & mask
        length = ids.shape[1] if mask is None else mask.sum(1).clamp(min=1)
        wide = widen(x)
        left = 1 - counted.sum(1).to(wide.dtype) / length
        # Where only mask tokens are left, all vectors are 0, whatever the factor.
        factor = (1 - self.share) / left.masked_fill(left <= 0, 1.0)
        return (wide.masked_fill(masks[..., None], 0.0) * factor[:, None, None]).to(x.dtype)


class TokenEmbedding(nn.Module):
    """dropout(norm(scale * table[ids] + types + positions)), projected at the start or the end;
    with the norm before the positions, dropout(norm(scale * table[ids] + types) + positions)."""

    def __init__(
        self,
        *,
        vocab: int,
        d_embed: int,
        scale: float,
        round_scale: bool,
        proj: nn.Module | None,
        project_first: bool,
        types: nn.Embedding | None,
        positions: PositionScheme | None,
        norm: nn.Module,
        norm_site: Literal["before_positions", "after_positions"],
        dropout: float,
        zero_masked: bool,
        token_dropout: TokenDropout | None,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, d_embed)
        self.scale, self.round_scale = scale, round_scale
        self.types = types
        self.positions = positions
        self.norm = norm
        self.norm_site = norm_site
        self.dropout = Dropout(dropout)
        self.proj = proj
        self.project_first = project_first
        self.zero_masked = zero_masked
        self.token_dropout = token_dropout

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        inserted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embed tokens.

        Args:
            ids: (batch, length).
            positions: (length,) or (batch, length).
            token_types: (batch, length); by default 0.
            mask: (batch, length), False at padding and masked tokens; by default there are none.
            inserted: vectors (n, d_model), or of the width of the table if that is projected last,
                for which the ids from the size of the vocabulary on stand.

        Returns:
            (batch, length, d_model).

        Raises:
            TypeError: the ids or the token types are not integers.
            IndexError: an id is outside the vocabulary, or a token type is none of the model's.
            ValueError: token types are given to a model without types, or their shape is not that
                of the ids.
        """
        vocab = self.tokens.num_embeddings
        x = self._token_vectors(ids if inserted is None else ids.clamp(max=vocab - 1), mask)
        if self.proj is not None and self.project_first:
            x = self.proj(x)
        if inserted is not None:
            own = ids < vocab
            x = torch.where(own[..., None], x, inserted[(ids - vocab).masked_fill(own, 0)])
        if self.types is not None:
            x = x + self._type_vectors(self.types, ids, token_types)
        else:
            refuse_types(token_types)
        if self.norm_site == "before_positions":
            x = self.norm(x)
        if self.positions is not None:
            x = self.positions.embed(x, positions)
        if self.norm_site == "after_positions":
            x = self.norm(x)
        if self.zero_masked and mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)
        x = self.dropout(x)
        return x if self.proj is None or self.project_first else self.proj(x)

    def _token_vectors(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if ids.dtype not in (torch.int64, torch.int32):
            raise not_ids(ids)
        x = _rows(self.tokens, ids, "tokens")
        if self.round_scale:
            x = x * x.new_full((), self.scale)
        elif self.scale != 1.0:
            x = x * self.scale
        return x if self.token_dropout is None else self.token_dropout(x, ids, mask)

    def _type_vectors(
        self, table: nn.Embedding, ids: torch.Tensor, token_types: torch.Tensor | None
    ) -> torch.Tensor:
        if token_types is None:
            return _rows(table, torch.zeros_like(ids), "token types")
        if token_types.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                f"token types are integers (torch.int64), not {token_types.dtype}; "
                "`token_types.long()` converts them"
            )
        if token_types.shape != ids.shape:
            raise ValueError(
                f"token_types of shape {tuple(token_types.shape)} does not fit: it is (batch, "
                f"length) = {tuple(ids.shape)}"
            )
        return _rows(table, token_types, "token types")


class Vectors(nn.Module):
    """dropout(vectors(x) + positions); `vectors` is all that differs between kinds."""

    def __init__(self, *, positions: PositionScheme | None, dropout: float) -> None:
        super().__init__()
        self.positions = positions
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x: what `vectors` takes, to (batch, length, d_model); positions: (length,) or (batch,
        length); `mask` changes nothing.

        Raises:
            ValueError: token types are given.
        """
        refuse_types(token_types)
        return self.positioned(self.vectors(x), positions)

    def positioned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """dropout(x + positions)."""
        if self.positions is not None:
            x = self.positions.embed(x, positions)
        return self.dropout(x)

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, d_model), kept."""
        return x


class ProjectedVectors(Vectors):
    """dropout(projection(norm(x)) + positions)."""

    norm: Norm

    def __init__(
        self,
        *,
        n_features: int,
        d_model: int,
        norm: nn.Module,
        positions: PositionScheme | None,
        dropout: float,
    ) -> None:
        super().__init__(positions=positions, dropout=dropout)
        put_norm(self, "norm", norm)
        self.projection = Linear(n_features, d_model)

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, n_features) to (batch, length, d_model)."""
        return self.projection(self.norm(x))


def _rows(table: nn.Embedding, ids: torch.Tensor, named: str) -> torch.Tensor:
    """The rows of a table at ids (batch, length) of what is `named` so in a message.

    Raises:
        IndexError: there is no such row.
    """
    try:
        rows: torch.Tensor = table(ids)
    except IndexError:
        n_rows = table.num_embeddings
        row, place = ((ids < 0) | (ids >= n_rows)).nonzero()[0].tolist()
        raise IndexError(
            f"the model has {n_rows} {named}, with ids from 0 to {n_rows - 1}; the one at "
            f"[{row}, {place}] is {ids[row, place]}"
        ) from None
    return rows


def not_ids(inputs: torch.Tensor) -> TypeError:
    """The error for inputs that are no ids of tokens, by their dtype."""
    return TypeError(
        "ids of tokens are integers, the numbers of rows in a table (torch.int64), not "
        f"{inputs.dtype}; `ids.long()` converts them"
    )


def refuse_types(token_types: torch.Tensor | None) -> None:
    """Raise ValueError if token types are given, for an embedding without types."""
    if token_types is not None:
        raise ValueError("this model has no token types (`n_types` in its spec is 0)")

"""How good a model's translations are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.generation import Beam, generate
from zoo.training.batches import Row, batches
from zoo.training.extras import extra
from zoo.training.split import Example
from zoo.training.tables import Evaluation
from zoo.training.tokens import Tokens
from zoo.transformer import Transformer


def translate(
    model: Transformer,
    tokens: Tokens,
    texts: Sequence[str],
    evaluation: Evaluation,
    *,
    max_length: int,
) -> list[str]:
    """Translate texts by beam search, in batches of like lengths; neither they nor their
    translations have more than `max_length` tokens."""
    rows = [Row(ids[:max_length], ()) for ids in tokens.encode_sources(texts)]
    method = Beam(
        size=evaluation.beam, length_penalty=evaluation.length_penalty, length_formula="gnmt"
    )
    translations: dict[int, str] = {}
    for places in batches(rows, tokens=evaluation.batch_tokens, seed=0, epoch=0):
        found = generate(
            model,
            [rows[place].source or () for place in places],
            max_new_tokens=max_length - 1,
            method=method,
            eos=tokens.eos,
            start=tokens.bos,
        )
        texts_of = tokens.decode_targets([one.ids for one in found])
        translations.update(zip(places, texts_of, strict=True))
    return [translations[place] for place in range(len(rows))]


def bleu(translations: Sequence[str], examples: Sequence[Example]) -> dict[str, Any]:
    """The BLEU of translations (Papineni et al. 2002) as sacreBLEU computes it (Post 2018,
    arXiv:1804.08771), in percent, with the signature that tells how."""
    metric = extra("sacrebleu").BLEU()
    score = metric.corpus_score(list(translations), [[example.target for example in examples]])
    return {"bleu": score.score, "signature": str(metric.get_signature())}

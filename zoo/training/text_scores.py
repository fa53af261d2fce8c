"""Scores of models that generate: BLEU of translations, and the perplexity of lines or answers."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from zoo.generation import Beam, generate
from zoo.generation.evaluating import evaluating
from zoo.machine.devices import input_device
from zoo.running.perplexity import OnProgress, perplexity_data
from zoo.training.batches import Row, batches, n_labels
from zoo.training.example import Example
from zoo.training.extras import imported
from zoo.training.loss import summed_loss
from zoo.training.recipe import Recipe
from zoo.transformer import Transformer

if TYPE_CHECKING:
    from zoo.training.text_objective import TextObjective


@dataclass(frozen=True)
class TextScores:
    """Measures a model that generates.

    Args:
        model: the model.
        objective: what it has learned.
        test: the examples.
        recipe: says how translations are searched for, and how many tokens are computed at a time.
        on_progress: called with the number of rows done, and the total.
    """

    model: Transformer
    objective: TextObjective
    test: Sequence[Example]
    recipe: Recipe
    on_progress: OnProgress

    def measured(self) -> dict[str, Any]:
        """The scores of what the model writes. Raises TrainingError as `of_answers`."""
        if self.test[0].source is None:
            return self.of_lines()
        return self.of_answers() if self.objective.tokens.of_decoder else self.of_translations()

    def of_lines(self) -> dict[str, Any]:
        """The perplexity of lines, as `zoo.running.perplexity.perplexity_data` returns it. Each
        line is predicted by itself, with its end, which counts as a token and a byte; lines longer
        than `max_length` are cut into pieces, as in training."""
        rows = self.objective.encode(self.test)
        n_bytes = sum(len(f"{example.target_text}\n".encode()) for example in self.test)
        return self._perplexity(rows, n_bytes)

    def of_answers(self) -> dict[str, Any]:
        """The perplexity of answers, given their prompts, in the same form. Each is predicted with
        its end, which counts as a token and a byte. Texts longer than `max_length` are left out.

        Raises:
            TrainingError: all are.
        """
        longest, end = self.objective.max_length, self.objective.tokens.end
        every = zip(self.test, self.objective.answers(self.test), strict=True)
        kept = [(example, row) for example, row in every if row.length <= longest]
        if not kept:
            raise self.objective.none_fits(self.recipe, "test example")
        answers = [answer.removesuffix(end) for example, _ in kept for answer in example.targets]
        n_bytes = sum(len(f"{answer}\n".encode()) for answer in answers)
        return self._perplexity([row for _, row in kept], n_bytes)

    def _perplexity(self, rows: Sequence[Row], n_bytes: int) -> dict[str, Any]:
        """The perplexity of what is predicted in these rows."""
        device = input_device(self.model)
        nats, done = 0.0, 0
        with torch.inference_mode(), evaluating(self.model):
            for places in self._batches(rows):
                batch = self.objective.collate([rows[place] for place in places], device)
                nats += float(summed_loss(self.model, batch, label_smoothing=0.0))
                done += len(places)
                self.on_progress(done, len(rows))
        return perplexity_data(nats, n_labels(rows), n_bytes)

    def of_translations(self) -> dict[str, Any]:
        """Translate the sources of pairs, and score the result: BLEU (Papineni et al. 2002) as
        sacreBLEU computes it (Post 2018, arXiv:1804.08771), in percent, with sacreBLEU's signature.
        Both sides are in Unicode's form NFC: a tokenizer may write a letter and its accent as one
        character where a reference has two."""
        metric = imported("sacrebleu").BLEU()
        translations = [_composed(text) for text in self._translated()]
        references = [_composed(example.target_text) for example in self.test]
        score = metric.corpus_score(translations, [references]).score
        signature = str(metric.get_signature())
        return {"bleu": score, "signature": signature, "pairs": len(self.test)}

    def _translated(self) -> list[str]:
        """Translate the sources by beam search, in batches of similar lengths. Sources longer than
        the training sequences are truncated."""
        evaluation, longest = self.recipe.evaluation, self.objective.max_length
        tokens = self.objective.tokens
        sources = tokens.encode_sources([example.source_text for example in self.test])
        rows = [Row(ids[:longest], ()) for ids in sources]
        method = Beam(
            size=evaluation.beam, length_penalty=evaluation.length_penalty, length_formula="gnmt"
        )
        translations: dict[int, str] = {}
        for places in self._batches(rows):
            found = generate(
                self.model,
                [rows[place].source or () for place in places],
                max_new_tokens=longest - 1,
                method=method,
                eos=tokens.eos,
                start=tokens.begin,
            )
            decoded = tokens.decode_targets([one.ids for one in found])
            translations.update(zip(places, decoded, strict=True))
            self.on_progress(len(translations), len(rows))
        return [translations[place] for place in range(len(rows))]

    def _batches(self, rows: Sequence[Row]) -> list[list[int]]:
        """The places of rows, in batches of similar lengths."""
        return batches(rows, tokens=self.recipe.evaluation.batch_tokens)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)

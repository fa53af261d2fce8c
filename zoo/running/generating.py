"""What models of texts, of images and of sounds have in common that generate text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Self, cast

from zoo.generation import Beam, Generated, Greedy, Sampling
from zoo.generation.ends import Ends
from zoo.generation.generate import generated, streamed
from zoo.generation.inputs import Given
from zoo.generation.methods import for_batch, with_others
from zoo.generation.request import Request, check_method
from zoo.running.asked import Asked
from zoo.running.settings import SETTINGS_OF_IDS, Settings
from zoo.running.stops import Stops
from zoo.running.text import Detokenizer, pieces
from zoo.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes text with a model.

    Args:
        model: the model.
        text: turns ids into text.
        request: what is asked of a generation.
        stops: the texts at which a text stops, if there are any.
    """

    model: Transformer
    text: Detokenizer
    request: Request
    stops: Stops | None

    @classmethod
    def read(cls, model: Transformer, text: Detokenizer, settings: Settings, asked: Asked) -> Self:
        """Read what is asked, and of what is left out the settings of the model's folder.

        Raises:
            InputError: what is asked does not fit the model, or contradicts itself.
            WeightsError: the settings do not fit it.
        """
        how = model.spec.model.generation
        assert how is not None  # the model has a task that generates
        eos: int | Sequence[int] | None = asked.eos
        start, method, stated = asked.start, asked.method, [*SETTINGS_OF_IDS]
        if eos is None:
            eos = settings.ends_within(how.target_vocab)
        if start is None and how.has_source:
            start = settings.decoder_start_token_id
            stated.append("decoder_start_token_id")
        settings.check(stated, how.target_vocab)
        if method is None:
            method = settings.method()
        else:
            check_method(method, (Greedy, Sampling, Beam))
            method = settings.completed(method)
        stops = Stops.read(asked.stop, text)
        with suppress(TypeError):  # a single id has no length
            if len(cast("Sequence[int]", asked.start)) > 1:
                # The target begins with more than its usual id, so nothing is missing after that.
                method = method.model_copy(update={"first_id": None})
        ends = Ends.read(asked.max_new_tokens, eos, stops or ())
        request = Request(method, ends, start, asked.draft, cuda_graph=asked.cuda_graph)
        return cls(model, text, request, stops)

    def results(self, given: Given, *, batch: int) -> list[dict[str, Any]]:
        """The results for one batch of inputs: that with this number, from 0."""
        request = replace(self.request, method=for_batch(self.request.method, batch))
        return list(map(self._result, generated(self.model, given, request)))

    def choosing(self, method: Greedy | Sampling | Beam) -> Self:
        """This one, with another method of choosing tokens."""
        return replace(self, request=replace(self.request, method=method))

    def pieces(self, given: Given) -> Iterator[str]:
        """The text for one input, in pieces as its tokens come."""
        eos = self.request.ends.eos
        steps = streamed(self.model, given, self.request)
        new = takewhile(lambda id_: id_ is not None and id_ not in eos, (id_ for (id_,) in steps))
        found = pieces(self.text, cast("Iterator[int]", new))
        return found if self.stops is None else self.stops.pieces_before(found)

    def blank(self) -> dict[str, Any]:
        """The result for a text of which there is nothing to write."""
        nothing = Generated(ids=(), score=0.0, ended="eos")
        return self._result(with_others([nothing] * self.request.method.n_answers))

    def shown(self, ids: Sequence[int]) -> str:
        """The text of ids, up to where it stops."""
        text = self.text.decode(ids)
        return text if self.stops is None else self.stops.before(text)

    def _result(self, found: Generated) -> dict[str, Any]:
        others = [self._result(one) for one in found.others]
        return {
            "text": self.shown(found.ids[:-1] if found.ended == "eos" else found.ids),
            "ids": list(found.ids),
            "score": found.score,
            "ended": found.ended,
            **({"others": others} if others else {}),
        }

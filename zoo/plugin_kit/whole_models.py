"""Call whole models, which builders make, and check their outputs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from zoo.component import fields_of
from zoo.generation import Generated, RecomputeWarning, generate
from zoo.generation.decoding import Decoding, encode
from zoo.generation.fixed_cache import FixedCache
from zoo.generation.prompts import Rows
from zoo.plugin_kit.assertions import (
    AS_ALONE,
    SAME,
    close,
    expect,
    expect_call,
    expect_positions,
    passes,
)
from zoo.plugin_kit.driver import Driver, Way
from zoo.plugin_kit.inputs import (
    BATCH,
    HIDDEN,
    LENGTH,
    LONG,
    MEMORY_LENGTH,
    Tensors,
    hiding,
    hiding_one,
    ids,
    later,
    pixels,
    vectors,
    with_another,
    without_hidden,
)
from zoo.plugin_kit.report import PromiseError, no_failure
from zoo.plugin_kit.tape import Tape
from zoo.purpose import Generation
from zoo.slots import Builder
from zoo.spec import ModelSpec
from zoo.transformer import AttentionMaps


class BuilderDriver(Driver):
    def __init__(self, spec: ModelSpec, model: Any, dtype: torch.dtype) -> None:
        super().__init__(spec, model, dtype)
        self.names = self.arguments
        # Here, since `torch.compile` traces the calls, and not the description.
        self.masks = self._masks()

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of `forward`."""
        return inspect.signature(self.model.forward).parameters

    @property
    def arguments(self) -> list[str]:
        """The required arguments of `forward` by place, such as `source` and `target`."""
        return [
            name
            for name, p in self.parameters.items()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]

    def _masks(self) -> dict[str, str]:
        """Return the names of the masks of the arguments: those named after them, and those that a
        `Reading` of the builder states."""
        described: Builder = self.spec.model
        of_ids = self.arguments[len(described.images) :]
        masks: dict[str, str] = {name: f"{name}_mask" for name in self.arguments}
        for name, read in zip(of_ids, described.called_with, strict=False):
            if masks[name] not in self.parameters:
                masks[name] = read.mask
        return {name: mask for name, mask in masks.items() if mask in self.parameters}

    def inputs(self, seed: int = 0) -> Tensors:
        by_id = any(name.endswith("vocab") for name in fields_of(type(self.spec.model)))
        images = self.spec.model.images
        found: list[torch.Tensor] = []
        for i, name in enumerate(self.arguments):
            length = MEMORY_LENGTH if i else LENGTH
            if name in images:
                found.append(pixels(self.dtype, seed + i, images[name]))
            elif by_id:
                found.append(ids(seed + i, length))
            else:
                found.append(vectors(self.dtype, seed + i, length))
        return tuple(found)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        return (self.model(*inputs),)

    def ways(self, inputs: Tensors) -> Mapping[str, Way]:
        ways = super().ways(inputs)
        return {**ways, " with masks": self._masked} if self.masks else ways

    def traced_ways(self, inputs: Tensors) -> Sequence[Way]:
        return list(self.ways(inputs).values())[-1:]

    def learning_ways(self, inputs: Tensors) -> Mapping[str, Way]:
        """A model whose texts may have images or sounds in them learns from such texts."""
        how = self.spec.model.generation
        found: dict[str, Way] = {}
        if how is not None and (images := how.inserted_images) is not None:
            given = pixels(torch.float64, 0, images.shape)
            found[" with images"] = self._inserting(given, images.image_id, images.n_states)
        if how is not None and (sounds := how.inserted_sounds) is not None:
            given = vectors(torch.float64, 0, *sounds.shape)
            found[" with sounds"] = self._inserting(given, sounds.sound_id, sounds.n_states)
        return found or super().learning_ways(inputs)

    def _inserting(self, media: torch.Tensor, inserted_id: int, n_states: int) -> Way:
        """The output for texts, at whose ends stands one of the media each."""

        def with_media(text: torch.Tensor) -> Tensors:
            places = torch.full((len(text), n_states), inserted_id)
            own = text.masked_fill(text == inserted_id, 0)
            return (self.model(torch.cat([own, places], 1), media),)

        return with_media

    def _masked(self, *inputs: torch.Tensor) -> Tensors:
        by_name = dict(zip(self.arguments, inputs, strict=True))
        masks = {mask: hiding_one(by_name[name]) for name, mask in self.masks.items()}
        output: torch.Tensor = self.model(*inputs, **masks)
        return (without_hidden(output) if self._by_token(output, self.arguments[-1]) else output,)

    def _by_token(self, output: torch.Tensor, name: str) -> bool:
        """Return whether there is an output for each token of the input of this name, and a mask
        of these."""
        return output.dim() == 3 and name == self.arguments[-1] and name in self.masks

    def rows(self) -> None:
        one, all_rows = (self(*(t[:n] for t in self.inputs()))[0] for n in (1, BATCH))
        if one.shape[1:] == all_rows.shape[1:]:  # else each row is compared with all others
            super().rows()

    def check(self, inputs: Tensors) -> None:
        masks = dict.fromkeys(self.masks.values())
        expect_call(self.model.forward, *inputs, **masks, return_attention=True)
        output = self(*inputs)[0]
        of_tensor = isinstance(output, torch.Tensor)
        if not (of_tensor or output is None):
            raise PromiseError(
                f"a model returns one tensor, not {type(output).__name__}",
                help="join what several heads compute, as by `torch.cat`",
            )
        expect("the output", output, BATCH, *[None] * (output.dim() - 1 if of_tensor else 2))
        returned: object = self.model(*inputs, return_attention=True)
        if not (
            isinstance(returned, tuple)
            and len(returned) == 2
            and isinstance(returned[1], AttentionMaps)
        ):
            raise PromiseError(
                "with `return_attention=True` the model returns its output and a "
                f"`zoo.transformer.AttentionMaps`, not {type(returned).__name__}"
            )
        again = returned[0]
        if not close(output, again, 1e-5):
            raise PromiseError("the output is another when `return_attention` is set")
        expect_positions(self.model, lambda: self(*inputs))
        self._check_vocabularies(inputs)

    def _check_vocabularies(self, inputs: Tensors) -> None:
        """Raises PromiseError unless the model can be called with the last id of each vocabulary
        that the description says it reads."""
        described: Builder = self.spec.model
        n_images = len(described.images)
        for number, read in enumerate(described.called_with, n_images):
            if number >= len(inputs) or inputs[number].is_floating_point():
                continue
            changed = list(inputs)
            changed[number] = inputs[number].clone()
            changed[number][:, 0] = read.vocab - 1
            name = self.arguments[number]
            help = (
                f"by the description, the ids of `{name}` are below {read.vocab}: that is the "
                "`vocab` of its `Reading`, or that of its `generation`"
            )
            with no_failure(f"a call with {read.vocab - 1} in `{name}`", help=help):
                self(*changed)

    def with_cache(self, *inputs: torch.Tensor) -> Tensors:
        how = self.spec.model.generation
        if how is not None and how.from_ids:
            self._generated(how, *_prompts())
        return ()

    def _generated(self, how: Generation, *prompts: list[int]) -> list[Generated]:
        """Return what the model adds to prompts, 3 tokens to each."""
        start = 1 if how.has_source else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecomputeWarning)
            return generate(self.model, prompts, max_new_tokens=3, start=start)

    def continues(self) -> None:
        how = self.spec.model.generation
        # Where tokens see later ones, a call with all of them gives other scores.
        if how is None or not how.from_ids or how.looks_ahead:
            return
        prompts = _prompts()
        help = (
            "a model whose builder states `generation` has the methods of "
            "zoo.transformer.Generating"
        )
        with no_failure("zoo.generate", help=help):
            found = self._generated(how, *prompts)
        for prompt, row in zip(prompts, found, strict=True):
            before = (torch.tensor([prompt]),) if how.has_source else ()
            start = [1] if how.has_source else prompt
            target = torch.tensor([[*start, *row.ids]])
            scores = self.model(*before, target)[0, len(start) - 1 : -1].log_softmax(-1)
            chosen = scores.gather(-1, target[0, len(start) :, None]).sum()
            if not close(torch.tensor(row.score, dtype=chosen.dtype), chosen, SAME):
                raise PromiseError(
                    "what `zoo.generate` scores is another than what a call with all tokens gives",
                    help="`decode` goes by its masks and its `cache`, as a call does by its masks; "
                    "a model whose tokens see later ones says so: `Generation(..., looks_ahead=)`",
                )
            n_tokens = target.shape[1]
            if not (how.not_incremental or how.not_recordable or how.changes(1, n_tokens)):
                self._check_recorded(before, target, len(start))

    def _check_recorded(self, source: Tensors, target: torch.Tensor, n_first: int) -> None:
        """Raises PromiseError unless the scores of the tokens after the first are those of a call
        with all tokens, where the steps for one token are recorded."""
        n_tokens = target.shape[1]
        with torch.no_grad():
            whole = self.model(*source, target)[0]
            memory = encode(self.model, Rows(source[0], None)) if source else None
            decoding = Decoding(self.model, capacity=n_tokens, memory=memory, keep=True)
            decoding.scores(target[:, :n_first])
            decoding.cache = FixedCache(decoding.cache, target.device)
            token = torch.empty_like(target[:, :1])
            recorded = Tape(lambda: decoding.scores(token))
            for at in range(n_first, n_tokens):
                token.copy_(target[:, at : at + 1])
                if not close(recorded()[0], whole[at], SAME):
                    raise PromiseError(
                        "the scores are others in a step that is recorded, for a CUDA graph",
                        help="pass on `mask=cache.past.mask` and the positions that "
                        "`cache.past.append` returns, or say `Generation(..., not_recordable=)`",
                    )

    def leaks(self) -> Iterator[str]:
        inputs = self.inputs()
        yield from self._leaks_of_later(inputs)
        for name, of in self.masks.items():
            number = self.arguments.index(name)
            changed = list(inputs)
            changed[number] = with_another(inputs[number], HIDDEN)
            mask = hiding_one(inputs[number])
            one, other = (self.model(*i, **{of: mask}) for i in (inputs, changed))
            if self._by_token(one, name):
                one, other = without_hidden(one), without_hidden(other)
            if not close(one, other, SAME):
                yield f"a token that `{of}` hides changes the output at others"
            else:
                yield from self._other_beside_padding(inputs, number, of)
            mask[:] = False
            if not bool(self.model(*inputs, **{of: mask}).isfinite().all()):
                yield f"a `{of}` that hides everything gives NaN"
        yield from self._masks_of_nothing()

    def _other_beside_padding(self, inputs: Tensors, number: int, of: str) -> Iterator[str]:
        """Whether the output is another if the input of that number ends with padding, which the
        mask `of` hides."""
        end = inputs[number].shape[1] - 1
        beside = self.model(*inputs, **{of: hiding(inputs[number], end)})
        shorter = (*inputs[:number], inputs[number][:, :end], *inputs[number + 1 :])
        alone = self.model(*shorter)
        if self._by_token(beside, self.arguments[number]):
            beside = beside[:, :end]
        if not close(beside, alone, SAME):
            yield (
                f"beside padding at the end, which `{of}` hides, the output is another than "
                f"without it\nhelp: {AS_ALONE}"
            )

    def _leaks_of_later(self, inputs: Tensors) -> Iterator[str]:
        """Whether the output at a token of a target, which is written one by one, is another when a
        later token is. What the description says sees later ones may."""
        how = self.spec.model.generation
        if "target" not in self.arguments or (how is not None and how.looks_ahead):
            return
        number = self.arguments.index("target")
        for target in (inputs[number], _repeated(inputs[number])):
            length = target.shape[1]

            def output(target: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = self.model(*inputs[:number], target, *inputs[number + 1 :])
                return found

            if length == LONG and not passes(partial(output, target)):
                continue
            one = output(target)
            if one.dim() != 3 or one.shape[1] != length:
                continue  # of the whole target
            for at in later(length):
                if not close(output(with_another(target, at))[:, :at], one[:, :at], SAME):
                    yield (
                        f"the position {at} of {length} in `target` changes the output at earlier "
                        "ones, which is to predict it: in training it would be copied\n"
                        "help: call the blocks with `LayerContext(causal=True)`; an input that is "
                        "read as a whole has another name, such as `source`; parts that see later "
                        "tokens in a causal stack are told by `Generation(..., looks_ahead=)`"
                    )
                    return

    def _masks_of_nothing(self) -> Iterator[str]:
        """The masks of which nothing says what input they are for."""
        untold = [
            f"`{of}`"
            for of in self.parameters
            if of.endswith("mask")
            and of not in self.masks.values()
            and of.removesuffix("mask").strip("_") not in self.parameters
        ]
        if untold:
            yield (
                f"nothing says which input {', '.join(untold)} is for: it is not tested\n"
                "help: name it after its input, such as `text_mask` for `text`, or state it as the "
                "`mask` of the input's `Reading` in `called_with`"
            )


def _repeated(x: torch.Tensor) -> torch.Tensor:
    """Return an input (batch, length, ...), one time after the other up to many tokens."""
    return torch.cat([x] * (LONG // x.shape[1] + 1), 1)[:, :LONG]


def _prompts() -> tuple[list[int], list[int]]:
    """Return two prompts of different lengths: the shorter one is padded."""
    one, other = ids(0).tolist()
    return one, other[:-2]

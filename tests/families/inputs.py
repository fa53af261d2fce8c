"""What the models are given."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

from families.cases import Case
from families.checkpoints import generator
from zoo.transformer import Spectrogram, TiledImage

LENGTH = 11  # longer than every window, chunk and original length in the cases
SHORT = 5  # shorter than every original length
TARGET_LENGTH = 7
N_SPECIAL = 5  # ids below are left to padding and other special tokens, as are those from
N_TOKENS = 80  # on; every vocabulary is larger


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A batch. Masks are boolean, True = a token.

    Args:
        name: what is special about it.
        source: ids (batch, length), or features or images (batch, ...) as transformers takes them.
        mask: (batch, length).
        states_mask: the mask of the states, (batch, number of states), where these are not as many.
        types: the type of each source token, (batch, length).
        global_tokens: which source tokens see all and are seen by all, boolean, (batch, length).
        target: ids for the decoder of an encoder-decoder, (batch, target length).
        target_mask: (batch, target length).
        images: what the texts are compared with, or what stands in them, (batch, channels, height,
            width); of any size, each (channels, height, width).
        sounds: what stands in the texts.
        memory: what a decoder alone attends to, (batch, memory length, width).
    """

    name: str
    source: Tensor
    mask: Tensor | None = None
    states_mask: Tensor | None = None
    types: Tensor | None = None
    global_tokens: Tensor | None = None
    target: Tensor | None = None
    target_mask: Tensor | None = None
    images: Tensor | tuple[Tensor, ...] | tuple[TiledImage, ...] | None = None
    sounds: tuple[Spectrogram, ...] | None = None
    memory: Tensor | None = None


def make_inputs(case: Case, config: PreTrainedConfig, takes: Collection[str]) -> Iterator[Inputs]:
    """Every input of a case.

    Args:
        case: the case.
        config: its config.
        takes: what the model of transformers can be given.
    """
    if case.rereads:
        yield from (reread(given, config) for given in local_inputs(case, config, takes))
        return
    if "global_attention_mask" not in takes:
        yield from local_inputs(case, config, takes)
        return
    for given in local_inputs(case, config, takes):
        yield given  # by default, some models make the first global
        nowhere = torch.zeros_like(given.source, dtype=torch.bool)
        yield replace(given, name=f"{given.name}, local", global_tokens=nowhere)
        if given.name in ("plain", "right"):
            some = nowhere.clone()
            some[:, 0] = some[0, 6] = True
            yield replace(given, name=f"{given.name}, global", global_tokens=some)


def local_inputs(case: Case, config: PreTrainedConfig, takes: Collection[str]) -> Iterator[Inputs]:
    """Every input of a case, without global tokens. Arguments are those of `make_inputs`."""
    random = generator("inputs")
    target = None
    if case.kind == "encoder_decoder":
        target = texts(random, TARGET_LENGTH)
        target[:, 0] = getattr(config, "decoder_start_token_id", N_SPECIAL - 1)
    if case.sound is not None:
        source = torch.randn(3, case.sound, generator=random)
        yield from sounds(case, Inputs(name="plain", source=source, target=target), config)
        return
    signal, images = case.features or case.image, None
    if case.image_sizes is not None:
        yield from sized(case, config, random)
        return
    if case.tiled_sizes is not None:
        yield from tiled(case, config, random)
        return
    if case.sound_frames is not None:
        yield from sounding(case, config, random)
        return
    if case.kind == "image_text_decoder" and signal is not None and case.image_states is not None:
        images = torch.randn(3, *signal, generator=generator("images"))
        image = torch.full((3, case.image_states), config.image_token_id)
        before, after = texts(random, LENGTH - 1), texts(random, LENGTH - 1)
        source = torch.cat([before, image, after], 1)
        types = None
        if case.bidirectional == "image":
            types = (source == config.image_token_id).long()
        elif case.bidirectional == "prompt":  # which ends after the image
            types = (torch.arange(source.shape[1]) >= LENGTH + case.image_states).long()
            types = types.expand(source.shape)
        plain = Inputs(name="plain", source=source, images=images, types=types)
        yield plain
        yield Inputs(name="text", source=before)
        for left in (False, True) if case.left else (False,):  # beside the images
            yield padded(plain, config, torch.tensor([0, 4, 9]), left=left)
        yield with_special_ids(plain, config)
        return
    if case.kind == "dual_encoder" and signal is not None:
        images = torch.randn(2, *signal, generator=generator("images"))
    elif signal is not None:
        source = torch.randn(3, *signal, generator=random)
        plain = Inputs(name="plain", source=source, target=target)
        yield plain
        if case.features is not None and case.kind == "encoder" and "attention_mask" in takes:
            n_states = len(source[0]) // case.frames_per_state
            states = n_states - torch.tensor([[0], [4], [9]]) // case.frames_per_state
            states_mask = torch.arange(n_states) < states
            mask = states_mask.repeat_interleave(case.frames_per_state, 1)
            yield replace(plain, name="right", mask=mask, states_mask=states_mask)
        return
    memory = None
    if case.memory is not None:
        memory = torch.randn(3, *case.memory, generator=generator("memory"))
    source = texts(random, LENGTH)
    plain = Inputs(name="plain", source=source, target=target, images=images, memory=memory)
    yield plain
    yield replace(plain, name="short", source=plain.source[:, :SHORT])
    right = padded(plain, config, torch.tensor([0, 4, 9]))
    yield right
    if case.kind == "decoder" and case.left:
        yield padded(plain, config, torch.tensor([0, 4, 9]), left=True)
    yield with_special_ids(plain, config)
    if "token_type_ids" in takes and getattr(config, "type_vocab_size", 0) > 1:
        types = torch.randint(config.type_vocab_size, plain.source.shape, generator=random)
        yield replace(right, name="types", types=types)


def tiled(case: Case, config: PreTrainedConfig, random: torch.Generator) -> Iterator[Inputs]:
    """Texts of one length, in each of which an image of another size stands, with its tiles, and
    texts alone."""
    assert case.tiled_sizes is not None
    assert case.tiled_states is not None
    side, grids = config.vision_config.image_size, config.image_grid_pinpoints
    numbers = generator("images")
    images = []
    for size in case.tiled_sizes:
        n_tiles = image_size_to_num_patches(size, grids, side)
        tiles = torch.randn(n_tiles, 3, side, side, generator=numbers)
        images.append(TiledImage(tiles, *size))
    source = texts(random, 2 * LENGTH + max(case.tiled_states))
    for row, n in enumerate(case.tiled_states):
        source[row, LENGTH : LENGTH + n] = config.image_token_id
    plain = Inputs(name="plain", source=source, images=tuple(images))
    yield plain
    yield Inputs(name="text", source=texts(random, LENGTH))
    for left in (False, True):  # beside the images
        yield padded(plain, config, torch.tensor([0, 4, 9]), left=left)


def sounding(case: Case, config: PreTrainedConfig, random: torch.Generator) -> Iterator[Inputs]:
    """Texts of one length, in each of which a sound of another length stands, and texts alone. What
    stands for silence is random too, so that one sees whether it is read."""
    assert case.sound_frames is not None
    assert case.sound_states is not None
    assert case.sound_window is not None
    numbers, bands = generator("sounds"), config.audio_config.num_mel_bins
    sounds = []
    for length in case.sound_frames:
        n_windows = -(-length // case.sound_window)
        windows = torch.randn(n_windows, case.sound_window, bands, generator=numbers)
        sounds.append(Spectrogram(windows, length))
    source = texts(random, 2 * LENGTH + max(case.sound_states))
    for row, n in enumerate(case.sound_states):
        source[row, LENGTH : LENGTH + n] = config.audio_token_id
    plain = Inputs(name="plain", source=source, sounds=tuple(sounds))
    yield plain
    yield Inputs(name="text", source=texts(random, LENGTH))
    for left in (False, True):  # beside the sounds
        yield padded(plain, config, torch.tensor([0, 4, 9]), left=left)


def sized(case: Case, config: PreTrainedConfig, random: torch.Generator) -> Iterator[Inputs]:
    """Texts of one length, in each of which an image of another size stands, and texts alone."""
    vision = config.vision_config
    names = ("spatial_merge_size", "pooling_kernel_size", "downsample_factor")
    merge = next((n for one in (config, vision) for k in names if (n := getattr(one, k, None))), 1)
    unit = vision.patch_size * merge
    assert case.image_sizes is not None
    sizes = [(height, width) for height, width in case.image_sizes]
    numbers = generator("images")
    images = tuple(torch.randn(3, *size, generator=numbers) for size in sizes)
    places = [places_of_states(height // unit, width // unit, case) for height, width in sizes]
    source = texts(random, 2 * LENGTH + max(map(len, places)))
    for row, there in enumerate(places):
        source[row, LENGTH : LENGTH + len(there)][there] = config.image_token_id
    plain = Inputs(name="plain", source=source, images=images)
    yield plain
    yield Inputs(name="text", source=texts(random, LENGTH))
    for left in (False, True) if case.left else (False,):  # beside the images
        yield padded(plain, config, torch.tensor([0, 4, 9]), left=left)


def places_of_states(rows: int, columns: int, case: Case) -> Tensor:
    """Which tokens of those of an image stand for its states, boolean."""
    places = torch.ones(rows, columns + case.image_rows, dtype=torch.bool)
    places[:, columns:] = False
    return places.flatten()


def sounds(case: Case, plain: Inputs, config: PreTrainedConfig) -> Iterator[Inputs]:
    """Waveforms as they are, and with padding."""
    yield plain
    n_samples = plain.source.shape[1]
    samples = torch.tensor([n_samples, n_samples * 2 // 3, n_samples // 2])
    mask = torch.arange(n_samples) < samples[:, None]
    if case.samples_per_state is None:
        lengths = samples
        for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
            lengths = (lengths - kernel) // stride + 1  # of a convolution without padding
        states_mask = torch.arange(int(lengths[0])) < lengths[:, None]
    else:
        states_mask = mask[:, :: case.samples_per_state]
        states_mask = states_mask[:, : n_samples // case.samples_per_state - 1]
    padded_source = plain.source.masked_fill(~mask, 0.0)
    yield replace(plain, name="right", source=padded_source, mask=mask, states_mask=states_mask)


def reread(given: Inputs, config: PreTrainedConfig) -> Inputs:
    """The same with texts that end with the last token, which the decoder reads with that token in
    front."""
    source, rows = given.source.clone(), torch.arange(len(given.source))
    mask = torch.ones_like(source, dtype=torch.bool) if given.mask is None else given.mask
    source[rows, mask.sum(1) - 1] = config.eos_token_id
    target = torch.cat([torch.full((len(source), 1), config.eos_token_id), source[:, :-1]], 1)
    return replace(given, source=source, target=target, target_mask=given.mask)


def texts(random: torch.Generator, length: int) -> Tensor:
    """Ids of ordinary tokens, (3, length)."""
    return torch.randint(N_SPECIAL, N_TOKENS, (3, length), generator=random)


def pad_id(config: PreTrainedConfig) -> int:
    """The id that pads."""
    stated: int | None = getattr(config, "pad_token_id", None)  # some configs have no such field
    return 1 if stated is None else stated


def padded(
    plain: Inputs, config: PreTrainedConfig, counts: Tensor, *, left: bool = False
) -> Inputs:
    """The same with so many tokens of each text replaced with padding, source and target."""
    source, mask = pad(plain.source, config, counts, left)
    if plain.target is None:
        return replace(plain, name="left" if left else "right", source=source, mask=mask)
    target, target_mask = pad(plain.target, config, counts // 2, left)
    return replace(
        plain, name="right", source=source, mask=mask, target=target, target_mask=target_mask
    )


def pad(ids: Tensor, config: PreTrainedConfig, counts: Tensor, left: bool) -> tuple[Tensor, Tensor]:
    """The padded ids, and their mask."""
    at = torch.arange(ids.shape[1])
    mask = at >= counts[:, None] if left else at < ids.shape[1] - counts[:, None]
    return torch.where(mask, ids, pad_id(config)), mask


def with_special_ids(plain: Inputs, config: PreTrainedConfig) -> Inputs:
    """The same with ids of padding and of masked tokens inside the texts, which the mask says to
    be texts all the same."""
    source = plain.source.clone()
    source[1, 3] = source[2, 6] = pad_id(config)
    if getattr(config, "mask_token_id", None) is not None:
        source[0, 3] = source[1, 1] = config.mask_token_id
    target, target_mask = plain.target, None
    if target is not None:
        target = target.clone()
        target[1, 3] = pad_id(config)
        target_mask = torch.ones_like(target, dtype=torch.bool)
    mask = torch.ones_like(source, dtype=torch.bool)
    return replace(
        plain,
        name="special ids",
        source=source,
        mask=mask,
        target=target,
        target_mask=target_mask,
    )

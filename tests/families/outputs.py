"""What transformers and the zoo make of the same inputs, under the same names."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from families.cases import Case
from families.inputs import Inputs
from zoo.transformer import Spectrogram, TiledImage

Outputs = dict[str, Tensor]
"""By name: `output`, what the head makes (the last states if there is none), `encoder`, the states
of an encoder under a decoder, or under a head that makes one vector of them, `pooler` and `nsp`. Of
what there is for each token, only tokens that are not padding are left, one after the other."""

THEIR_NAMES = {
    "logits": "output",
    "prediction_logits": "output",
    "last_hidden_state": "output",
    "encoder_last_hidden_state": "encoder",
    "pooler_output": "pooler",
    "seq_relationship_logits": "nsp",
    "sop_logits": "nsp",
    "relevance_logits": "pooler",
    "text_embeds": "output",
    "image_embeds": "output",
}


DUAL_NAMES = {"logits_per_image": "output", "text_embeds": "text", "image_embeds": "image"}
"""The same for two encoders whose vectors are compared."""


def taken(model: PreTrainedModel) -> Collection[str]:
    """The names of what the model of transformers can be given."""
    return inspect.signature(model.forward).parameters.keys()


@torch.no_grad()
def their_outputs(model: PreTrainedModel, case: Case, inputs: Inputs) -> Outputs:
    """What the model of transformers puts out. A text of a model that takes no mask is given to it
    alone, without its padding."""
    if inputs.mask is not None and "attention_mask" not in taken(model):
        alone = [their_outputs(model, case, row) for row in without_others(inputs)]
        return {name: torch.cat([one[name].flatten(0, -2) for one in alone]) for name in alone[0]}
    source = model.main_input_name
    memories = ("encoder_hidden_states", "encoder_outputs")  # decoders have one or the other
    memory = next((name for name in memories if name in taken(model)), memories[0])
    images, of_any_size = inputs.images, {}
    if isinstance(images, tuple):
        if case.tiled_sizes is not None:
            of_any_size = tiled_images(images)
        elif "image_sizes" in taken(model):
            of_any_size = padded_images(images)
        elif "image_position_ids" in taken(model):
            of_any_size = padded_patches(images, model.config.vision_config.patch_size)
            of_any_size["mm_token_type_ids"] = (inputs.source == model.config.image_token_id).long()
        elif "spatial_shapes" in taken(model):
            of_any_size = masked_patches(images, model.config.vision_config.patch_size)
        else:
            of_any_size = images_of_any_size(images, model.config)
            of_any_size["mm_token_type_ids"] = (inputs.source == model.config.image_token_id).long()
        images = None
    elif case.images_of_texts and images is not None:
        images = images[:, None]
    if inputs.sounds is not None:
        of_any_size = windows_of_sounds(inputs.sounds, taken(model))
    target, target_mask = "decoder_input_ids", "decoder_attention_mask"
    if case.kind == "encoder_decoder" and target not in taken(model):
        target, target_mask = "input_ids", "attention_mask"  # beside an image
    arguments = {
        "attention_mask": as_numbers(inputs.mask),
        "token_type_ids": inputs.types,
        "global_attention_mask": as_numbers(inputs.global_tokens),
        "pixel_values": images,
        memory: inputs.memory,
        target: None if case.rereads else inputs.target,
        target_mask: None if case.rereads else as_numbers(inputs.target_mask),
        **of_any_size,
    }
    if "noise" in taken(model):  # by which patches are sorted before the last are hidden, if any
        n_patches = (model.config.image_size // model.config.patch_size) ** 2
        arguments["noise"] = torch.arange(n_patches).expand(len(inputs.source), -1)
    given = {name: value for name, value in arguments.items() if value is not None}
    output = model(**{source: inputs.source}, **given)
    if "start_logits" in output:
        output["logits"] = torch.stack([output["start_logits"], output["end_logits"]], -1)
    if not output.keys() & THEIR_NAMES.keys():  # of the pretraining, whose heads no family reads
        output = model.base_model(**{source: inputs.source}, **given)
    embeds = "text_embeds" in output or "image_embeds" in output
    names = THEIR_NAMES | ({"last_hidden_state": "encoder"} if embeds else {})
    if "logits" in output:  # which are made of such vectors, if there are any
        names = {theirs: ours for theirs, ours in names.items() if "embeds" not in theirs}
    if case.kind == "dual_encoder":
        names = DUAL_NAMES
    elif output.keys() & names.keys() == {"pooler_output"}:
        names = {"pooler_output": "output"}  # a vector of each text is all that there is
    return {
        ours: without_padding(output[theirs], ours, inputs)
        for theirs, ours in names.items()
        if output.get(theirs) is not None
    }


def without_others(inputs: Inputs) -> Iterator[Inputs]:
    """Each text of a batch of an encoder alone, without its padding."""
    assert inputs.mask is not None
    for row, seen in enumerate(inputs.mask):
        own = (slice(row, row + 1), seen)
        types = None if inputs.types is None else inputs.types[own]
        yield replace(inputs, source=inputs.source[own], mask=None, types=types)


def images_of_any_size(images: Iterable[Tensor], config: PreTrainedConfig) -> Outputs:
    """Images as the image processor of transformers gives them: the values of all patches, in
    squares of those that become one state, and the numbers of patches of each image."""
    vision, patches, grids = config.vision_config, [], []
    side, merge = vision.patch_size, vision.spatial_merge_size
    for image in images:
        rows, columns = (size // side for size in image.shape[1:])
        grids.append([1, rows, columns])
        squares = [
            (row + i, column + j)
            for row in range(0, rows, merge)
            for column in range(0, columns, merge)
            for i in range(merge)
            for j in range(merge)
        ]
        for row, column in squares:
            patch = image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
            patches.append(torch.stack([patch] * vision.temporal_patch_size, 1).flatten())
    return {"pixel_values": torch.stack(patches), "image_grid_thw": torch.tensor(grids)}


def padded_images(images: Iterable[Tensor]) -> Outputs:
    """Images as the image processor of Pixtral gives them: with zeros below and on the right, and
    their heights and widths."""
    found = list(images)
    sizes = torch.tensor([image.shape[1:] for image in found])
    pixels = torch.zeros(len(found), 3, *sizes.amax(0).tolist())
    for place, image in zip(pixels, found, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return {"pixel_values": pixels, "image_sizes": sizes}


def cells_of(image: Tensor, side: int) -> tuple[list[tuple[int, int]], Tensor]:
    """The rows and columns of the patches of an image, row by row, and the values of each, pixel by
    pixel."""
    rows, columns = (size // side for size in image.shape[1:])
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    patches = [image[:, r * side : (r + 1) * side, c * side : (c + 1) * side] for r, c in cells]
    return cells, torch.stack([one.movedim(0, -1).flatten() for one in patches])


def masked_patches(images: Iterable[Tensor], side: int) -> Outputs:
    """Images as the image processor of LFM2-VL gives them: their patches, with zeros behind them, a
    mask, and the numbers of rows and of columns."""
    each = [cells_of(image, side) for image in images]
    pad = nn.utils.rnn.pad_sequence
    masks = [torch.ones(len(cells), dtype=torch.int32) for cells, _ in each]
    return {
        "pixel_values": pad([patches for _, patches in each], batch_first=True),
        "pixel_attention_mask": pad(masks, batch_first=True),
        "spatial_shapes": torch.tensor([cells[-1] for cells, _ in each]) + 1,
    }


def padded_patches(images: Iterable[Tensor], side: int) -> Outputs:
    """Images as the image processor of Gemma 4 gives them: their patches, row by row, with the
    columns and the rows of these, and behind them zeros at -1."""
    patches, places = [], []
    for image in images:
        cells, of_image = cells_of(image, side)
        patches.append(of_image)
        places.append(torch.tensor([(column, row) for row, column in cells]))
    pad = nn.utils.rnn.pad_sequence
    return {
        "pixel_values": pad(patches, batch_first=True),
        "image_position_ids": pad(places, batch_first=True, padding_value=-1),
    }


def tiled_images(images: Iterable[TiledImage]) -> Outputs:
    """Images as the image processor of LLaVA-NeXT gives them: all with as many tiles, of which the
    last may be zeros, and their heights and widths."""
    found = list(images)
    pixels = nn.utils.rnn.pad_sequence([image.tiles for image in found], batch_first=True)
    sizes = torch.tensor([[image.height, image.width] for image in found])
    return {"pixel_values": pixels, "image_sizes": sizes}


def windows_of_sounds(sounds: Iterable[Spectrogram], takes: Collection[str]) -> Outputs:
    """The windows of sounds as the feature extractor of Whisper gives them, and which of their
    frames are those of the sounds."""
    found = list(sounds)
    each = [
        torch.arange(one.windows[..., 0].numel()).view(one.windows.shape[:2]) < one.length
        for one in found
    ]
    given = {"input_features": torch.cat([one.windows for one in found]).transpose(1, 2)}
    masks = ("feature_attention_mask", "input_features_mask")
    return given | {name: torch.cat(each).long() for name in masks if name in takes}


def as_numbers(mask: Tensor | None) -> Tensor | None:
    """A mask as transformers takes it."""
    return None if mask is None else mask.long()


def our_outputs(model: nn.Module, case: Case, inputs: Inputs, names: Iterable[str]) -> Outputs:
    """Those of these names that the model of the zoo puts out."""
    source = inputs.source.transpose(1, 2) if case.channels_first else inputs.source
    mask = inputs.mask if inputs.states_mask is None else inputs.states_mask
    if case.sound:
        source = source[..., None]
    found: Outputs = {}
    more = {} if inputs.global_tokens is None else {"global_tokens": inputs.global_tokens}
    if case.kind == "dual_encoder":
        found["output"] = model(inputs.images, source, text_mask=inputs.mask)
        found["text"] = model.encode_text(source, text_mask=inputs.mask)
        found["image"] = model.encode_image(inputs.images)
        return found
    if case.kind == "image_text_decoder":
        if case.bidirectional == "prompt" and inputs.types is not None:
            more["prompt"] = inputs.types == 0
        found["output"] = model(source, inputs.images, target_mask=inputs.mask, **more)
    elif case.kind == "sound_text_decoder":
        found["output"] = model(source, inputs.sounds, target_mask=inputs.mask)
    elif case.kind == "decoder":
        found["output"] = model(source, inputs.memory, target_mask=inputs.mask)
    elif case.kind == "encoder_decoder":
        found["output"] = model(
            source,
            inputs.target,
            source_mask=mask,
            target_mask=inputs.target_mask,
            **more,
        )
    else:
        found["output"] = model(source, source_mask=mask, token_types=inputs.types, **more)
    wanted = set(names) - {"output"}
    if wanted:
        states = model.encode(source, source_mask=mask, token_types=inputs.types, **more)
        if "encoder" in wanted:
            found["encoder"] = states
        if wanted & {"pooler", "nsp"}:
            # DINOv2 calls the first state the vector of the image, and has no pooler.
            pooler = model.pooler
            ids = {"ids": source} if model.spec.model.pooler.takes_ids else {}
            found["pooler"] = pooler(states, mask=inputs.mask, **ids) if pooler else states[:, 0]
        if "nsp" in wanted:
            found["nsp"] = model.nsp(found["pooler"])
    return {name: without_padding(found[name], name, inputs) for name in names}


def without_padding(values: Tensor, name: str, inputs: Inputs) -> Tensor:
    """The values of the tokens that are not padding, if there is one for each token."""
    of_target = inputs.target is not None and name == "output"
    of_source = inputs.mask if inputs.states_mask is None else inputs.states_mask
    mask = inputs.target_mask if of_target else of_source
    by_token = mask is not None and values.shape[:2] == mask.shape
    return values[mask] if by_token else values

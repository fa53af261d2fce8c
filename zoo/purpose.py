"""What a model is for: the facts that its builder states for running, training and generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

Task = Literal[
    "translate", "generate", "caption", "embed", "fill_mask", "classify", "answer", "transcribe"
]
"""The task that `zoo run` performs with a model."""


class AnySize(NamedTuple):
    """How images of any size are cut.

    Args:
        patch_size: the side of a patch, in pixels.
        merge: the side of the squares of patches that become one state, in patches.
        frames: how many frames of a film a patch covers; an image is repeated for all of them.
        most_patches: the most patches in a row and in a column; None for no limit.
    """

    patch_size: int
    merge: int
    frames: int
    most_patches: int | None = None

    @property
    def unit(self) -> int:
        """The side, in pixels, of what becomes one state: sides of images are multiples of it."""
        return self.patch_size * self.merge

    @property
    def longest(self) -> int | None:
        """The longest side of an image, in pixels; None for no limit."""
        return None if self.most_patches is None else self.most_patches * self.patch_size

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The numbers of rows and of columns of the states of an image of this size."""
        return height // self.unit, width // self.unit


class Tiling(NamedTuple):
    """How an image is cut that is read twice: as a whole, resized to one tile, and resized to a
    grid of tiles (LLaVA-NeXT). It is centred in the grid, and the states of the margins are left
    out. All numbers are those of `transformers`, with their roundings.

    Args:
        grids: the possible grids, each the numbers of its rows and columns of tiles.
        tile: the side of a tile, in pixels.
        side: the number of rows and of columns of the states of a tile.
        most: the most states of a grid that stand in a text, counted in tiles, each of `side`
            squared; more are shrunk to these. None for no limit.
    """

    grids: tuple[tuple[int, int], ...]
    tile: int
    side: int
    most: int | None = None

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The grid that shows an image of this size with the most of its pixels; of several such
        grids, the smallest."""

        def shown(grid: tuple[int, int]) -> tuple[int, int]:
            high, wide = grid[0] * self.tile, grid[1] * self.tile
            scale = min(wide / width, high / height)
            seen = min(int(width * scale) * int(height * scale), width * height)
            return seen, seen - high * wide

        return max(self.grids, key=shown)

    def kept(self, height: int, width: int) -> tuple[slice, slice]:
        """The rows and the columns, among the states of all tiles of the grid, that show the image
        itself and not the margins."""
        rows, columns = (n * self.side for n in self.grid(height, width))
        if width / height > columns / rows:
            cut = (rows - int(round(height * (columns / width), 7))) // 2
            return slice(cut, rows - cut), slice(columns)
        cut = (columns - int(round(width * (rows / height), 7))) // 2
        return slice(rows), slice(cut, columns - cut)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """The numbers of rows and of columns of the states of `kept`, after shrinking to `most`."""
        rows, columns = (len(range(*one.indices(one.stop))) for one in self.kept(height, width))
        if self.most is None:
            return rows, columns
        ratio = math.sqrt(rows * columns / (self.most * self.side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)

    def states_of(self, height: int, width: int, n_tiles: int) -> int:
        """The number of states that stand in a text for an image of this size. With all of its
        `n_tiles`, these are the states of the whole and those of the grid, each row of which ends
        with one more; with the whole as its only tile, the states of that and one more."""
        if n_tiles == 1:
            return self.side**2 + 1
        rows, columns = self.shape(height, width)
        return self.side**2 + rows * (columns + 1)


class InsertedImages(NamedTuple):
    """The images that may stand in a text.

    Args:
        image_id: the id of the token at whose places their states stand.
        shape: the (channels, height, width) of an image; for images of any size, that of an example
            with two states.
        n_states: the number of states of an image of this shape, and so of its places in the text.
        any_size: how images of any size are cut; None if all are of one size.
        tiling: how images are cut into the tiles of a `zoo.transformer.TiledImage`; None if all
            are read as a whole only.
    """

    image_id: int
    shape: tuple[int, int, int]
    n_states: int
    any_size: AnySize | None = None
    tiling: Tiling | None = None

    def states_of(self, height: int, width: int) -> int:
        """The number of states of an image of this size that fits the model."""
        return sum(self.rows_of(height, width))

    def rows_of(self, height: int, width: int) -> list[int]:
        """The number of states in each row of an image of this size; those of images of one size
        count as a single row."""
        if self.any_size is None:
            return [self.n_states]
        rows, columns = self.any_size.grid(height, width)
        return [columns] * rows


Silence = Literal["hidden", "left_out", "inserted"]
"""What becomes of the silence that fills up the last window of a sound in a text: `hidden` from the
stack that reads sounds; read, but its states are `left_out` of the text; or read, and its states
`inserted` into the text too."""


class InsertedSounds(NamedTuple):
    """The sounds that may stand in a text.

    Args:
        sound_id: the id of the token at whose places their states stand.
        shape: the (frames, bands) of the spectrogram of an example, a short sound.
        n_states: the number of states of this example, and so of its places in the text.
        longest: the most frames of a window; None for no limit.
        silence: what becomes of silence in the last window.
        states_of_frames: the number of states that so many frames of a window become.
    """

    sound_id: int
    shape: tuple[int, int]
    n_states: int
    longest: int | None
    silence: Silence
    states_of_frames: Callable[[int], int]

    def states_of(self, n_windows: int, frames: int, length: int) -> int:
        """The number of states of a sound that stand in the text.

        Args:
            n_windows: the number of its windows.
            frames: the number of frames of each window.
            length: the number of frames of the sound itself, without the silence after it.
        """
        of_window = self.states_of_frames(frames)
        if self.silence == "inserted":
            return n_windows * of_window
        n_full = n_windows - 1
        return n_full * of_window + self.states_of_frames(length - n_full * frames)


class Generation(NamedTuple):
    """What `zoo.generate` needs to know about a model that generates.

    Args:
        target_vocab: generated ids are below this.
        source_vocab: source ids are below this; None for a source of vectors or images.
        source_width: the width of source vectors; None for other sources, and for any width.
        image_shape: the (channels, height, width) of source images; None for other sources.
        has_source: whether there is an encoder.
        memory_width: the width of the memory that the caller passes for cross-attention; None if
            there is none.
        pad_id: the padding id of the target, which the model masks itself.
        source_pad_id: the same for the source.
        longest: the most target tokens that the positions allow; None for no limit.
        longest_source: the same for the source.
        not_incremental: the parts that require recomputing all earlier tokens for each new one.
        not_recordable: the parts with which a step of generation cannot be recorded as a CUDA
            graph.
        inserted_images: the images that may stand in the prompts of a model without an encoder; its
            module is a `zoo.transformer.InsertingImages`. None if none may.
        inserted_sounds: the same for sounds, and `zoo.transformer.InsertingSounds`.
        bidirectional_prompt: whether the tokens of a prompt attend to later ones in it: `decode`
            then takes `prompt` too, boolean, (batch, length).
        looks_ahead: the parts through which a target position sees later ones.
        changes: `changes(before, after)` is `Position.changes` of the target's positions.
    """

    target_vocab: int
    source_vocab: int | None = None
    source_width: int | None = None
    image_shape: tuple[int, int, int] | None = None
    has_source: bool = False
    memory_width: int | None = None
    pad_id: int | None = None
    source_pad_id: int | None = None
    longest: int | None = None
    longest_source: int | None = None
    not_incremental: tuple[str, ...] = ()
    not_recordable: tuple[str, ...] = ("the builder",)
    inserted_images: InsertedImages | None = None
    inserted_sounds: InsertedSounds | None = None
    bidirectional_prompt: bool = False
    looks_ahead: tuple[str, ...] = ()
    changes: Callable[[int, int], bool] = lambda before, after: False

    @property
    def needs_memory(self) -> bool:
        """Whether the caller passes the memory for cross-attention."""
        return self.memory_width is not None

    @property
    def from_ids(self) -> bool:
        """Whether it generates from ids alone: not from vectors or images, and without a
        memory."""
        return not self.needs_memory and (self.source_vocab is not None or not self.has_source)


class Reading(NamedTuple):
    """One input of a model: the ids of tokens.

    Args:
        vocab: ids are below this.
        longest: the most tokens that the positions allow; None for no limit.
        pad_id: the padding id, which the model masks itself.
        mask: the argument of a call that says which tokens are not padding, (batch, length).
        token_types: the number of types of tokens, such as those of the first and the second text
            of a pair, that the argument `token_types` of a call tells apart, (batch, length); 0 if
            there is no such argument.
    """

    vocab: int
    longest: int | None = None
    pad_id: int | None = None
    mask: Literal["source_mask", "target_mask"] = "source_mask"
    token_types: int = 0


class Comparison(NamedTuple):
    """How a model that compares images with texts is used.

    Args:
        probability: what makes probabilities of an image's scores: `softmax`, if exactly one of
            the texts is right, or `sigmoid`, if each is judged by itself.
        pads: whether texts are padded to all positions, because the padding is read.
    """

    probability: Literal["softmax", "sigmoid"] = "softmax"
    pads: bool = False


class Transcription(NamedTuple):
    """How a text is read off a model that scores the tokens for each position of a sound, (batch,
    length, vocab).

    Args:
        vocab: ids are below this.
        blank: the id that stands for no token, and separates two that are the same.
    """

    vocab: int
    blank: int


class Classes(NamedTuple):
    """The classes of which a model scores each for a text or an image, or for each token.

    Args:
        number: how many there are.
        labels: their names by number; None if the spec does not state them.
        each_token: whether each token has scores of its own, (batch, length, classes).
        problem_type: `multi_label_classification` if any number of classes may be right,
            `regression` if a score is itself what is asked for; None if the spec does not state it,
            and then one class is right.
    """

    number: int
    labels: tuple[str, ...] | None = None
    each_token: bool = False
    problem_type: str | None = None

"""The places in texts of what is no text, such as images and sounds."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.wording import counted


def media_of_texts(
    n_places: Sequence[int], n_states: Sequence[int], inserted_id: int, medium: str
) -> tuple[int, ...]:
    """Return how many of the images or sounds stand in each text, whose places they fill in their
    order.

    Args:
        n_places: the number of places of `inserted_id` in each text.
        n_states: the number of states of each image or sound.
        inserted_id: the id of the token at whose places they stand.
        medium: what they are, for messages: `image` or `sound`.

    Raises:
        ValueError: the places of a text are not those of a whole number of them, or all of them not
            those of all.
    """
    found, first = [], 0
    for row, n in enumerate(n_places):
        last, left = first, n
        while left > 0 and last < len(n_states):
            left -= n_states[last]
            last += 1
        if left:
            where = f"sequence {row} has" if len(n_places) > 1 else "there are"
            these = ", ".join(map(str, n_states[first:last])) or "none"
            raise ValueError(
                f"{where} {counted(n, 'place')} of the token {inserted_id}, and each {medium} "
                f"takes one for each of its states, of which the next {medium}s have {these}"
            )
        found.append(last - first)
        first = last
    if first != len(n_states):
        raise ValueError(
            f"there are {sum(n_places)} places of the token {inserted_id}, which are for "
            f"{counted(first, medium)}, and {counted(len(n_states), medium)} given, of "
            f"{counted(sum(n_states), 'state')} together"
        )
    return tuple(found)

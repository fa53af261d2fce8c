"""The temperature of queries by their positions, which attention of several kinds has."""

from typing import TYPE_CHECKING

from zoo.only_with import stated

if TYPE_CHECKING:
    from zoo_components.attention import MultiHead
    from zoo_components.latent import Latent
    from zoo_components.modules.heads import Temperature


def temperature_of(attention: "MultiHead | Latent") -> "Temperature | None":
    """The temperature that a description states; None if it states none."""
    from zoo_components.modules.heads import Temperature

    form = attention.q_temperature
    if form is None or form == "none":
        return None
    return Temperature(
        form=form,
        scale=stated(attention.q_temperature_scale),
        floor=stated(attention.q_temperature_floor),
        shift=stated(attention.q_temperature_shift),
    )

"""The temperature of queries by their positions, which attention of several kinds has."""

from typing import TYPE_CHECKING, Literal, Protocol

from zoo.only_with import stated

if TYPE_CHECKING:
    from zoo_components.modules.heads import Temperature


class Tempered(Protocol):
    """A description of attention whose queries may have one."""

    @property
    def q_temperature(self) -> Literal["none", "log", "power"] | None: ...

    @property
    def q_temperature_scale(self) -> float | None: ...

    @property
    def q_temperature_floor(self) -> float | None: ...

    @property
    def q_temperature_shift(self) -> int | None: ...


def temperature_of(attention: Tempered) -> "Temperature | None":
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

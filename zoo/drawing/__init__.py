"""A model as a picture, as papers draw Transformers. Imports no torch.

spec -> parts -> Figure -> page, columns, boxes -> shapes -> SVG text
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.spec import ModelSpec


def to_svg(spec: ModelSpec) -> str:
    """The architecture of a spec as SVG text: the same spec, the same bytes."""
    from zoo.drawing.page import draw
    from zoo.drawing.parts import figure_of

    return draw(figure_of(spec))


def to_html(spec: ModelSpec) -> str:
    """What a notebook shows of a model: the picture, and the sizes that `zoo show` prints."""
    from zoo.showing.show import summary_data, summary_text

    summary = escape(summary_text(summary_data(spec)))
    return f"<div>{to_svg(spec)}<pre>{summary}</pre></div>"

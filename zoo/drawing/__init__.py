"""Draw the architecture of a model in the style of papers. Does not import torch.

spec -> stacks -> Figure -> page, columns, boxes -> shapes -> SVG text
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.spec import ModelSpec


def to_svg(spec: ModelSpec) -> str:
    """Draw the architecture of a spec as SVG text; the same spec always gives the same bytes."""
    from zoo.drawing.page import draw
    from zoo.drawing.stacks import figure_of

    return draw(figure_of(spec))


def to_html(spec: ModelSpec) -> str:
    """Return the HTML for notebooks: the drawing, and the sizes that `zoo show` prints."""
    from zoo.showing.show import summary_data, summary_text

    summary = escape(summary_text(summary_data(spec)))
    return f"<div>{to_svg(spec)}<pre>{summary}</pre></div>"

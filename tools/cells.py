"""The cells of a reference page's tables."""


def cell(text: str) -> str:
    """A docstring on one line, with no sign that would end the cell."""
    return " ".join(text.split()).replace("|", r"\|")

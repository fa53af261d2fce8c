"""Numbers of bytes, as people read them."""

from __future__ import annotations


def human_bytes(count: int) -> str:
    """A number of bytes with a decimal unit: 252.2 MB."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:  # what is more would be shown as 1000.0
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} TB"

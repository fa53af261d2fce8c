"""What the origin of a model says, which is plain data in the header of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def published_config(origin: Mapping[str, Any] | None) -> str | None:
    """The text of the config.json that a model of this origin was imported with, if there was
    one."""
    config = (origin or {}).get("config")
    return config if isinstance(config, str) else None

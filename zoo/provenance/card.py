"""The model card of a bundle: a README.md that begins with the metadata block that hubs read."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import Place, ZooError
from zoo.files.endless import check_ends
from zoo.provenance.licenses import license_problem
from zoo.provenance.lock import Lock
from zoo.spec import ModelSpec
from zoo.wording import quoted

CARD_NAME = "README.md"

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
_STATED = re.compile(r"^license: *[\"']?([^\"'#\n]*?)[\"']? *(#.*)?$", re.MULTILINE)
_METADATA = re.compile(r"---\n.*?\n---(\n|\Z)", re.DOTALL)
_MOST = 10_000_000
_UNKNOWN = "unknown"
_CARD = """\
---
{metadata}---

# {name}

A Transformer of the zoo: {parameters:,} parameters, built from `spec.toml`.

```python
import zoo

model = zoo.load("PATH")   # this folder; every tensor is checked
```
{needs}
| | |
|---|---|
| spec | `{spec}` |
| weights | `{content}` |
| licence | {license} |
| source | {source} |

`zoo bundle verify PATH` checks every file against `zoo.lock`.
"""


class LicenseWarning(UserWarning):
    """Weights are published with another licence than that of the model card beside them."""


@dataclass(frozen=True, slots=True)
class CardFields:
    """The statements of a publisher about a model.

    Args:
        license: the licence of the weights, as hubs spell it (`apache-2.0`), or an expression of
            SPDX (`MIT OR Apache-2.0`).
        tags: words to search for.
    """

    license: str = _UNKNOWN
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not _TAG.fullmatch(tag):
                help_ = "letters, digits, `.`, `+` and `-`: `text-generation`"
                raise ZooError(f"{quoted(tag)} is no tag", help=help_)
        if self.license != _UNKNOWN and (problem := license_problem(self.license)):
            raise ZooError(problem)


def card_text(spec: ModelSpec, lock: Lock, fields: CardFields) -> str:
    """Return the text of the card of a bundle."""
    metadata = {
        "license": fields.license,
        "library_name": "zoo",
        "tags": ["zoo", "transformer", *fields.tags],
    }
    source = lock.source
    return _CARD.format(
        metadata=_yaml(metadata),
        name=spec.name,
        parameters=spec.n_parameters,
        spec=spec.digest,
        content=lock.content,
        needs=_needs(lock.plugins),
        license=fields.license,
        source=f"`{source.name}` at `{source.revision}`" if source else "not stated",
    )


def _needs(plugins: Mapping[str, str]) -> str:
    """Return a paragraph with the components that do not ship with the zoo, which a bundle does not
    hold."""
    own = [
        f"- `{name}`, " + (f"a file with the SHA-256 `{digest}`" if digest else f"of `{origin}`")
        for name, origin in plugins.items()
        if not origin.startswith("zoo ")
        for digest in (origin.partition("sha256:")[2],)
    ]
    if not own:
        return ""
    told = "It needs components that do not ship with the zoo. A `registry.toml` of yours names"
    return "\n".join(["", f"{told} them:", "", *own, ""])


def read_card(path: Path) -> str:
    """Return the text of an existing card.

    Raises:
        ZooError: it cannot be read, is too long, or does not begin with the metadata block.
    """
    try:
        check_ends(path)
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ZooError(f"the card cannot be read: {error}", Place(str(path))) from None
    if len(text) > _MOST:
        message = f"the card has more than {_MOST:,} characters"
        raise ZooError(message, Place(str(path)))
    if not _METADATA.match(text):
        help_ = "it begins with a line `---`, some `key: value` lines, and a line `---`"
        raise ZooError("the card has no metadata block", Place(str(path)), help_)
    return text


def stated_license(path: Path) -> str | None:
    """Return the licence in the metadata block of a card, a word of hubs or an expression of SPDX;
    None without a card or a licence."""
    try:
        block, _, _ = read_card(path).partition("\n---\n")
    except ZooError:
        return None
    stated = _STATED.search(block)
    is_license = stated and stated[1] != _UNKNOWN and license_problem(stated[1]) is None
    return stated[1] if stated and is_license else None


def warn_of_other_license(license: str, path: Path) -> None:
    """Give a `LicenseWarning` if a card states another licence than `license`."""
    on_card = stated_license(path)
    if on_card is not None and on_card.lower() != license.lower():
        message = f"the licence is {quoted(license)}, and {quoted(path)} states {quoted(on_card)}"
        warnings.warn(message, LicenseWarning, 2)


def _yaml(data: Mapping[str, Any]) -> str:
    """Format strings and lists of strings as YAML, which includes JSON strings."""
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, list):
            lines += [f"{key}:", *(f"- {json.dumps(item)}" for item in value)]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "".join(f"{line}\n" for line in lines)

"""Write docs/api.md: the public names of `zoo`, from their docstrings.

python tools/api_page.py
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cells import cell
from pydantic import BaseModel

import zoo
from zoo.schema.field_docs import field_docs

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
HEAD = """\
# Python API

Every public name of the zoo, by what it is for. `import zoo` imports no torch; the functions that
need it do. `help(zoo.load)` shows the same in Python. What plugins import is on
[another page](plugin-reference.md).

Made by `python tools/api_page.py` from the docstrings.
"""
GROUPS: Mapping[str, Sequence[str]] = {
    "Specs": [
        "zoo.read_spec",
        "zoo.ModelSpec",
        "zoo.ModelSpec.to_dict",
        "zoo.ModelSpec.to_toml",
        "zoo.ModelSpec.summary",
        "zoo.ModelSpec.n_parameters",
        "zoo.ModelSpec.n_active",
        "zoo.ModelSpec.tensors",
        "zoo.ModelSpec.digest",
        "zoo.list_models",
        "zoo.list_components",
    ],
    "Models": [
        "zoo.build",
        "zoo.load",
        "zoo.save",
        "zoo.Transformer",
        "zoo.AttentionMaps",
        "zoo.transformer.TiledImage",
        "zoo.transformer.Spectrogram",
        "zoo.auxiliary_loss",
    ],
    "Running models on texts, images and sounds": [
        "zoo.TextModel",
        "zoo.TextModel.load",
        "zoo.TextModel.run",
        "zoo.TextModel.stream",
        "zoo.TextModel.translating",
        "zoo.TextModel.truncating",
        "zoo.TextModel.draft",
        "zoo.ImageModel",
        "zoo.ImageModel.load",
        "zoo.ImageModel.run",
        "zoo.SoundModel",
        "zoo.SoundModel.load",
        "zoo.SoundModel.run",
        "zoo.SoundModel.translating",
    ],
    "Generating ids": [
        "zoo.generate",
        "zoo.stream",
        "zoo.Generated",
        "zoo.Greedy",
        "zoo.Sampling",
        "zoo.Beam",
        "zoo.Draft",
        "zoo.Lookup",
    ],
    "Making models fast": [
        "zoo.arrange_weights",
        "zoo.quantize_weights",
        "zoo.attention_backend",
    ],
    "Training and measuring": ["zoo.train", "zoo.score", "zoo.results", "zoo.bench"],
    "Comparing": ["zoo.table", "zoo.diff", "zoo.flops"],
    "Checkpoints of transformers": ["zoo.import_folder", "zoo.export_folder"],
    "Bundles and signatures": ["zoo.bundle.read_bundle", "zoo.signing.verify_signature"],
    "Registries and plugins": [
        "zoo.load_registry",
        "zoo.Registry",
        "zoo.testing.check_plugin",
    ],
    "Errors": [
        "zoo.ZooError",
        "zoo.SpecError",
        "zoo.InputError",
        "zoo.WeightsError",
        "zoo.TrainingError",
        "zoo.RegistryError",
        "zoo.PluginError",
    ],
}
TITLES = {"Args": "Arguments"}
SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Warns):\n", re.MULTILINE)


def page() -> str:
    """The page's text."""
    lines = [HEAD, " · ".join(f"[{group}](#{anchor(group)})" for group in GROUPS)]
    for group, names in GROUPS.items():
        lines += ["", f"## {group}"]
        for name in names:
            lines += ["", *entry(name)]
    return "\n".join(lines) + "\n"


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def found(name: str) -> tuple[Any, Any]:
    """What a name stands for, and the class that it belongs to, or None."""
    *modules, last = name.split(".")
    if modules[-1][0].isupper():
        owner, _ = found(".".join(modules))
        return inspect.getattr_static(owner, last), owner
    return getattr(import_module(".".join(modules)), last), None


def entry(name: str) -> Iterator[str]:
    """A name with its signature and its docstring."""
    thing, owner = found(name)
    called = getattr(thing, "__func__", thing)
    short = name if owner is None else f"{owner.__name__}.{name.rpartition('.')[2]}"
    yield f"### `{short}`"
    yield ""
    if inspect.isfunction(called):
        yield from ["```text", signature(short, called, owner), "```", ""]
    yield from documented(inspect.getdoc(called) or "")
    if inspect.isclass(thing) and issubclass(thing, BaseModel):
        yield from ["", *fields(thing)]


def fields(cls: type[BaseModel]) -> Iterator[str]:
    """The fields of a method of generation; those of `Greedy` once only."""
    docs, known = field_docs(cls), field_docs(zoo.Greedy)
    own = [key for key in cls.model_fields if cls is zoo.Greedy or docs[key] != known.get(key)]
    if cls is not zoo.Greedy:
        yield from ["The fields are those of [`zoo.Greedy`](#zoogreedy), and:", ""]
    yield from ["| field | default | meaning |", "|---|---|---|"]
    for key in own:
        yield f"| `{key}` | `{cls.model_fields[key].default!r}` | {cell(docs[key])} |"


def signature(name: str, called: Any, owner: Any) -> str:
    """The arguments of a function, a line for each if they are many."""
    parameters = list(inspect.signature(called).parameters.values())[owner is not None :]
    texts: list[str] = []
    star = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not star:
            star = True
            texts.append("*")
        star = star or one.kind is one.VAR_POSITIONAL
        texts.append(argument(one))
    joined = f"{name}({', '.join(texts)})"
    return joined if len(joined) <= 88 else f"{name}(\n    " + ",\n    ".join(texts) + ",\n)"


def argument(one: inspect.Parameter) -> str:
    """An argument with its default, but without its type, which its description tells."""
    sign = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    if one.default is one.empty:
        return f"{sign}{one.name}"
    default = one.default
    if isinstance(default, BaseModel):
        shown = f"{type(default).__name__}()"
    elif inspect.isroutine(default):
        shown = "..."
    else:
        shown = str(default) if str(default).startswith("torch.") else repr(default)
    return f"{sign}{one.name}={shown}"


def documented(doc: str) -> Iterator[str]:
    """A docstring as Markdown, with its sections as lists."""
    head, *sections = SECTION.split(doc)
    yield head.rstrip()
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        text = textwrap.dedent(body).strip()
        yield from ["", f"**{TITLES.get(title, title)}**", ""]
        yield from [text] if title in ("Returns", "Yields") else entries(text)


def entries(text: str) -> Iterator[str]:
    """The entries of a section, such as of the arguments, each in one line."""
    for one in re.split(r"\n(?! )", text):
        name, _, meaning = " ".join(one.split()).partition(": ")
        yield f"- `{name}`: {meaning}"


if __name__ == "__main__":
    PAGE.write_text(page())

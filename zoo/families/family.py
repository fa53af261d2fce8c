"""Family files: data that describe how published checkpoints of some model types are read.

    format = 1
    model_type = ["gpt2"]             # the `model_type`s in config.json
    extends = "..."                   # another family, whose statements this one overrides
    prefix = ["transformer.", ""]     # the alternatives for `{@}` in names
    without = ["..."]                 # rules of the other family that are dropped
    ignores = ["..."]                 # keys of config.json without effect on the model

    [defaults]                        # values that config.json may omit, beside the generated ones
    [example]                         # values that `zoo lint` uses instead of some defaults
    [let]                             # named values
    [spec]                            # the spec
    [export]                          # what a new configuration states besides
    [generation]                      # the settings of generation where there is no file of them
    [legacy]                          # parts of names that old checkpoints spell differently
    [weights]                         # a rule for each kind of tensor

A string that starts with `=` is an expression (`zoo.families.expression`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from zoo.document import Document, KeyPath, read_document
from zoo.errors import Findings, Place, Problem, SpecError
from zoo.families.expression import fields_in, names_in, strings_in
from zoo.resolving.tables import PER_LAYER, Leaf, Table, as_table, merge_values, same_kind
from zoo.validating.value_errors import Format, key_problem
from zoo.wording import did_you_mean, quoted

MAX_PARENTS = 8
_INSERTED = re.compile(r"\$\{(.*?)\}")


class Rule(BaseModel):
    """Maps tensors of a checkpoint to tensors of the zoo.

    A number that is only in the checkpoint's name counts tensors that are stacked into one. A word
    that is only in the checkpoint's name is an alternative spelling.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    hf: str
    """The name in the checkpoint, as a pattern (`zoo.families.pattern`)."""
    zoo: str | list[str] = Field(default_factory=list[str])
    """The name in the zoo, or the names of the parts that are fused in the checkpoint."""
    transpose: bool = False
    """Whether matrices are stored as (in, out)."""
    axes: str | None = None
    """The axes of the tensor in the checkpoint, and after `->` in the zoo."""
    parts: list[int | str] = Field(default_factory=list["int | str"])
    """The lengths of the fused parts along the axis `p`; strings are expressions."""
    sizes: Mapping[str, int | str] = Field(default_factory=dict[str, "int | str"])
    """The lengths of other axes; strings are expressions."""
    copies: bool = False
    """Whether the tensor is a copy of one that another rule reads. The copies are compared."""
    computed: str | None = None
    """The computed table of the module that this tensor is a copy of, or the method that computes
    it for a number of rows. The tensor is compared with it."""
    drop: bool = False
    """Whether the tensor carries no information and is left out."""
    missing: Literal["error", "zeros"] = "error"
    """The meaning of the tensors of the model that the rule makes, if the checkpoint has none of
    those that it speaks of."""
    when: str | None = None
    """An expression: the rule holds if it is true."""

    @model_validator(mode="after")
    def _check(self) -> Rule:
        if bool(self.zoo) == (self.computed is not None or self.drop):
            raise ValueError("a rule has `zoo`, or else `computed` or `drop` or both")
        if (len(self.targets) > 1) != bool(self.parts) or (
            self.parts and (self.axes is None or len(self.parts) != len(self.targets))
        ):
            raise ValueError("several names in `zoo` need `axes`, and as many `parts`")
        if self.missing == "zeros" and len(self.targets) != 1:
            raise ValueError('`missing = "zeros"` is for a rule with one name in `zoo`')
        if unknown := self.sizes.keys() - set(re.findall(r"\w+", self.axes or "")):
            raise ValueError(f"`sizes` has {quoted(min(unknown))}, which is no axis in `axes`")
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        """The names in the zoo."""
        return (self.zoo,) if isinstance(self.zoo, str) else tuple(self.zoo)

    def expressions(self) -> Iterator[str]:
        """Yield its expressions, with those inside names."""
        for source in (self.when, *self.parts, *self.sizes.values()):
            if isinstance(source, str):
                yield source
        yield from _INSERTED.findall(" ".join((self.hf, *self.targets, self.computed or "")))


@dataclass(frozen=True)
class StatedRule:
    """A rule and its position in a family file."""

    rule: Rule
    document: Document
    path: KeyPath

    @property
    def place(self) -> Place:
        return self.document.place(self.path)


class _Head(BaseModel):
    """The statements of a family file beside its tables."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Format
    model_type: list[str]
    extends: str | None = None
    prefix: list[str] | None = None
    without: list[str] = Field(default_factory=list[str])
    ignores: list[str] = Field(default_factory=list[str])
    defaults: dict[str, Any] = Field(default_factory=dict[str, Any])
    example: dict[str, Any] = Field(default_factory=dict[str, Any])
    let: dict[str, Any] = Field(default_factory=dict[str, Any])
    spec: dict[str, Any] = Field(default_factory=dict[str, Any])
    export: dict[str, Any] = Field(default_factory=dict[str, Any])
    generation: dict[str, Any] = Field(default_factory=dict[str, Any])
    legacy: Mapping[str, str] = Field(default_factory=dict[str, str])
    weights: Mapping[str, Rule] = Field(default_factory=dict[str, Rule])


@dataclass(frozen=True)
class Family:
    """A family, including the statements of its parents. `export` has the keys of a configuration
    that `transformers` reads, and the family does not, with what a new configuration states for
    them; `generation` those of the settings of generation, where a checkpoint has no file of them.
    """

    name: str
    path: Path
    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    ignores: frozenset[str]
    defaults: Mapping[str, Any]
    example: Mapping[str, Any]
    let: Mapping[str, Leaf]
    spec: Table
    export: Mapping[str, Leaf]
    generation: Mapping[str, Leaf]
    legacy: Mapping[str, str]
    rules: Mapping[str, StatedRule]
    n_lines: int = field(compare=False)
    """The number of lines of its own file that are not blank."""

    @cached_property
    def needed(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names, functions too, in the expressions that the spec or a rule may need, in
        whatever branch; and the keys of a configuration that these read, if they are evaluated."""
        names: set[str] = set()
        keys: set[str] = set()
        pending = [*_expressions(self.spec)]
        for stated in self.rules.values():
            pending += stated.rule.expressions()
        while pending:
            new, read = names_in(pending.pop())
            keys |= read | new - self.let.keys()
            for name in (new - names) & self.let.keys():
                pending += _expressions(self.let[name])
            names |= new
        return frozenset(names), frozenset(keys)

    @cached_property
    def strings(self) -> frozenset[str]:
        """The strings in its expressions, among them values that a configuration's words have."""
        return frozenset[str]().union(*map(strings_in, self.expressions()))

    @cached_property
    def fields(self) -> frozenset[str]:
        """The fields of tables that any expression reads, such as those of a `text_config`."""
        return frozenset[str]().union(*map(fields_in, self.expressions()))

    def expressions(self) -> Iterator[str]:
        """Yield every expression."""
        yield from _expressions(self.spec)
        for leaf in (*self.let.values(), *self.export.values(), *self.generation.values()):
            yield from _expressions(leaf)
        for stated in self.rules.values():
            yield from stated.rule.expressions()


def _expressions(value: Any) -> Iterator[str]:
    """Yield the expressions in a value of a family file, without the sign before them."""
    if isinstance(value, Leaf):
        yield from _expressions(value.value)
    elif isinstance(value, Table):
        for entry in value.entries.values():
            yield from _expressions(entry)
    elif isinstance(value, dict | list):
        items = cast("dict[str, Any] | list[Any]", value)
        for item in items.values() if isinstance(items, dict) else items:
            yield from _expressions(item)
    elif isinstance(value, str) and value.startswith("="):
        yield value[1:]


def read_family(path: Path, registered: Mapping[str, Path] | None = None) -> Family:
    """Read a family file and those that it extends, each from the folder of the one that extends it
    or else from a registry.

    Args:
        path: the file.
        registered: the files of the families of the registries, by name.

    Raises:
        SpecError: with all problems of the wrong file, each with its place.
    """
    return _read(path, registered or {}, ())


def _read(path: Path, registered: Mapping[str, Path], chain: tuple[Path, ...]) -> Family:
    document = read_document(path)
    findings = Findings()
    findings.add(*document.problems)
    head = _head(document, findings)
    stated = document.data.get("spec")
    spec = as_table(stated if isinstance(stated, dict) else {}, document, ("spec",), findings)
    if head is None or len(findings):
        raise findings.error()
    own = Family(
        name=path.stem,
        path=path,
        model_types=tuple(head.model_type),
        prefixes=tuple(head.prefix or [""]),
        ignores=frozenset(head.ignores),
        defaults={key: None if value == "none" else value for key, value in head.defaults.items()},
        example=head.example,
        let=_leaves("let", head.let, document),
        spec=spec,
        export=_leaves("export", head.export, document),
        generation=_leaves("generation", head.generation, document),
        legacy=head.legacy,
        rules=_stated(head.weights, document),
        n_lines=sum(bool(line.strip()) for line in (document.text or "").splitlines()),
    )
    if head.extends is None:
        return own
    parent = _parent(head.extends, document, registered, (*chain, path))
    return _over(parent, own, head, document)


def _leaves(table: str, values: Mapping[str, Any], document: Document) -> dict[str, Leaf]:
    return {key: Leaf(value, document, (table, key)) for key, value in values.items()}


def _stated(rules: Mapping[str, Rule], document: Document) -> dict[str, StatedRule]:
    return {name: StatedRule(rule, document, ("weights", name)) for name, rule in rules.items()}


def _head(document: Document, findings: Findings) -> _Head | None:
    try:
        return _Head.model_validate(document.data)
    except ValidationError as error:
        told: dict[KeyPath, list[ErrorDetails]] = {}
        for details in error.errors(include_url=False):
            path = details["loc"]
            while details["type"] != "missing" and not document.holds(path):
                path = path[:-1]  # the last part names a member of a union
            told.setdefault(path, []).append(details)
        for path, wrong in told.items():
            findings.add(_problem(document, path, wrong))
        return None


def _problem(document: Document, path: KeyPath, wrong: Sequence[ErrorDetails]) -> Problem:
    """Return the problem of one key. Several errors come from the members of a union."""
    depth = max(len(details["loc"]) for details in wrong)  # the deepest is the most specific
    deepest = [details for details in wrong if len(details["loc"]) == depth]
    known = _Head.model_fields if len(path) == 1 else Rule.model_fields
    return key_problem(document, path, deepest, known)


def _parent(
    name: str, document: Document, registered: Mapping[str, Path], chain: tuple[Path, ...]
) -> Family:
    place = document.place(("extends",), value=True)
    folder = chain[-1].parent
    path = folder / f"{name}.toml"
    if path.parent != folder or not os.path.isfile(path):
        if name not in registered:
            known = {other.stem for other in folder.glob("*.toml")} | registered.keys()
            near = did_you_mean(name, known, "`zoo families` lists them")
            raise SpecError(f"there is no family {quoted(name)}", place, near)
        path = registered[name]
    if path in chain or len(chain) > MAX_PARENTS:
        story = " -> ".join(other.stem for other in (*chain, path))
        raise SpecError(f"cyclic `extends`: {story}", place)
    return _read(path, registered, chain)


def _over(parent: Family, own: Family, head: _Head, document: Document) -> Family:
    """Merge `own` over `parent`, key by key; rules and named values are replaced as a whole."""
    if lost := [name for name in head.without if name not in parent.rules]:
        raise SpecError(
            Problem(
                f"the family {quoted(parent.name)} has no rule {quoted(name)}",
                document.place(("without", head.without.index(name)), value=True),
                did_you_mean(name, parent.rules),
            )
            for name in lost
        )
    kept = {name: rule for name, rule in parent.rules.items() if name not in head.without}
    return replace(
        own,
        prefixes=own.prefixes if head.prefix is not None else parent.prefixes,
        ignores=parent.ignores | own.ignores,
        defaults={**parent.defaults, **own.defaults},
        let={**parent.let, **own.let},
        spec=_merge(parent.spec, own.spec),
        export={**parent.export, **own.export},
        generation={**parent.generation, **own.generation},
        legacy={**parent.legacy, **own.legacy},
        rules={**kept, **own.rules},
    )


def _merge(outer: Table, inner: Table) -> Table:
    """Merge `inner` over `outer` as in specs, but an expression replaces a table."""
    entries = dict(outer.entries)
    for key, value in inner.entries.items():
        below = entries.get(key)
        if below is None or _is_whole(value):
            entries[key] = value
        elif isinstance(below, Table) and isinstance(value, Table) and same_kind(below, value):
            entries[key] = _merge(below, value)
        else:
            entries[key] = merge_values(below, value)
    return Table(entries, inner.document, inner.path, (outer, inner))


def _is_whole(value: Leaf | Table) -> bool:
    """Return whether a value is an expression that replaces a whole table."""
    if isinstance(value, Table):
        return PER_LAYER in value.entries
    return str(value.value).startswith("=")


def with_rules(family: Family, rules: Mapping[str, Rule]) -> Family:
    """Return a family with further rules, which are not in its file."""
    return replace(family, rules={**family.rules, **_stated(rules, family.spec.document)})

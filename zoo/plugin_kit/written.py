"""The promises of a plugin about its file, which is read for them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zoo.component import GIVEN, Part, fields_of, given_of
from zoo.errors import ZooError
from zoo.plugin_kit.report import PromiseError
from zoo.registry import Registry
from zoo.slots import Plugin
from zoo.wording import did_you_mean


def written(cls: type[Plugin], registry: Registry) -> None:
    """The file has one class of this name, and reads each field that the class adds; contradictions
    point at keys that there are."""
    try:
        lines, above = inspect.findsource(cls)
    except OSError:
        return  # made without a file
    # The whole file: the lines of a class inside an `if` or a function are no Python by themselves.
    file = ast.parse("".join(lines))
    own = next(found for found in _classes(file) if _first_line(found) == above + 1)
    _written_once(cls, file)
    _unread_fields(cls, file, own)
    _contradictions(cls, own, registry)


def _written_once(cls: type[Plugin], file: ast.Module) -> None:
    """No two classes at the top of the file have the name: the last one would be registered."""
    top = [one for one in file.body if isinstance(one, ast.ClassDef) and one.name == cls.__name__]
    if len(top) > 1:
        lines = "".join(f"\n  {inspect.getfile(cls)}:{one.lineno}" for one in top)
        raise PromiseError(
            f"the file has {len(top)} classes of the name {cls.__name__}, of which the last one "
            f"replaces the others{lines}",
            help="rename all but one, and name in the registry which one is meant",
        )


def _unread_fields(cls: type[Plugin], file: ast.Module, own: ast.ClassDef) -> None:
    """Each field that the class adds, also one that holds a component, is named in the file, apart
    from where it is declared, or given to a component inside. If the description is passed on as a
    whole, what it is passed to may read any of them."""
    if _is_passed_on(file):
        return
    named = set(_read_attributes(file))
    named |= {str(node.value) for node in ast.walk(file) if isinstance(node, ast.Constant)}
    before = {name for base in cls.__mro__[1:] for name in getattr(base, "model_fields", ())}
    marks = fields_of(cls)
    for name, line in _annotated(own):
        mark = marks.get(name, GIVEN)
        if mark is GIVEN or name in named | before or _is_given_on(name, cls):
            continue
        read = f"`build` passes `self.{name}` to the module"
        if isinstance(mark, Part):
            read = f"`layout` holds `self.{name}.layout()`, and the module `self.{name}.build()`"
        raise PromiseError(
            f"nothing reads the field `{name}`: a spec that states it would change nothing\n"
            f"  {inspect.getfile(cls)}:{line}",
            help=read,
        )


def _read_attributes(file: ast.Module) -> Iterator[str]:
    """Yield the names of attributes that a file reads. What a class has set itself, as a module
    does, is its own, and no field of that name."""
    holder = {}  # of each attribute of `self` the innermost class, which comes last
    for cls in _classes(file):
        for node in ast.walk(cls):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                holder[node] = cls
    own = {(cls, node.attr) for node, cls in holder.items() if isinstance(node.ctx, ast.Store)}
    for node in ast.walk(file):
        if isinstance(node, ast.Attribute) and (holder.get(node), node.attr) not in own:
            yield node.attr


def _is_given_on(name: str, cls: type[Plugin]) -> bool:
    """Whether a component inside is given a field."""
    parts = {held: mark for held, mark in fields_of(cls).items() if isinstance(mark, Part)}
    return any(
        name in given_of(mark.held_in(cls, held))
        or any(source.partition(".")[0] == name for source in mark.sources.values())
        for held, mark in parts.items()
    )


def _is_passed_on(file: ast.Module) -> bool:
    """Whether `self` is used in a file other than by its attributes, or to return it."""
    nodes = list(ast.walk(file))
    told = {id(one.value) for one in nodes if isinstance(one, ast.Attribute | ast.Return)}
    return any(
        isinstance(one, ast.Name) and one.id == "self" and id(one) not in told for one in nodes
    )


def _contradictions(cls: type[Plugin], written: ast.ClassDef, registry: Registry) -> None:
    """The keys that contradictions of the class point at are keys of some component."""
    own = fields_of(cls)
    for key, line in _keys_of_contradictions(written):
        name = key.partition(".")[0]
        if name not in own and name not in _all_keys(registry):
            raise PromiseError(
                f"a contradiction names the key `{key}`, which no component has\n"
                f"  {inspect.getfile(cls)}:{line}",
                help=did_you_mean(name, own),
            )


def _keys_of_contradictions(written: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """Yield the keys that are written in the calls of `contradiction` in a class, with their
    lines."""
    for call in ast.walk(written):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("contradiction"):
            for key in call.args[1:]:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, key.lineno


def _annotated(written: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """Yield the names that the body of a class annotates, with their lines."""
    for line in written.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id, line.lineno


def _classes(file: ast.Module) -> Iterator[ast.ClassDef]:
    """Yield the classes that a file of Python defines."""
    return (node for node in ast.walk(file) if isinstance(node, ast.ClassDef))


def _first_line(found: ast.ClassDef) -> int:
    """Return the number of the line that a class begins at, with its decorators."""
    return min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])


def _all_keys(registry: Registry) -> set[str]:
    """Return the fields of all components, any of which may be around the one that names a key. The
    files of a project, which may be in the making, are not run for this but read: all that the
    bodies of their classes annotate counts."""
    found: set[str] = set()
    files: set[Path] = set()
    for slot, kinds in registry.plugins.items():
        for kind, entry in kinds.items():
            if entry.in_file:
                files.add(entry.folder / entry.target.rpartition(":")[0])
            else:
                with suppress(ZooError):  # skip plugins that cannot be loaded
                    found.update(fields_of(registry.plugin(slot, kind)))
    for file in files:
        with suppress(OSError, SyntaxError, ValueError):  # skip what is no file of Python
            for cls in _classes(ast.parse(file.read_text("utf-8"))):
                found.update(name for name, _ in _annotated(cls))
    return found

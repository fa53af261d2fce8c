"""The kinds that a spec names: their classes, and what to say of those that there are not."""

from __future__ import annotations

from zoo.component import fields_of, given_of
from zoo.errors import Findings, PluginError, RegistryError, ZooError
from zoo.registry import Registry, registered_near
from zoo.resolving.tables import Leaf
from zoo.slots import Plugin
from zoo.wording import nearest, quoted


class Kinds:
    """The plugins of a registry as one spec names them. A plugin that cannot be loaded is told
    once."""

    def __init__(self, registry: Registry, findings: Findings) -> None:
        self.registry = registry
        self.findings = findings
        self.failed: set[tuple[str, str]] = set()

    def plugin(self, slot: str, kind: Leaf) -> type[Plugin] | None:
        """Return the class of a kind. For a kind that is not registered, return the most similar
        class, so that the rest of the spec can be checked; but not for a stored spec, which has no
        typing mistakes: there, the plugin is missing.
        """
        if (slot, kind.value) in self.failed:
            return None
        try:
            return self.registry.plugin(slot, kind.value, kind.place)
        except RegistryError as error:
            (problem,) = error.problems
            help = registered_near(kind.document.name, slot, kind.value)
            if kind.document.stored:
                help = help or _missing(kind.document.made_with.get(f"{slot}.{kind.value}"))
                self.findings.add(problem._replace(help=help))
                self.failed.add((slot, kind.value))
                return None
            self.findings.add(problem._replace(help=help or problem.help))
            return self.if_it_loads(slot, nearest(kind.value, self.registry.plugins[slot]))
        except PluginError as error:
            self.findings.add_error(error)
            self.failed.add((slot, kind.value))
            return None

    def if_it_loads(self, slot: str, kind: str | None) -> type[Plugin] | None:
        """Return the class of a registered kind; None, without a problem, if it cannot be loaded or
        there is no kind."""
        try:
            return self.registry.plugin(slot, kind) if kind is not None else None
        except ZooError:
            return None

    def having(self, slot: str, key: str) -> str | None:
        """Return a text that names the kinds with a key for a slot; None if there are none. The
        files of a project that the spec has no use for, and that may be in the making, are not run
        for this."""
        kinds = {
            name: (self.registry.loaded if entry.in_file else self.if_it_loads)(slot, name)
            for name, entry in sorted(self.registry.plugins[slot].items())
        }
        having = [
            f"`{name}`"
            for name, cls in kinds.items()
            if cls and key in fields_of(cls).keys() - given_of(cls)
        ]
        if not having:
            return None
        *others, last = having
        return f"the {slot} {', '.join(others)} or {last}" if others else f"the {slot} {last}"


def _missing(made_with: str | None) -> str:
    """Return the help if a stored spec names a component that is not registered here: it was made
    with this distribution and version, or with a file of this digest. What a file says is no
    reason to trust a package."""
    if made_with is None or made_with.startswith("sha256:"):
        return "it is a plugin that the model was made with: name it in a `registry.toml`"
    return (
        f"by the file, it was made with the package {quoted(made_with)}: if you trust that, "
        "install it, and `include` it in a `registry.toml`"
    )

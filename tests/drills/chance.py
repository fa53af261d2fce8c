"""The store under a long chain of operations chosen by chance, mistakes and damage among them."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from published_models import LOCAL, bundle, entry, register, write_files

from zoo.errors import ZooError
from zoo.registry import Registry, read_layers, shipped_registry
from zoo.store.collecting import collect, restored
from zoo.store.files import Store, damaged
from zoo.store.first_use import forget
from zoo.store.pulling import pull
from zoo.store.refs import refs, remove_ref, versions

NAMES = ("a.v1", "b.v1", "c.v1")
SEEDS = st.integers(0, 2)


class Stop(Exception):  # noqa: N818 (it stands for a process that ends, not for an error)
    """Ends an operation in the middle, as a signal would."""


class StoreMachine(RuleBasedStateMachine):
    """Publishers, pullers, removers and collectors in turn. Whatever they do, every ref leads to
    the bytes that it names, and those are the bytes that the registry named when it was made."""

    @initialize()
    def begin(self) -> None:
        self.keep = contextlib.ExitStack()
        self.folder = Path(self.keep.enter_context(tempfile.TemporaryDirectory()))
        self.store = Store(self.folder / "home")
        self.stated: dict[str, int | None] = {}
        self.at_source: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        for name in NAMES:
            self.publish(name, 0, True)

    def teardown(self) -> None:
        if hasattr(self, "keep"):
            self.keep.close()

    @property
    def registry(self) -> Registry:
        return read_layers([shipped_registry(), self.folder / "registry.toml"])

    @rule(name=st.sampled_from(NAMES), seed=SEEDS, pinned=st.booleans())
    def publish(self, name: str, seed: int, pinned: bool) -> None:
        """A registry that states other digests than before, or none; and the files to them."""
        source = {**LOCAL, "path": f"../{name}"}
        register(self.folder, name, entry(source, bundle(seed) if pinned else None))
        self.stated[name] = seed if pinned else None
        self.change_source(name, seed)

    @rule(name=st.sampled_from(NAMES), seed=SEEDS)
    def change_source(self, name: str, seed: int) -> None:
        """The files change, and the registry does not."""
        write_files(self.folder / name, bundle(seed))
        self.at_source[name] = seed

    @rule(name=st.sampled_from(NAMES), trust=st.booleans())
    def pull(self, name: str, trust: bool) -> None:
        expected = self.stated[name]
        if expected is None:
            expected = self.seen.get(name, self.at_source[name] if trust else None)
        try:
            ref = pull(name, self.registry, self.store, trust_first_use=trust)
        except ZooError:
            assert expected is None or expected != self.at_source[name]
            return
        assert expected is not None
        folder = restored(self.store, ref)
        assert {p: (folder / p).read_bytes() for p in bundle(0)} == bundle(expected)
        if self.stated[name] is None:
            assert self.seen.setdefault(name, expected) == expected

    @rule(name=st.sampled_from(NAMES), after=st.integers(0, 12_000))
    def pull_in_part(self, name: str, after: int) -> None:
        """A pull that is broken off once some bytes have come."""
        received = 0

        def count(n: int) -> None:
            nonlocal received
            received += n
            if received > after:
                raise Stop

        with contextlib.suppress(Stop, ZooError):
            pull(name, self.registry, self.store, on_bytes=count)

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        for of, version in list(versions(self.store, name)):
            remove_ref(self.store, of, version)

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name: str) -> None:
        forget(self.store, name)
        self.seen.pop(name, None)

    @rule(everything=st.booleans())
    def collect(self, everything: bool) -> None:
        collect(self.store, grace=0.0 if everything else 3600.0)
        named = {file.sha256 for ref in refs(self.store) for file in ref.files.values()}
        assert {path.name for path in self.store.blobs()} == named
        live = {self.store.snapshot(ref.files).name for ref in refs(self.store)}
        assert live <= {path.name for path in self.store.snapshots()}
        if everything:
            assert live == {path.name for path in self.store.snapshots()}
            parts = [*self.store.root.glob("work/*"), *self.store.root.glob("partial/*")]
            assert parts == []

    @rule(which=st.integers(0, 20), data=st.data())
    def damage_and_mend(self, which: int, data: Any) -> None:
        """A byte of a stored file changes; whoever pulls the model next has it whole again, if the
        source still has it."""
        there = [ref for ref in refs(self.store) if self.is_to_be_had(ref.name, ref.version)]
        if not there:
            return
        ref = there[which % len(there)]
        path = self.store.snapshot(ref.files) / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
        others = [other for other in refs(self.store) if self.harmed(other)]
        for other in others:  # the same bytes under another name
            if self.is_to_be_had(other.name, other.version):
                pull(other.name, self.registry, self.store)
            else:
                remove_ref(self.store, other.name, other.version)

    def harmed(self, ref: Any) -> bool:
        return bool(list(damaged(self.store.snapshot(ref.files), ref.files)))

    def is_to_be_had(self, name: str, version: str) -> bool:
        """Whether the registry's model is of that version, and its source has the files."""
        from zoo.store.first_use import with_trusted
        from zoo.store.pretrained import find_pretrained

        model = find_pretrained(name, self.registry)
        assert model is not None
        model = with_trusted(model, self.store, self.registry)
        expected = self.stated[name] if self.stated[name] is not None else self.seen.get(name)
        current = model.is_pinned and model.version == version
        return current and expected == self.at_source[name]

    @invariant()
    def every_ref_leads_to_its_bytes(self) -> None:
        if hasattr(self, "store"):
            for ref in refs(self.store):
                assert not self.harmed(ref), ref.name

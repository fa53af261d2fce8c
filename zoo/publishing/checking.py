"""Check the models in the store against their digests and fingerprints: `zoo verify`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.store.collecting import restored
from zoo.store.files import Store, damaged
from zoo.store.lookup import is_pulled
from zoo.store.pretrained import find_pretrained
from zoo.store.refs import Ref

if TYPE_CHECKING:
    from zoo.registry import Registry


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one model: the damaged files and, if a fingerprint was compared, the distance
    of the outputs from it."""

    ref: Ref
    damaged: tuple[str, ...]
    difference: float | None = None
    tolerance: float | None = None

    @property
    def is_right(self) -> bool:
        near = self.difference is None or self.difference <= (self.tolerance or 0.0)
        return not self.damaged and near


def verify(
    ref: Ref,
    store: Store,
    registry: Registry,
    *,
    fingerprint: bool = False,
    on_bytes: Callable[[int], None] = lambda n: None,
) -> Verdict:
    """Compare the files of a model with their digests, and, with `fingerprint`, its outputs with
    its fingerprint, which only the version that the registry states has. `on_bytes` is called with
    the number of bytes read since the last call.

    Raises:
        ZooError: the model cannot be built or loaded.
    """
    wrong = tuple(damaged(restored(store, ref), ref.files, on_bytes))
    is_stated = fingerprint and is_pulled(ref, registry, store)
    stated = find_pretrained(ref.name, registry) if is_stated else None
    if wrong or stated is None or stated.manifest.fingerprint is None:
        return Verdict(ref, wrong)
    from zoo.loading import load  # here: comparing files does without torch
    from zoo.publishing.fingerprints import difference

    expected = stated.manifest.fingerprint
    model = load(store.snapshot(ref.files), registry=registry)
    return Verdict(ref, wrong, difference(model, expected, ref.name), expected.tolerance)

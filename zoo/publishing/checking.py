"""Check the models in the store against their digests and fingerprints: `zoo verify`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.store.files import Store
from zoo.store.refs import Ref
from zoo.store.stated import not_as_stated, stated_now

if TYPE_CHECKING:
    from zoo.registry import Registry


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one model.

    Args:
        ref: the model in the store.
        stated: the version that the registry states; None if it states none.
        damaged: the files that are not as the registry states; for a version that it does not
            state, not as the store does.
        difference: the distance of the outputs from the fingerprint, if it was compared.
        tolerance: the allowed distance.
    """

    ref: Ref
    stated: str | None
    damaged: tuple[str, ...]
    difference: float | None = None
    tolerance: float | None = None

    @property
    def is_stated(self) -> bool:
        """Whether it is the version that `zoo pull` would download."""
        return self.stated == self.ref.version

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
    """Compare the files of a model with the digests that the registry states, and, with
    `fingerprint`, its outputs with its fingerprint. A version that the registry does not state is
    compared with the digests in the store. `on_bytes` is called with the number of bytes read since
    the last call.

    Raises:
        ZooError: the model's file in the registry is wrong, or the model cannot be built or loaded.
    """
    now = stated_now(ref, registry, store)
    model = now if now is not None and now.version == ref.version else None
    version = None if now is None else now.version
    wrong = not_as_stated(ref, model, store, on_bytes)
    expected = None if model is None else model.manifest.fingerprint
    if wrong or not fingerprint or expected is None:
        return Verdict(ref, version, wrong)
    from zoo.loading import load  # here: comparing files does without torch
    from zoo.publishing.fingerprints import difference

    loaded = load(store.snapshot(ref.files), registry=registry)
    found = difference(loaded, expected, ref.name)
    return Verdict(ref, version, wrong, found, expected.tolerance)

"""Import plugins in a process without torch, which descriptions must not need.

A separate process is needed because this one has already imported torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from zoo.errors import PluginError
from zoo.plugin_kit.workers import entry_data, own_environment, registry_of
from zoo.registering.plugin_errors import frames_of_plugins, reason, shown
from zoo.registering.registry_file import SOURCE, Entry
from zoo.registry import Registry


def import_failures(entries: Iterable[Entry]) -> list[str | None]:
    """Return, for each plugin, why it cannot be imported without torch, or None if it can."""
    told = [entry_data(entry.group, entry) for entry in entries]
    answers: list[str | None] = []
    while len(answers) < len(told):
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(told[len(answers) :]),
            env=own_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        answers += [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) < len(told):  # a plugin ended the process before its line was written
            answers.append(f"importing it ends the process, with status {done.returncode}")
    return answers


class _WithoutTorch(MetaPathFinder, Loader):
    """Finds torch, as where it is installed, and refuses to import it.

    Packages such as transformers look whether torch is there: if it were not, they would not try to
    import it.
    """

    stack: Sequence[traceback.FrameSummary] = ()
    """Where an import of torch was tried last, whether or not its failure was caught."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == "torch" else None

    def exec_module(self, module: ModuleType) -> None:
        self.stack = traceback.extract_stack()
        raise ImportError("torch is not imported here", name=module.__name__)


def main() -> None:
    """Read entries as JSON from stdin and write one JSON line for each: null, or the failure."""
    entries: list[list[str]] = json.load(sys.stdin)
    without_torch = _WithoutTorch()
    sys.meta_path.insert(0, without_torch)
    for entry in entries:
        slot, kind, *_ = entry
        failure = _failure(registry_of([entry]), slot, kind, without_torch)
        print(json.dumps(failure), flush=True)


def _failure(registry: Registry, slot: str, kind: str, without_torch: _WithoutTorch) -> str | None:
    without_torch.stack = ()
    failure: str | None = None
    try:
        registry.source(kind) if slot == SOURCE else registry.plugin(slot, kind)
    except PluginError as error:
        failure = reason(error.problems[0])
    if not without_torch.stack:
        return failure
    where = shown(frames_of_plugins(without_torch.stack))
    return "\n".join(["importing the description imports torch; do it inside `build`", *where])


if __name__ == "__main__":
    main()

"""Import plugins in a process without torch, which descriptions must not need.

A separate process is needed because this one has already imported torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zoo.document import Document
from zoo.errors import PluginError
from zoo.registering.plugin_errors import reason
from zoo.registering.registry_file import Entry
from zoo.registry import Registry


def import_failures(entries: Iterable[Entry]) -> list[str | None]:
    """Return, for each plugin, why it cannot be imported without torch, or None if it can."""
    told = [[e.group, e.name, e.target, str(e.folder.resolve())] for e in entries]
    answers: list[str | None] = []
    while len(answers) < len(told):
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(told[len(answers) :]),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            check=False,
        )
        answers += [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) < len(told):  # a plugin ended the process before its line was written
            answers.append(f"importing it ends the process, with status {done.returncode}")
    return answers


def main() -> None:
    """Read entries as JSON from stdin and write one JSON line for each: null, or the failure."""
    entries: list[list[str]] = json.load(sys.stdin)
    torch: Mapping[str, Any] = {"torch": None}
    sys.modules.update(torch)  # from here on, `import torch` raises
    for slot, kind, target, folder in entries:
        registry = Registry()
        registry.plugins[slot][kind] = Entry(slot, kind, target, Document(folder, {}), Path(folder))
        print(json.dumps(_failure(registry, slot, kind)), flush=True)


def _failure(registry: Registry, slot: str, kind: str) -> str | None:
    try:
        registry.plugin(slot, kind)
    except PluginError as error:
        problem = error.problems[0]
        cause = error.__cause__
        if isinstance(cause, ImportError) and (cause.name or "").partition(".")[0] == "torch":
            where = "\n".join(problem.message.split("\n")[1:])
            return f"importing the description imports torch; do it inside `build`\n{where}"
        return reason(problem)
    return None


if __name__ == "__main__":
    main()

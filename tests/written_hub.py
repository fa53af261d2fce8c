"""A local repository of the Hugging Face hub, to which huggingface_hub writes: it creates the
repository, asks how to send each file, sends the large ones, and then makes one commit."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from loopback_hub import Hub

Answer = tuple[int, bytes] | None


@dataclass
class Repository:
    """The repository `owner/name`, and the misbehaviour of its hub.

    Args:
        hub: the server of the committed files.
        cut: a part of a path; connections of requests to it are closed without an answer.
        cuts: the number of times that this happens.
        status: the status of every answer.
        ignored: the path of a file that the commit leaves out.
        oid: the reported id of the commit, in place of the true one.
    """

    hub: Hub
    cut: str | None = None
    cuts: int = 1000
    status: int | None = None
    ignored: str | None = None
    oid: str | None = None
    large: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commits: list[str] = field(default_factory=list[str])

    def write(self, method: str, path: str, content: bytes) -> Answer:
        if self.cut is not None and self.cut in path and self.cuts:
            self.cuts -= 1
            return None
        if self.status is not None:
            return self.status, b'{"error": "it is not for you"}'
        if path.startswith("/lfs/"):
            self.large[path.removeprefix("/lfs/")] = content
            return 200, b""
        if path == "/api/models/owner/name/commit/main":
            lines = [json.loads(line) for line in content.splitlines()]
            return 200, json.dumps(self.commit(lines)).encode()
        return 200, json.dumps(self.answer(path, json.loads(content))).encode()

    def answer(self, path: str, asked: Any) -> Any:
        match path:
            case "/api/repos/create":
                assert (asked["organization"], asked["name"]) == ("owner", "name")
                return {"url": f"{self.hub.url}/owner/name"}
            case "/api/validate-yaml":
                return {"errors": [], "warnings": []}
            case "/api/models/owner/name/preupload/main":
                return {"files": [self.mode(file) for file in asked["files"]]}
            case "/owner/name.git/info/lfs/objects/batch":
                return {"transfer": "basic", "objects": [self.upload(o) for o in asked["objects"]]}
        raise AssertionError(f"{path} is not asked for")

    def mode(self, file: Any) -> Any:
        large = file["path"].endswith(".safetensors")
        mode = "lfs" if large else "regular"
        ignored = file["path"] == self.ignored
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": ignored}

    def upload(self, asked: Any) -> Any:
        href = f"{self.hub.url}/lfs/{asked['oid']}"
        return {**asked, "actions": {"upload": {"href": href}}}

    def commit(self, lines: list[Any]) -> Any:
        files: dict[str, bytes] = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
        oid = hashlib.sha1(repr(files).encode()).hexdigest()
        self.commits.append(oid)
        siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
        info = {"id": "owner/name", "sha": oid, "siblings": siblings}
        self.hub.files[f"/api/models/owner/name/revision/{oid}"] = json.dumps(info).encode()
        for path, content in files.items():
            self.hub.files[f"/owner/name/resolve/{oid}/{path}"] = content
        return {
            "commitUrl": f"{self.hub.url}/owner/name/commit/{oid}",
            "commitOid": self.oid or oid,
        }

"""The corpus of what is hostile, run in a process of its own with an audit hook."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from hostile import SPEC, Case, cases, toml
from hostile_cards import GOOD, card_cases
from hostile_cards import case as card_case

import zoo
from drills.process import ROOT
from zoo.bundle import write_bundle
from zoo.provenance.card import CardFields

CANARY = "canary-7f3a"
"""What no message may tell: a variable's value, and what stands in a file elsewhere."""
MEMORY = 8 << 30


def run_corpus(home: Path) -> list[dict[str, Any]]:
    """What each case did: its kind, aim and name, whether it is inert, `outcome` and `touched`."""
    (home / "home").mkdir()
    (home / "outside.toml").write_text(toml({**SPEC, "name": CANARY}))
    for name, spec in (("plain", SPEC), ("wrong", {**SPEC, "d_fff": 3})):
        (home / name).mkdir()
        (home / name / "spec.toml").write_text(toml(spec))
        (home / name / "registry.toml").write_text("format = 1\n")
    zoo.save(zoo.build(SPEC), home / "saved")
    (home / "saved" / "vocab.txt").write_text("a\n")
    registry = zoo.load_registry()
    write_bundle(home / "saved", home / "good", registry=registry, card=CardFields())
    (home / "card").mkdir()
    card_case("", "", GOOD).make(home / "card")
    listed: list[dict[str, Any]] = []
    for number, case in enumerate([*cases(home / "good"), *card_cases()]):
        folder = home / f"case-{number}"
        folder.mkdir()
        case.make(folder)
        listed.append({**_told(case), "folder": folder.name})
    (home / "cases.json").write_text(json.dumps(listed))
    source = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "audited.py"), str(home)],
        env={**os.environ, "ZOO_CANARY": CANARY, "PYTHONPATH": source},
        cwd=home / "home",
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(listed)
    return found


def _told(case: Case) -> dict[str, Any]:
    return {"kind": case.kind, "aim": case.aim, "name": case.name, "inert": case.inert}

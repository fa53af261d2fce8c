"""The trust model of docs/security.md: downloads are data, whatever they contain."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from drills.corpus import CANARY, run_corpus
from drills.process import ROOT
from hostile import SPEC, toml
from hostile_cards import GOOD
from hostile_cards import case as card_case

import zoo
from zoo.errors import Place, Problem, ZooError


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of all cases, run in a process of its own with an audit hook."""
    return run_corpus(tmp_path_factory.mktemp("hostile"))


def test_the_corpus_is_large_and_has_every_kind(results: list[dict[str, Any]]) -> None:
    kinds = Counter(result["kind"] for result in results)
    assert len(results) >= 200
    assert min(kinds[kind] for kind in ("spec", "bundle", "registry", "card")) >= 40
    names = Counter((result["kind"], result["aim"], result["name"]) for result in results)
    assert max(names.values()) == 1


def test_nothing_is_imported_run_reached_or_touched(results: list[dict[str, Any]]) -> None:
    assert [result for result in results if result["touched"]] == []


def test_what_is_hostile_is_refused_by_the_zoos_own_errors(results: list[dict[str, Any]]) -> None:
    wrong = [
        result
        for result in results
        if not result["outcome"].startswith("refused")
        and not (result["inert"] and result["outcome"].startswith("accepted"))
    ]
    assert wrong == []


def test_nothing_of_the_machine_is_told(results: list[dict[str, Any]]) -> None:
    """Neither the value of a variable nor the contents of other files."""
    assert [result for result in results if CANARY in result["outcome"]] == []


def test_nothing_that_is_told_commands_a_terminal(results: list[dict[str, Any]]) -> None:
    """Messages quote hostile text, which could move the cursor or reverse the line."""
    for result in results:
        if result["outcome"].startswith("refused"):
            told = result["outcome"].replace("\n", "")
            assert told.isprintable(), result


def test_no_part_of_a_problem_commands_a_terminal() -> None:
    """A message may have several lines; a name in a place is one, so it cannot look like another
    error."""
    evil = "\x1b]0;P\x07\x9b\r\u202e"
    place = Place(f"a\n{evil}", 1, 1, evil)
    told = str(ZooError(Problem(f"b{evil}\nc", place, evil, ((evil, place),))))
    assert told.replace("\n", "").isprintable()
    assert [line[0] for line in told.splitlines()] == ["a", "c", " ", " ", "a", " ", " ", " "]


def test_the_hook_sees_what_it_should(tmp_path: Path) -> None:
    """A plugin in the user's own registry does all of it, and the hook records it."""
    # A test of the test: the same script, with a component that misbehaves.
    home = tmp_path
    for name in ("home", "plain", "wrong", "good", "card", "case-0"):
        (home / name).mkdir()
    card_case("", "", GOOD).make(home / "card")
    for name in ("plain", "wrong", "case-0"):
        (home / name / "spec.toml").write_text(toml(SPEC))
        (home / name / "registry.toml").write_text("format = 1\n")
    zoo.save(zoo.build(SPEC), home / "good")
    evil = "import socket, subprocess, antigravity_of_mine\n"
    (home / "case-0" / "spec.toml").write_text(toml({**SPEC, "ffn": "evil"}))
    (home / "case-0" / "registry.toml").write_text('format = 1\n[ffn]\nevil = "evil.py:Evil"\n')
    (home / "case-0" / "evil.py").write_text(
        "import socket\nopen('/etc/hostname').close()\nsocket.socket().close()\n" + evil
    )
    case = {"kind": "spec", "aim": "code", "name": "evil", "inert": False, "folder": "case-0"}
    (home / "cases.json").write_text(json.dumps([case]))
    source = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "audited.py"), str(home)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    touched = "\n".join(json.loads(done.stdout)["touched"])
    for part in ("import antigravity_of_mine", "open /etc/hostname", "socket.__new__", "exec "):
        assert part in touched


# --- the page -------------------------------------------------------------------------------------

ROW = re.compile(r"^\| (?P<sentence>[^|]+) \| `(?P<aim>\w+)` \|", re.MULTILINE)
TEST = re.compile(r"`(tests/\w+\.py)::(\w+)`")


def test_the_page_has_a_class_for_every_case_and_a_case_for_every_class(
    results: list[dict[str, Any]],
) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    stated = {match["aim"] for match in ROW.finditer(page)}
    assert stated == {result["aim"] for result in results}


def test_the_tests_that_the_page_names_are_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = TEST.findall(page)
    assert len(named) > 10
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"

"""A drawing as a file: nothing overlaps, the bytes are the same; commands and notebooks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from drawings import SMALL, check_geometry
from hypothesis import given
from hypothesis import strategies as st
from small_specs import EXAMPLES

import zoo
from zoo.cli import run
from zoo.drawing import to_svg
from zoo.drawing.components import cut, short_number
from zoo.drawing.figure import Box, Branch, Column, Cycle, Figure, Layer, Run, Tie
from zoo.drawing.page import draw

ROOT = Path(__file__).parent.parent
PLACEMENTS = ["pre", "post", "sandwich", "post_branch", "parallel"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_nothing_overlaps(path: Path) -> None:
    check_geometry(to_svg(zoo.read_spec(path)))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "t5_buckets", "none"])
def test_nothing_overlaps_in_any_arrangement(placement: str, position: str) -> None:
    stack = f'norm_placement = "{placement}"\nposition = "{position}"\n'
    check_geometry(to_svg(zoo.read_spec(f"{SMALL}\n{stack}")))


# --- the same bytes -----------------------------------------------------------------------------


def _figure() -> Figure:
    norm = Box("s.block.f.norm", "norm", "a_norm")
    branch = Branch(
        Box("s.block.f", "attention", "kind", "detail", "f, 1.00M parameters", "a hint"),
        pre=norm,
        positions=(Box("s.position", "position", "scheme", name="position"),),
    )
    post = Branch(Box("s.block.g", "attention", "other", name="g"), out=norm, reads_memory=True)
    runs = (Run(Layer("s.block", "block", (branch, post)), 3, "0-2"),)
    side = Run(Layer("s.block", "block", (Branch(norm, post=norm), post), parallel=True), 1, "3")
    column = Column(
        path="s",
        name="s",
        entry="ids",
        embedding=Box("s.embedding", "embedding", "tokens", "10 tokens", "embedding"),
        added=(Box("s.added", "position", "added"),),
        before=(norm,),
        layers=(Cycle((*runs, side), 2),),
        note="a note",
        after=(Box("head", "head", "linear", name="head"),),
        memory="memory",
    )
    return Figure("a figure", "below", (column,), (Tie("w", ("s.embedding", "head")),))


def test_the_same_figure_makes_the_same_bytes_everywhere() -> None:
    text = draw(_figure())
    check_geometry(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "f3999ccee1e754320e243dab5353495a2cbbcbd712b1da9dd67cf58d857b8304"


@pytest.mark.parametrize("name", ["vaswani-base", "reference-3"])
def test_the_full_form_makes_the_same_picture(name: str) -> None:
    spec = zoo.read_spec(name)
    assert to_svg(zoo.read_spec(spec.to_toml())) == to_svg(spec)


def test_pictures_do_not_depend_on_the_process_and_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, zoo, zoo.drawing\n"
        "sys.stdout.write(zoo.drawing.to_svg(zoo.read_spec('vaswani-base')))\n"
        "sys.exit('torch' in sys.modules)"
    )
    made = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1] == to_svg(zoo.read_spec("vaswani-base")).encode()


def test_the_pictures_in_the_docs_are_what_isdrawn() -> None:
    images = sorted((ROOT / "docs" / "images").glob("*.svg"))
    assert images
    for image in images:
        again = f"draw it again: zoo show {image.stem} --svg docs/images/{image.name}"
        assert image.read_text() == to_svg(zoo.read_spec(image.stem)), again


# --- commands and notebooks ---------------------------------------------------------------------


def test_show_writes_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpt2.svg"
    assert run(["show", "gpt2", "--svg", str(file)]) == 0
    assert file.read_text() == to_svg(zoo.read_spec("gpt2"))
    assert capsys.readouterr().out == f"{file}\n"
    assert run(["show", "gpt2", "--svg", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "gpt2"


def test_a_picture_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["show", "gpt2", "--svg", str(tmp_path / "file" / "x.svg")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_notebook_shows_the_picture_and_the_sizes() -> None:
    spec = zoo.read_spec(SMALL)
    shown = spec._repr_html_()
    assert to_svg(spec) in shown
    assert f"{spec.n_parameters:,}" in shown
    ET.fromstring(shown)
    model = zoo.build(spec, device="meta")
    assert model._repr_html_() == shown


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0k"),
        (18_944_000, "18.9M"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (405_853_388_800, "406B"),
        (671_026_419_200_000, "671.0T"),
    ],
)
def test_numbers_are_short(count: int, text: str) -> None:
    assert short_number(count) == text


@given(st.text(max_size=200))
def test_texts_are_cut(text: str) -> None:
    assert len(cut(text)) <= 44
    assert text.startswith(cut(text).removesuffix("…"))

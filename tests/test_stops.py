"""Generated text that stops before texts, whichever tokens they come in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_values import add_noise
from test_text_pieces import TEXTS
from tokenizers import Tokenizer, decoders, models
from trials import Refused

import zoo
from zoo.cli import run
from zoo.running.stops import Stops
from zoo.running.text import Text
from zoo.running.tokenized import Tokenized

LETTERS = [*"abc \n", "ab", " c", "bca", "\u2581"]
SIZES = {"format": 1, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}


def before(text: str, stops: Sequence[str]) -> str:
    """The shortest beginning of a text that a stop text follows."""
    return next(
        (text[:n] for n in range(len(text)) if any(text.startswith(one, n) for one in stops)), text
    )


def reading(stops: Sequence[str], text: Text) -> Stops:
    found = Stops.read(stops, text)
    assert found is not None
    return found


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "numbers"])
@settings(max_examples=200)
@given(data=st.data())
def test_a_text_stops_with_the_token_that_completes_a_stop_text(
    name: str, data: st.DataObject
) -> None:
    text, last = TEXTS[name]
    ids = data.draw(st.lists(st.integers(0, last), min_size=1, max_size=40))
    whole = text.decode(ids)
    parts = st.integers(0, max(len(whole) - 1, 0)).flatmap(
        lambda start: st.integers(1, 8).map(lambda n: whole[start : start + n] or "a")
    )
    stops = reading(data.draw(st.lists(parts, min_size=1, max_size=3)), text)
    for n in range(1, len(ids) + 1):
        told = text.decode(ids[:n])
        ends = before(told, stops.texts) != told
        assert stops(ids[:n]) == ends
        assert stops.before(told) == before(told, stops.texts)
        if ends:
            break


@settings(max_examples=300)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_pieces_stop_and_none_is_told_too_early(parts: list[str], texts: list[str]) -> None:
    stops = reading(texts, TEXTS["words"][0])
    came = 0
    begun = ("".join(parts[:n]) for n in range(len(parts) + 1))
    whole = next((one for one in begun if before(one, texts) != one), "".join(parts))

    def coming() -> Iterator[str]:
        nonlocal came
        for part in parts:
            came += len(part)
            yield part

    told = ""
    for piece in stops.pieces_before(coming()):
        assert piece
        told += piece
        assert before(whole, texts).startswith(told)
        # Only what may become a stop text waits.
        left = whole[len(told) : came]
        assert any(one.startswith(left) or one in left for one in texts)
    assert told == before(whole, texts)


def test_what_is_decoded_grows_as_the_text() -> None:
    class Counting(Tokenized):
        decoded = 0

        def decode(self, ids: Sequence[int]) -> str:
            self.decoded += len(ids)
            return super().decode(ids)

    made = TEXTS["words"][0]
    assert isinstance(made, Tokenized)
    text = Counting(made.source, made.target, Path())
    stops, ids = reading(["\n\n"], text), [0, 1, 2, 3] * 250
    assert [n for n in range(1, len(ids) + 1) if stops(ids[:n])] == []
    assert text.decoded < 50 * 1000


def test_stop_texts_are_read_without_a_table_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 250,000 tokens it takes longer than a step of a small model."""
    monkeypatch.delattr(Tokenized, "tokens")
    assert reading(["a"], TEXTS["words"][0]).texts == ("a",)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder and a translator whose tokens are letters, one of two letters, and special ones."""
    folder = tmp_path_factory.mktemp("letters")
    tokens = [*LETTERS, "<eos>", "<turn>"]
    kinds = {
        "decoder": {"builder": "decoder", "vocab": len(tokens)},
        "pair": {
            "builder": "encoder_decoder",
            "source_vocab": len(tokens),
            "target_vocab": len(tokens),
        },
    }
    for name, kind in kinds.items():
        model = add_noise(zoo.build({**SIZES, **kind, "name": name}), 0.7, seed=1)
        zoo.save(model, folder / name)
        ids = {token: n for n, token in enumerate(tokens)}
        made = Tokenizer(models.BPE(ids, [("a", "b")], fuse_unk=False))
        made.decoder = decoders.Fuse()
        made.add_special_tokens(tokens[-2:])
        made.save(str(folder / name / "tokenizer.json"))
        stated = {"eos_token_id": ids["<eos>"], "decoder_start_token_id": 0}
        (folder / name / "generation_config.json").write_text(json.dumps(stated))
    return folder


ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"method": zoo.Greedy()},
    "sampling": {"method": zoo.Sampling(seed=3)},
    "lookup": {"method": zoo.Greedy(), "draft": zoo.Lookup()},
}
PROMPTS = ["abc", "a", "cab a", "b c"]


@pytest.mark.parametrize("name", ["decoder", "pair"])
@pytest.mark.parametrize("how", ASKED)
@pytest.mark.parametrize("at", [slice(5, 6), slice(5, 7), slice(3, 7)])
def test_each_text_of_a_batch_stops_by_itself(
    letters: Path, name: str, how: str, at: slice
) -> None:
    model = zoo.TextModel.load(letters / name)
    asked: dict[str, Any] = {"max_new_tokens": 30, **ASKED[how]}
    whole = model.run(PROMPTS[:1] if how == "sampling" else PROMPTS, **asked)
    stop = [whole[0]["text"][at], "never"]
    found = model.run(PROMPTS[: len(whole)], stop=stop, **asked)
    assert found[0]["ended"] == "stop"
    for prompt, one, two in zip(PROMPTS, whole, found, strict=False):
        ends = [
            n
            for n in range(1, len(one["ids"]) + 1)
            if any(text in model.text.decode(one["ids"][:n]) for text in stop)
        ]
        ids = one["ids"][: ends[0]] if ends else one["ids"]
        assert two["ids"] == ids
        assert two["ended"] == ("stop" if ends else one["ended"])
        assert two["text"] == before(model.text.decode(ids), stop)
        assert "".join(model.stream(prompt, stop=stop, **asked)) == two["text"]


@pytest.mark.parametrize("name", ["decoder", "pair"])
def test_beams_stop_each_by_itself(letters: Path, name: str) -> None:
    """As at the tokens that make the text, which are of one letter or of two."""
    model = zoo.TextModel.load(letters / name)
    beam = zoo.Beam(size=3, n_answers=3)
    (whole,) = model.run(["abc"], method=beam, max_new_tokens=8)
    stop = whole["text"][2]
    (found,) = model.run(["abc"], method=beam, max_new_tokens=8, stop=[stop])
    for one in (found, *found["others"]):
        ends = stop in model.text.decode(one["ids"])
        assert one["ended"] == "stop" or not ends
        assert one["text"] == before(model.text.decode(one["ids"]), [stop]).removesuffix("<eos>")
        assert stop not in model.text.decode(one["ids"][:-1])
    tokens = [id_ for id_ in range(len(LETTERS)) if stop in model.text.decode([id_])]
    how = {"start": 0} if name == "pair" else {}
    (wanted,) = zoo.generate(
        model.transformer,
        [model.text.encode("abc")],
        max_new_tokens=8,
        method=beam,
        eos=len(LETTERS),
        stop=[[id_] for id_ in tokens],
        **how,
    )
    assert found["ended"] == "stop"
    assert [found["ids"], *(one["ids"] for one in found["others"])] == [
        [*one.ids] for one in (wanted, *wanted.others)
    ]


def test_a_special_token_stops_a_text_too(letters: Path) -> None:
    model = zoo.TextModel.load(letters / "decoder")
    asked: dict[str, Any] = {"max_new_tokens": 60, "method": zoo.Sampling(), "eos": 0}
    (whole,) = model.run(["abc"], **asked)
    turn = len(LETTERS) + 1
    (found,) = model.run(["abc"], stop=["<turn>"], **asked)
    assert found["ended"] == "stop"
    assert found["ids"] == whole["ids"][: whole["ids"].index(turn) + 1]
    assert found["text"] == model.text.decode(found["ids"])
    assert "".join(model.stream("abc", stop=["<turn>"], **asked)) == found["text"]
    with pytest.raises(zoo.InputError, match="has the special token '<turn>' within"):
        model.run(["abc"], stop=["<turn>\n"])


def test_stop_texts_of_the_command(
    letters: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(letters / "decoder")
    (whole,) = zoo.TextModel.load(folder).run(["abc"], max_new_tokens=30)
    stop = whole["text"][4:6]
    asked = ["run", folder, "abc", "-n", "30", "--stop", stop, "--stop", "never"]
    assert run(asked) == 0
    told = capsys.readouterr().out
    assert told == before(whole["text"], [stop]) + "\n"
    assert run([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == "stop"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(asked) == 0
    assert capsys.readouterr().out == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--stop", ""], "`--stop` is an empty text, at which everything stops"),
        (["--stop", "\udcff"], "is not a text that can be written in UTF-8"),
    ],
)
def test_stop_texts_that_are_refused(
    letters: Path, refused: Refused, options: list[str], told: str
) -> None:
    assert told in refused("run", str(letters / "decoder"), "abc", *options)


def test_what_is_no_list_of_stop_texts(letters: Path, project: Path) -> None:
    model = zoo.TextModel.load(letters / "decoder")
    for stop in ("ab", "", None, 3):
        with pytest.raises(zoo.InputError, match="`stop` is a list of texts, of one text too"):
            model.run(["abc"], stop=stop)  # type: ignore[arg-type]
        with pytest.raises(zoo.InputError, match="`stop` is a list of texts, of one text too"):
            model.stream("abc", stop=stop)  # type: ignore[arg-type]
    with pytest.raises(zoo.InputError, match="a text is a string, not 3"):
        model.run(["abc"], stop=[3])  # type: ignore[list-item]
    assert model.run(["abc"], stop=[]) == model.run(["abc"])
    plain = zoo.build({**SIZES, "builder": "decoder", "vocab": 9, "name": "plain"})
    zoo.save(plain, project / "plain")
    with pytest.raises(zoo.InputError, match=r"no tokenizer.json, so there is no text to `stop`"):
        zoo.TextModel.load("plain").run(["3 4"], stop=["5"])
    encoder = zoo.build({**SIZES, "builder": "encoder", "vocab": 9, "head": "mlm", "name": "mlm"})
    zoo.save(encoder, project / "mlm")
    with pytest.raises(zoo.InputError, match="mlm generates no text: leave `stop` out"):
        zoo.TextModel.load("mlm").run(["3 4"], mask_id=3, stop=["5"])

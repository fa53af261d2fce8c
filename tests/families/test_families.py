"""Every family, held against transformers on tiny random checkpoints."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import statistics
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import chain
from pathlib import Path

import pytest
import torch
from breadth import one_then_slow, slow
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from families.cases import Case, all_cases
from families.checkpoints import make_config
from families.conformance import check, make_truth, registry
from zoo.families.lint import lint
from zoo.families.registered import Families
from zoo.families.rotary import ROTARY_KEYS

ROOT = Path(__file__).parents[2]
FAMILIES = Families(registry())
SERVED = FAMILIES.by_model_type
COMMON_WORDS = {"beam", "clip", "opt", "flint", "mpt", "phi"}
"""Names of families that are also words, of beam search, a bound and the like."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The models are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


READ = {name: case for name, case in all_cases().items() if case.model_type in SERVED}


FURTHER = {name for name, case in READ.items() if name != case.model_type}
"""The cases that are variants of another one."""


@pytest.mark.parametrize(
    "case",
    [
        slow(pytest.param(case, id=name)) if name in FURTHER else pytest.param(case, id=name)
        for name, case in READ.items()
    ],
)
def test_family(case: Case, tmp_path: Path) -> None:
    """The logits are those of transformers, on every input; the export is the checkpoint, byte for
    byte, and transformers makes the same of it; and the config may leave out its defaults."""
    report = check(make_truth(case, tmp_path / "original"), tmp_path)
    assert report.differences
    assert report.faults == []


def test_every_model_type_has_a_family_and_a_case() -> None:
    assert set(SERVED) == {case.model_type for case in all_cases().values()}


@pytest.mark.parametrize(
    "model_type", one_then_slow(sorted({case.model_type for case in READ.values()}))
)
def test_family_lints(model_type: str, tmp_path: Path) -> None:
    """Every tensor is made by exactly one rule, however a checkpoint is saved."""
    cases = [case for case in READ.values() if case.model_type == model_type]
    case = max(cases, key=lambda case: "Classification" in case.model_class)
    make_config(case).save_pretrained(tmp_path)
    linted = lint(FAMILIES.family(SERVED[model_type]), registry(), tmp_path / "config.json")
    assert linted.forms > 0


def test_many_model_types_are_read() -> None:
    assert len(SERVED.keys() & CONFIG_MAPPING_NAMES.keys()) >= 110


def test_families_are_short() -> None:
    """A family that states no rule of its own differs by knobs from the one that it extends."""
    texts = {name: path.read_text() for name, path in FAMILIES.paths.items()}
    lines = {name: FAMILIES.family(name).n_lines for name in texts}
    assert statistics.median(lines.values()) <= 45
    knobs = [n for n, text in texts.items() if "\nextends = " in text and "[weights" not in text]
    assert len(knobs) > 20
    assert {name: lines[name] for name in knobs if lines[name] > 15} == {}


def test_python_names_no_family() -> None:
    """Nothing but data tells one family from another: no name or string in the code is, or holds
    as a word, that of a family or a model type. Texts that explain may cite models."""
    names = {*FAMILIES.paths, *SERVED} - COMMON_WORDS
    words = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(names)))})(?![\w-])")
    files = chain((ROOT / "zoo").rglob("*.py"), (ROOT / "plugins").glob("*/*.py"))
    found = {
        f"{path.relative_to(ROOT)}:{line}: {match[1]}"
        for path in files
        for line, text in code_words(ast.parse(path.read_text()))
        if (match := words.search(text))
    }
    assert found == set()


def code_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name and string of a module with its line, but for strings that stand alone, which are
    docstrings, and for the defaults of slots, which are kinds of components."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id == "Slot":
            alone |= {id(given.value) for given in call.keywords if given.arg == "default"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Constant) and id(node) not in alone:
            yield node.lineno, str(node.value)


DEFAULTS = runpy.run_path(str(ROOT / "tools/family_defaults.py"))


def test_defaults_are_those_of_transformers() -> None:
    for model_type, found in json.loads(DEFAULTS["FILE"].read_text()).items():
        del found["classes"]
        assert found == json.loads(json.dumps(DEFAULTS["fields"](model_type)))


@pytest.mark.parametrize("model_type", ["llama", "roberta"])
def test_classes_are_those_of_transformers(model_type: str) -> None:
    stated = json.loads(DEFAULTS["FILE"].read_text())[model_type]
    assert stated == DEFAULTS["described"](model_type)


@pytest.mark.slow
def test_the_file_of_defaults_is_current() -> None:
    assert DEFAULTS["FILE"].read_text() == DEFAULTS["text"]()


OF_BACKBONES = {"out_features", "out_indices", "segmentation_indices"}
"""Keys that say which states a backbone gives to a model of something else."""
NOT_USED = {"fsmt": {"decoder"}, "mistral": {"layer_types"}, "ministral3": {"layer_types"}}
"""Keys that `transformers` takes out of a configuration and has no use for."""
OF_QUANTIZATION = {"quantization_config", "expert_dtype"}
"""Keys that say how weights are stored, which is no matter of a family."""
TAKEN = re.compile(r"""kwargs\.(?:pop|get)\(\s*"(\w+)"|"(\w+)" in kwargs|getattr\(self, "(\w+)\"""")


def test_what_configurations_hold_beside_their_fields_is_known() -> None:
    """Older and published words, which no list of defaults has: the family reads them, or says that
    they change nothing."""
    unknown = {}
    for model_type in SERVED.keys() & CONFIG_MAPPING_NAMES.keys():
        family = FAMILIES.family(SERVED[model_type])
        names, keys = family.needed
        known = FAMILIES.vocabulary.inert | family.ignores | family.defaults.keys()
        known |= family.fields | family.strings | keys | OF_BACKBONES | OF_QUANTIZATION
        known |= ROTARY_KEYS if "rope" in names else set()
        config = CONFIG_MAPPING[model_type]
        inner = [one for one in config.sub_configs.values() if is_dataclass(one)]
        sources = [inspect.getsource(one) for one in (config, *inner)]
        pairs = [pair for source in sources for pair in TAKEN.findall(source)]
        taken = {key for pair in pairs for key in pair if key}
        if found := taken - known - NOT_USED.get(model_type, set()):
            unknown[model_type] = found
    assert unknown == {}


def test_page_of_families_is_current() -> None:
    """In all but the differences, which are not the same on every machine."""
    made = runpy.run_path(str(ROOT / "tools/family_table.py"))
    found = (ROOT / "docs/families.md").read_text()
    current = made["page"](dict.fromkeys(all_cases(), 0.0))
    assert without_numbers(found) == without_numbers(current)


def without_numbers(page: str) -> str:
    """A page without the differences in its table."""
    return re.sub(r"\| \d\.\de[-+]\d\d \|$", "|", page, flags=re.MULTILINE)

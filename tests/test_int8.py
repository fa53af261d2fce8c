"""Weights in 8 bits, against plain PyTorch with the numbers that they stand for."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import zoo
from zoo.cli import run
from zoo.int8 import WIDTH, Int8Embedding, Int8Linear, Int8Matrix
from zoo.linear import Linear
from zoo.transformer import Transformer

ROOT = Path(__file__).parent.parent
SMALL = {"format": 1, "name": "m", "n_layers": 2, "d_model": 16, "n_heads": 4, "d_ff": 24}
DECODER = {**SMALL, "builder": "decoder", "vocab": 150}
TIED = {"head": {"kind": "linear", "tied": True}}
LATENT = {"kind": "latent", "kv_lora_rank": 6, "q_lora_rank": "none", "qk_nope_head_dim": 4}
SPECS: dict[str, dict[str, Any]] = {
    "tied": {**DECODER, **TIED},
    "with biases": {**DECODER, "attention": {"kind": "multi_head", "bias": True}},
    "grouped": {**DECODER, "position": "rotary", "n_kv_heads": 2, "ffn": "glu"},
    "latent": {
        **DECODER,
        "position": "rotary",
        "attention": {**LATENT, "qk_rope_head_dim": 4, "v_head_dim": 4},
    },
    "experts": {**DECODER, "ffn": {"kind": "moe", "n_experts": 4, "top_k": 2, "expert": "glu"}},
    "shared layers": {**DECODER, "decoder": {"share_layers": [0, 0]}},
    "nothing but matrices": {**DECODER, "norm": "none", "bias": False},
    "pair": {**SMALL, "builder": "encoder_decoder", "source_vocab": 150, "target_vocab": 140},
}


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.generation.quantize.LARGE", 1)


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """The matrix that weights in 8 bits stand for, by NumPy's rounding, in float64."""
    w = weight.detach().to(torch.promote_types(weight.dtype, torch.float32)).numpy()
    scale = (abs(w).max(1, keepdims=True) / 127).astype("float32")
    return torch.from_numpy((w / scale).round().astype("float64") * scale)


def models(spec: dict[str, Any], dtype: torch.dtype) -> tuple[Transformer, Transformer]:
    """A model with the rounded numbers as floats, and one with weights in 8 bits."""
    plain = zoo.build(spec, dtype=dtype).eval()
    quantized = zoo.build(spec, dtype=dtype).eval()
    zoo.quantize_weights(quantized)
    with torch.no_grad():
        done = set()
        for module in plain.modules():
            if type(module) in (Linear, nn.Embedding) and id(module.weight) not in done:
                done.add(id(module.weight))
                module.weight.copy_(rounded(module.weight))
    return plain, quantized


finite = st.floats(-1e30, 1e30, allow_subnormal=False)


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(finite, min_size=n, max_size=n))))
def test_no_number_is_off_by_more_than_half_of_the_scale(rows: list[list[float]]) -> None:
    if not rows:
        return
    weight = torch.tensor(rows, dtype=torch.float64)
    matrix = Int8Matrix(weight)
    scale = weight.abs().amax(1) / 127
    torch.testing.assert_close(matrix.scale.double(), scale, rtol=1e-6, atol=1e-38)
    error = (weight - matrix.dequantized()).abs()
    assert (error <= matrix.scale.double()[:, None] / 2 * (1 + 1e-6) + 1e-38).all()


def test_ties_are_rounded_to_even_and_a_row_of_zeros_stays_zero() -> None:
    weight = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5], [0.0] * 6])
    matrix = Int8Matrix(weight)
    assert matrix.dequantized().tolist() == [[127, 0, 2, 2, 0, -2], [0] * 6]
    assert matrix.scale.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_rows", [1, 5, WIDTH, 300, 20 * WIDTH])
def test_products(n_rows: int, bias: bool, dtype: torch.dtype) -> None:
    """For any number of rows of x: one, few, and many, which are computed in another way."""
    torch.manual_seed(0)
    linear = Linear(33, n_rows, bias=bias).to(dtype)
    expected = rounded(linear.weight)
    model = quantized(linear)
    for shape in ((33,), (1, 33), (2, 1, 33), (8, 33), (9, 33), (4, 40, 33), (0, 33)):
        x = torch.randn(shape).to(dtype)
        own = None if linear.bias is None else linear.bias.double()
        wanted = torch.nn.functional.linear(x.double(), expected, own)
        found = model(x)
        assert found.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=20 * min(eps, 1e-6))


def quantized(linear: Linear) -> nn.Module:
    """The map, as the head of a model."""
    model = zoo.build(DECODER)
    model.head.out = copy.deepcopy(linear)
    zoo.quantize_weights(model)
    assert type(model.head.out) is Int8Linear
    return model.head.out


@pytest.mark.parametrize("name", SPECS)
def test_a_model_computes_with_the_rounded_numbers(name: str) -> None:
    plain, model = models(SPECS[name], torch.float64)
    ids = torch.tensor([[5, 9, 33, 139], [7, 4, 2, 1]])
    inputs = (ids, ids) if name == "pair" else (ids,)
    torch.testing.assert_close(model(*inputs), plain(*inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Beam(size=3), zoo.Sampling(seed=3)])
@pytest.mark.parametrize("name", SPECS)
def test_a_model_generates_with_the_rounded_numbers(name: str, method: Any) -> None:
    """With its cache, for one prompt and for several of several lengths."""
    plain, model = models(SPECS[name], torch.float64)
    start = 1 if name == "pair" else None
    for prompts in ([[5, 9, 33]], [[5, 9, 33], [7], [8, 149, 3, 4, 1]]):
        found, expected = (
            zoo.generate(one, prompts, max_new_tokens=6, method=method, start=start)
            for one in (model, plain)
        )
        assert [one.ids for one in found] == [one.ids for one in expected]


def test_what_is_quantized_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.generation.quantize.LARGE", 16 * 24)
    model = zoo.build(SPECS["experts"] | TIED)
    zoo.quantize_weights(model)
    kinds = {name: type(module) for name, module in model.named_modules()}
    assert kinds["decoder.embed.tokens"] is Int8Embedding
    assert kinds["head.out"] is Int8Linear
    assert kinds["decoder.layers.0.self_attn.q_proj"] is Linear  # 16 x 16: too small
    assert model.decoder.layers[0].ffn.experts.up_proj.weight.dtype == torch.float32


def test_a_tied_table_is_one_and_stays_one() -> None:
    model = zoo.build(SPECS["tied"])
    zoo.quantize_weights(model)
    for one in (model, copy.deepcopy(model), copy.deepcopy(model).to(torch.bfloat16)):
        assert one.head.out.matrix is one.decoder.embed.tokens.matrix
        assert one.head.out.matrix.codes.shape == (2, 16, WIDTH + 8)


def test_copies_and_states_are_of_8_bits() -> None:
    spec = SPECS["tied"]
    model, other = zoo.build(spec), zoo.build(spec, seed=1)
    floats = model.state_dict()
    for one in (model, other):
        zoo.quantize_weights(one)
    expected = zoo.generate(model, [[1, 2]], max_new_tokens=8)
    assert zoo.generate(copy.deepcopy(model), [[1, 2]], max_new_tokens=8) == expected
    state = model.state_dict()
    assert "head.out.weight" not in state
    assert state["head.out.matrix.codes"].dtype == torch.uint8
    other.load_state_dict(state)
    assert zoo.generate(other, [[1, 2]], max_new_tokens=8) == expected
    with pytest.raises(RuntimeError, match=r"head\.out\.matrix\.codes"):
        model.load_state_dict(floats)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_cast_leaves_the_scales(dtype: torch.dtype) -> None:
    """A scale in bfloat16 would be off by up to 1/256, and with it each number of its row."""
    model = zoo.build(SPECS["tied"])
    zoo.quantize_weights(model)
    matrix, before = model.head.out.matrix, model.head.out.weight
    model.to(dtype)
    assert matrix.scale.dtype == torch.float32
    assert model(torch.tensor([[1, 2]])).dtype == dtype
    assert torch.equal(model.head.out.weight, before.to(dtype)) or dtype == torch.float64
    torch.testing.assert_close(model.head.out.weight.float(), before, rtol=1e-2, atol=1e-6)


def test_floats_are_freed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build(DECODER, dtype=torch.float32)
    alive = [weakref.ref(p) for p in model.parameters() if p.dim() == 2 and p.shape[0] != 1024]
    n_large = sum(type(one) in (Linear, nn.Embedding) for one in model.modules())
    counts: list[int] = []
    init = Int8Matrix.__init__

    def counted(self: Int8Matrix, weight: torch.Tensor) -> None:
        counts.append(sum(one() is not None for one in alive))
        init(self, weight)

    monkeypatch.setattr(Int8Matrix, "__init__", counted)
    zoo.quantize_weights(model)
    assert counts == list(range(counts[0], counts[0] - n_large, -1))


def test_a_quarter_of_the_memory() -> None:
    sizes = {"d_model": 256, "vocab": 2048, "d_ff": 1024, "position": "rotary"}
    model = zoo.build(DECODER | sizes | TIED)

    def n_bytes() -> int:
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
        return sum(tensor.nbytes for tensor in tensors.values())

    before = n_bytes()
    zoo.quantize_weights(model)
    assert n_bytes() < 0.28 * before


def test_the_spec_stays() -> None:
    model = zoo.build(DECODER)
    before = model.spec.digest
    zoo.quantize_weights(model)
    zoo.quantize_weights(model)  # there is nothing left to do
    assert model.spec.digest == before


def test_arranged_copies_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.linear.LARGE", 1)
    plain, _ = models(DECODER, torch.float32)
    model = zoo.build(DECODER)
    zoo.arrange_weights(model, rows=1)
    zoo.quantize_weights(model)
    assert all(getattr(module, "packed", None) is None for module in model.modules())
    ids = torch.tensor([[5, 9, 33]])
    torch.testing.assert_close(model(ids), plain(ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("number", [-1, 150, WIDTH * 2 - 1, 10**9])
def test_ids_outside_the_vocabulary(number: int) -> None:
    model = zoo.build(DECODER)
    zoo.quantize_weights(model)
    with pytest.raises(IndexError, match=f"150 tokens, with ids from 0 to 149.* is {number}"):
        model(torch.tensor([[1, number]]))


def test_hooks_see_the_module() -> None:
    model = zoo.build(DECODER)
    seen: list[torch.Size] = []
    up = model.decoder.layers[0].ffn.up_proj
    up.register_forward_hook(lambda _, __, output: seen.append(output.shape))
    zoo.quantize_weights(model)
    model(torch.tensor([[1, 2]]))
    assert seen == [(1, 2, 24)]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_graph_has_the_same_results(rows: int) -> None:
    linear = quantized(Linear(33, 300))
    x = torch.randn(rows, 33)
    program = torch.export.export(linear, (x,))
    torch.testing.assert_close(program.module()(x), linear(x), rtol=0, atol=1e-5)
    torch.compiler.reset()
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), linear(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 8, 9])
def test_torchs_own_counter_sees_the_products(rows: int) -> None:
    linear, counter = quantized(Linear(33, 2 * WIDTH)), FlopCounterMode(display=False)
    with counter:
        linear(torch.randn(rows, 33))
    assert counter.get_total_flops() == 2 * rows * 33 * 2 * WIDTH


def saved(model: Transformer, folder: Path) -> None:
    zoo.save(model, folder / "m")


def arranged(model: Transformer, folder: Path) -> None:
    zoo.arrange_weights(model, rows=1)


def trained(model: Transformer, folder: Path) -> None:
    model.requires_grad_(True)
    model(torch.tensor([[1, 2]])).sum().backward()


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (saved, "the weights of m are in 8 bits, and a file holds the floats of a spec"),
        (arranged, "the weights of m are in 8 bits, in an order of their own"),
        (trained, "a model with weights in 8 bits is not trained"),
    ],
)
def test_what_such_a_model_cannot_do(
    use: Callable[[Transformer, Path], None], told: str, tmp_path: Path
) -> None:
    model = zoo.build(DECODER)
    zoo.quantize_weights(model)
    with pytest.raises(zoo.ZooError, match=told):
        use(model, tmp_path)
    assert not any(tmp_path.iterdir())


def not_finite(model: Transformer) -> None:
    with torch.no_grad():
        model.head.out.weight[3, 4] = float("nan")


def infinite(model: Transformer) -> None:
    with torch.no_grad():
        model.head.out.weight[3, 4] = -float("inf")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (not_finite, r"`head\.out\.weight` of m holds NaN or infinity"),
        (infinite, r"`head\.out\.weight` of m holds NaN or infinity"),
        (lambda model: model.to("meta"), "of m is on the meta device: it has no values"),
    ],
)
def test_what_cannot_be_quantized_is_left_as_it_is(
    change: Callable[[Transformer], Any], told: str
) -> None:
    model = zoo.build(DECODER)
    change(model)
    with pytest.raises(zoo.InputError, match=told):
        zoo.quantize_weights(model)
    assert not any(isinstance(module, Int8Matrix) for module in model.modules())


TRANSLATOR = ROOT / "pretrained" / "transformer-small.tatoeba-de-en"


def test_the_command_translates_in_8_bits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[Transformer] = []
    quantize = zoo.quantize_weights
    monkeypatch.setattr(
        "zoo.generation.quantize_weights", lambda model: (quantize(model), done.append(model))
    )
    text = "Ich möchte ein Bier."
    assert run(["run", str(TRANSLATOR), text, "--weights", "int8", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == "I want a beer.\n"
    assert any(isinstance(module, Int8Linear) for module in done[0].modules())


def test_a_score_in_8_bits(capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = ROOT / "pretrained" / "beer-de-en", ROOT / "recipes" / "beer-de-en"
    assert zoo.score(folder, data=data, weights="int8")["bleu"] == pytest.approx(100)
    command = ["score", str(folder), "--data", str(data), "--weights", "int8", "--json"]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] == pytest.approx(100)


def test_a_perplexity_in_8_bits(tmp_path: Path) -> None:
    """It is that of a model with the rounded numbers as floats."""
    text = "to be or not to be"
    vocabulary = {letter: number for number, letter in enumerate(sorted(set(text)))}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    plain, _ = models(DECODER, torch.float32)
    for name, model in (("m", zoo.build(DECODER)), ("rounded", plain)):
        zoo.save(model, tmp_path / name)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    (tmp_path / "text").write_text(text)
    of_floats, of_rounded = (
        zoo.score(tmp_path / name, data=tmp_path / "text") for name in ("m", "rounded")
    )
    found = zoo.score(tmp_path / "m", data=tmp_path / "text", weights="int8")["perplexity"]
    assert found == pytest.approx(of_rounded["perplexity"], rel=1e-6)
    assert found != pytest.approx(of_floats["perplexity"], rel=1e-6)


def test_other_weights_are_refused() -> None:
    with pytest.raises(zoo.InputError, match="`weights` are \"int8\", or as loaded, not 'int4'"):
        zoo.score(TRANSLATOR, weights="int4")  # type: ignore[arg-type]

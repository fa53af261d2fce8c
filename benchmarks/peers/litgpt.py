"""Models of `litgpt`. It has rotary positions alone, so only a Llama can have the same weights; its
GPT-2 has the same sizes, and no positions."""

from __future__ import annotations

import torch
from litgpt import GPT, Config
from litgpt.generate.base import batched_generate_fn, generate
from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama
from torch import nn
from transformers import LlamaForCausalLM


def gpt2(*, layers: int, width: int, heads: int, vocab: int, length: int) -> GPT:
    """A decoder of GPT-2's sizes, with a tied head."""
    config = Config(
        block_size=length,
        vocab_size=vocab,
        padded_vocab_size=vocab,
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        rotary_percentage=0.0,
        parallel_residual=False,
        attn_bias=True,
        gelu_approximate="tanh",
    )
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    return model.eval()


def llama(theirs: LlamaForCausalLM) -> nn.Module:
    """A decoder with the weights of a Llama."""
    other = theirs.config
    config = Config(
        block_size=other.max_position_embeddings,
        vocab_size=other.vocab_size,
        padded_vocab_size=other.vocab_size,
        n_layer=other.num_hidden_layers,
        n_head=other.num_attention_heads,
        n_query_groups=other.num_key_value_heads,
        n_embd=other.hidden_size,
        head_size=other.head_dim,
        intermediate_size=other.intermediate_size,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=other.rms_norm_eps,
        mlp_class_name="LLaMAMLP",
    )
    model = GPT(config)
    tensors: dict[str, torch.Tensor] = {}
    copy_weights_hf_llama(config, {}, tensors, theirs.state_dict())
    model.load_state_dict(tensors)
    return model.eval()


def greedy(model: GPT, prompt: torch.Tensor, n: int) -> object:
    """The most probable `n` tokens after a prompt (batch, length), with a cache made for them."""
    batch, length = prompt.shape
    model.max_seq_length = length + n
    weights = model.lm_head.weight
    model.set_kv_cache(batch, device=weights.device, dtype=weights.dtype)
    if batch == 1:
        return generate(model, prompt[0], length + n, temperature=0.0)
    found = batched_generate_fn(
        model,
        prompt,
        length + n,
        sample_args={"temperature": 0.0},
        include_prompt=False,
        include_eos=True,
    )
    return list(found)

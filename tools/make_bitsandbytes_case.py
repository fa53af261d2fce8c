"""Write tests/golden/bitsandbytes.safetensors: tiny checkpoints as bitsandbytes quantizes them,
and the floats that it makes of them, so that the tests need no bitsandbytes.

    pip install bitsandbytes==0.50.2
    python tools/make_bitsandbytes_case.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

OUTPUT = Path(__file__).parent.parent / "tests" / "golden" / "bitsandbytes.safetensors"

# Blocks of 64 end within rows, and the last one is smaller: 16 x 25 numbers.
CONFIG = LlamaConfig(
    vocab_size=19,
    hidden_size=16,
    intermediate_size=25,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    eos_token_id=None,
    bos_token_id=None,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "nf4 stored as bfloat16": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": torch.bfloat16,
    },
    "int8": {"load_in_8bit": True},
}


def floats(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What bitsandbytes makes of the quantized weights of a model."""
    found: dict[str, torch.Tensor] = {}
    for name, weight in model.named_parameters():
        if getattr(weight, "quant_state", None) is not None:
            found[name] = bnb.dequantize_4bit(weight.data, weight.quant_state)
        elif weight.dtype == torch.int8:
            found[name] = bnb.int8_vectorwise_dequant(weight.data, weight.SCB).bfloat16()
    return found


def main() -> None:
    tensors: dict[str, torch.Tensor] = {}
    stated: dict[str, Any] = {}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(CONFIG).bfloat16().save_pretrained(folder)
        for variant, settings in VARIANTS.items():
            quantization = BitsAndBytesConfig(**settings)
            model = AutoModelForCausalLM.from_pretrained(
                folder, quantization_config=quantization, device_map="cpu", dtype=torch.bfloat16
            )
            with tempfile.TemporaryDirectory() as quantized:
                model.save_pretrained(quantized)
                stored = load_file(Path(quantized) / "model.safetensors")
                config = json.loads((Path(quantized) / "config.json").read_text())
            stated[variant] = config["quantization_config"]
            tensors |= {f"{variant}/{name}": tensor for name, tensor in stored.items()}
            tensors |= {f"{variant}: floats/{name}": t for name, t in floats(model).items()}
    OUTPUT.parent.mkdir(exist_ok=True)
    metadata = {"config": CONFIG.to_json_string(), "stated": json.dumps(stated)}
    save_file(tensors, OUTPUT, metadata=metadata)


if __name__ == "__main__":
    main()

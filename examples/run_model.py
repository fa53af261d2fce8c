"""Load a model that `zoo build` wrote and run it once: python examples/run_model.py FOLDER."""

import sys

import torch

import zoo

model = zoo.load(sys.argv[1]).eval()
source = torch.tensor([[11, 42, 7, 3]])
target = torch.tensor([[1, 5]])
with torch.no_grad():
    logits = model(source, target)
print(f"{model.spec.name}: source {tuple(source.shape)}, target {tuple(target.shape)}")
print(f"logits {tuple(logits.shape)}, next token {logits[0, -1].argmax().item()}")

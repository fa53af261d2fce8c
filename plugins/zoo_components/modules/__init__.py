"""The PyTorch modules of the components, in files of the same names as the descriptions.

What they share, or are made of, is in further files:

stack_inputs.py, padding.py   what a stack is called with, and what becomes of padding
unpadding.py                  leaving padding out of maps of single tokens
inserting.py                  putting states of images or sounds into texts
tying.py                      tensors that are one
masks.py, scores.py           which keys a query sees, and softmax(q k^T) v
global_tokens.py              multi-head attention with global tokens
decay.py, delta_rule.py       sums over earlier tokens, which fade; the gated delta rule
frequencies.py, constant.py   the frequencies of rotary positions, and numbers as tensors
routing.py, experts.py        the parts of a mixture of experts
dropout.py                    dropout that costs nothing where there is none
"""

"""Measure how fast models are on this machine: `zoo.bench` and `zoo bench`.

bench.py     checks what is asked, builds the models, and makes the rows
tasks.py     one run of a forward pass, of a step of training, or of generation
rounds.py    the runs of all models in turn, and their times
memory.py    the memory that a run takes beside the weights
machine.py   the processor, the threads, the versions
report.py    the rows as data and as text
"""

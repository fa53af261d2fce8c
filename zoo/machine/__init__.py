"""The machine on which models run: its devices, its memory and its cores.

devices.py         where a model is
memory.py          memory for weights; memory_limit.py, how much there may be
threads.py         work that all cores share
processor.py       whose processor it is
prepacking.py      copies of weights as processors multiply with them fastest
"""

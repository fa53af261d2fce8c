"""Writing, reading and checking of weights on disk, in one safetensors file or in shards.

held_tensors.py         the tensors that a model holds; dtypes.py, their dtype
file.py                 the file: its header and its layout; header_json.py, the JSON of any header
shards.py               several files, with their index
writer.py               writes them; output_names.py, under which names
open_file.py            a file that is open for reading
reader.py               the header and the bytes of each tensor; tensor_reader.py, whole tensors
matching.py             tensors chosen by patterns of their names
load_report.py          what `zoo.load` tells of each

`zoo.saving` and `zoo.loading` use them.
"""

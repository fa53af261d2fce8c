"""The components that ship with the zoo, registered in the same way as third-party ones.

The files here are descriptions: pydantic models that import no torch. Their modules are in
`zoo_components.modules`, in files of the same names. They do not use
`from __future__ import annotations`: pydantic has to evaluate the annotations of fields, and
compiling each of them from a string would be a good part of the run time of `zoo show`.

`registry.toml` names the files of components. The others hold what several descriptions share:

stack.py                the encoder and decoder stacks, of which builders are made; of its layers,
                        schemes.py and attended.py check the position schemes, sharing.py the shared
                        weights, and key_sharing.py finds whose keys a layer attends to
inserting.py            decoders in whose texts states of images or sounds stand
heads.py                the numbers of attention's heads; projections.py, which maps have a bias
recurrent.py            mixers of tokens with a state
activation.py           activations by name; optional.py, numbers that "none" switches off
"""

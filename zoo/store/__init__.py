"""The local store of published models: from a name to its files.

found_spec.py, found_weights.py    what `zoo show` and `zoo.load` call with a path or a name
lookup.py                          from a name to a ref, which lists the files of one version
pulling.py                         brings a model into the store
files.py, refs.py, collecting.py   the folders of the store

`zoo.publishing` publishes models and checks those of the store. The commands are in
`zoo.cli.store`.
"""

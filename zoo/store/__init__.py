"""The local store of published models: from a name to its files.

found_spec.py, found_weights.py     what `zoo show` and `zoo.load` call with a path or a name
pretrained.py, manifest_text.py     the file of a published model, read and written
lookup.py, stated.py                from a name to a ref, which lists the files of one version; and
                                    whether it is what the registry states
pulling.py, fetching.py             brings a model into the store, file by file
first_use.py                        the digests of a model that is trusted on first use
addresses.py                        files at an address, to be imported
files.py, refs.py, collecting.py    the folders of the store

`zoo.publishing` publishes models and checks those of the store. The commands are in
`zoo.cli.store`.
"""

"""Tools for plugin authors: `zoo init`, `zoo plugin new` and `zoo plugin check`.

project.py              files of projects, and of new components
check.py, report.py     the checks of a plugin, in their order, and their results
hosts.py, sizes.py      the smallest spec around a component
parts.py                what is put inside blocks and builders; part_modules.py, its modules
inputs.py               small random inputs
assertions.py           what outputs have to be

Before the component is called:
torch_free.py           the file is imported without torch; written.py reads it
structure.py, state.py  the fields and the tensors

Promises about its calls:
promises.py             most of them
branches.py             the branches of a block
passed_on.py            what blocks and builders pass on to their parts, and say of them
learning.py             training
precision.py            dtypes
cuts.py, cut_worker.py  parts of a module, in several processes
elsewhere.py            the same in other processes; workers.py, these processes
sources.py              a source of published models, which is no component

How a module is called, and what holds of each output:
driver.py, drivers.py   what drivers have in common, and which one is for a model
layers.py               attention and blocks: attending.py; continuing.py, with a cache; tape.py,
                        recorded
by_token.py             norms, feed-forward networks and heads
embedding.py            embeddings
position.py             position schemes
whole_models.py         builders

`zoo.testing` makes the checks available to the tests of authors.
"""

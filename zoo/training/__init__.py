"""From a recipe to a trained model: `zoo train recipe.toml`.

train.py, run.py        joins all the steps; a run in its folder, and its results
checking.py             a recipe that is checked without training: `zoo validate`

The recipe:
recipe.py               from TOML to tables; overrides.py, other values than the file's
tables.py               the tables; data_tables.py those of the data, optimizer_tables.py those of
                        the optimiser and the schedule
start.py, sides.py      the model that it names, and what this learns of which data
recipe_data.py          the data that it names; recipe_tokens.py, the tokenizers; published.py, the
                        special tokens of a saved model

From data to batches:
lines.py, fields.py     lines of files and of JSON; hub.py, rows of the package `datasets`; line.py,
                        what all of these become
chats.py                chats as texts, with the answers that are learned
data.py, example.py     from lines to examples; split.py, those that are held out
labels.py               the labels of a classifier
tokens.py               a model's tokenizers; reader_tokens.py, that of one that reads whole texts
objective.py            what a model learns: examples as ids, in batches; of one that generates it
                        is text_objective.py, of one that reads whole texts reader_objective.py
masking.py              the tokens that are to be predicted
batches.py              batches of examples

The steps:
learner.py, loop.py     the model with its optimiser, and the loop over batches
loss.py                 batches as tensors, and their loss
optimization.py         optimisers and learning rates
frozen.py, low_rank.py  the weights that stay as they are, and those with low-rank updates
taken_weights.py        the weights from a model with another head
recompute.py            layers that are computed again in the backward pass
processes.py            one process or many; lock.py, one run at a time in a folder
checkpoints.py          what the next step depends on; checkpoint_state.py, where a run was;
                        changes.py, whether it is the same one
progress.py, plot.py    what is told of the run; notes.py, what its reader may not expect
companions.py           the tokenizers and settings that lie beside the result

The scores of the result:
scores.py               what a model is measured on, and by which of them
text_scores.py          BLEU, perplexity; reader_scores.py, those of models that read whole texts
correlation.py, f1.py   the formulas

extras.py imports the packages of the extras. The modules that read a recipe do not import torch.
"""

"""Published checkpoints as models of the zoo: a TOML file for each family.

    import: folder -> Prepared -> Scope -> ModelSpec -> Plan -> Import -> weights file
    export: weights file -> Origin -> Scope -> Plan, read backwards -> folder

importing.py            from a checkpoint to a model; import_plan.py, what becomes of each tensor.
                        `zoo.exporting` is the way back
prepared.py             the checkpoint as its family reads it
origin.py               what is recorded of the checkpoint; new_head.py, that of a model with a
                        new head
companions.py           the files beside its weights

The family:
registered.py           the families of a registry; table.py, `zoo families`
family.py               a family file; vocabulary.py, the words that all families share; rotary.py,
                        their settings of rotary positions
expression.py, scope.py its expressions, and the values that they read
config.py               the `config.json`; defaults.py, what it need not state; unread.py, what
                        nothing reads of it; class_names.py, the classes that it names
spec.py                 from a family and a configuration to a spec
lint.py                 `zoo lint`

The tensors:
checkpoint.py           those of the checkpoint
pattern.py              patterns of their names
active_rules.py         the rules that hold for one checkpoint, and the names by them alone
plan.py                 which tensors become which
conversion.py           carries a plan out on all cores; relayout.py, for one tensor
reader.py               reads tensors; tensor_writer.py writes them, and hashes them on the way

Of some checkpoints:
part.py                 one of several models, such as the language model alone
sentence.py             the layers that sentence-transformers adds
marian_tokenizer.py     tokenizers, made of those of Marian

`adapters` merges LoRA adapters, and `quantized` makes floats of quantized tensors.
"""

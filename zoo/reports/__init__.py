"""What commands print, as data and as text.

listing.py, summaries.py    `zoo list`: models and components
component.py                `zoo show ffn.glu`: a component and its keys
flops.py                    `zoo show --flops`
diff.py, table.py           `zoo diff` and `zoo table`
sides.py, columns.py        the models that are compared, and the columns of tables
data.py                     the types of what `zoo show --flops` and `zoo diff` return
results.py                  `zoo results`: runs of training

`zoo show` of a model is in `zoo.showing`, which `ModelSpec` uses.
"""

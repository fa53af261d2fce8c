"""What `zoo.resolve` needs: tables as they are written, and the rules by which they are read.

tables.py                          tables, and merging them
kinds.py                           which class a table describes
layer_rules.py, layer_values.py    what differs between the layers of a stack
usage.py                           which keys were read; the others are reported as unknown
node.py                            the tree that is returned
"""

"""The components that ship with the zoo, registered like anybody's.

The files here are descriptions: pydantic models that import no torch. Their modules are in
`zoo_components.modules`, one file beside each of these. They do without
`from __future__ import annotations`: pydantic needs what the annotations of fields mean, and to
compile each from a string is a good part of what `zoo show` would cost.
"""

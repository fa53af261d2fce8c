"""The components that ship with the zoo, registered in the same way as third-party ones.

The files here are descriptions: pydantic models that import no torch. Their modules are in
`zoo_components.modules`, in files of the same names. They do not use
`from __future__ import annotations`: pydantic has to evaluate the annotations of fields, and
compiling each of them from a string would be a good part of the run time of `zoo show`.
"""

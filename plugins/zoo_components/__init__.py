"""The components that ship with the zoo, registered like anybody's.

The files here are descriptions: pydantic models that import no torch. Their modules are in
`zoo_components.modules`, one file beside each of these.
"""

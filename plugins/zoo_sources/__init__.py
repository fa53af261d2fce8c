"""The sources of published models that ship with the zoo."""

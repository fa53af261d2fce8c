"""Drills: the store under faults, crowds and chance. `make drill` runs them in full, `make test` a
little of each, and `python -m drills.report` writes docs/reliability.md."""

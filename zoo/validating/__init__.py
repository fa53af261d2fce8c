"""What `zoo.validate` needs: the words for the mistakes in a spec.

value_errors.py    values that pydantic refuses
missing_keys.py    keys that a spec lacks
idle_values.py     values that have no effect
"""

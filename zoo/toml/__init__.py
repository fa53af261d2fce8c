"""What `zoo.document` needs to know of a TOML text: limits of nesting, the positions of keys and
values, and all syntax errors at once."""

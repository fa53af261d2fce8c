"""Read `registry.toml` files, find the plugins and models that their lines name, and report plugins
that fail. `zoo.registry` merges several such files."""

"""From a line of a `registry.toml` to the plugin or the model that it names, and what is told when
somebody's plugin fails. `zoo.registry` lays one file over another."""

"""Published checkpoints as models of the zoo, and back: a TOML file for each family."""

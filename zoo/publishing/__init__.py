"""Publishing a model with a fingerprint of its outputs (`zoo push`), and comparing models of the
store with theirs (`zoo verify`). Unlike `zoo.store`, both load models."""

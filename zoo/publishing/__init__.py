"""What loads the models of the store: `zoo push`, which publishes one with a fingerprint of its
outputs, and `zoo verify`, which compares them."""

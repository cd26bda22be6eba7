"""Training: data in, gates passed, bundles out. Needs the extra `train`."""

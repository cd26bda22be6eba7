"""The operator's YAML: schema, loading with positions, compilation, reload."""

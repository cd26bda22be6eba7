"""Where bundles are kept, sent from and fetched to."""

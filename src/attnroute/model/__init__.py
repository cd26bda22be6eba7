"""The network: what it computes, what it is trained on, how it becomes a bundle. Needs torch."""

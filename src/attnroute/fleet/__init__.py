"""The fleet exchange over gRPC: sidecars send windows to the trainer and get everybody's sums."""

"""Looking into a sidecar from outside: the admin API over gRPC, health and metrics over HTTP.

Nothing here runs on the path of a call: the data plane is read through its snapshots.
"""

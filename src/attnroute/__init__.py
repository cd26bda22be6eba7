"""attnroute: a gRPC sidecar proxy with learned balancing.

Importing the package does nothing; the entry points are the command `attnroute` and the
composition roots `attnroute.sidecar` and `attnroute.demo`.
"""

__all__ = ["__version__"]

# Written here as well as in Cargo.toml so that reading it needs no installed metadata;
# tests/test_docs.py holds the two and CHANGELOG.md together.
__version__ = "0.1.0"

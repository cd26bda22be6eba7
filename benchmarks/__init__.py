"""The side-by-side benchmark: attnroute next to other proxies, measured in one run."""

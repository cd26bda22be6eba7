"""Measure attnroute next to direct calls, Envoy, HAProxy and nginx: `make bench`.

This file only starts `benchmarks.harness.session`, so that it works as a plain script from any
folder without anything being installed.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.harness.session import main

    raise SystemExit(main(sys.argv[1:]))

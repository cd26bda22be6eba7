"""Make README.md, the plots and the peers' configurations from a result file.

    python benchmarks/report.py [RESULT.json]        # the newest in results/ by default

This file only starts `benchmarks.harness.publish`, as `run.py` does.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.harness.publish import main

    raise SystemExit(main(sys.argv[1:]))

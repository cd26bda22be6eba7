"""Runs a command that must not outlive the demo.

`python -m attnroute.demo.leash COMMAND...` starts the command and ends it when standard input
closes, which the system does even where the demo was killed and could clean up nothing. A death
signal set in the child would do the same on Linux alone; this costs one small process. Termination
signals are passed on, and the exit code is the command's. What the command prints goes to standard
error, so that the end of this process closes its standard output and is noticed at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

GRACE_S = 8.0
"""From SIGTERM to SIGKILL; longer than the drain limit of the demo's policy."""


def hold(command: Sequence[str]) -> int:
    """Returns the exit code of the command; a signal counts as 128 plus its number."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _end_with_input(child: subprocess.Popen[bytes]) -> None:
    # The file object would lock itself against interpreter exit while a thread reads from it.
    while os.read(0, 4096):
        pass
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(hold(sys.argv[1:]))

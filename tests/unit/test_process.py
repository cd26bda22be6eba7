"""What every long-running process does about its limit of open files, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, logging, resource, sys
from attnroute.process import allow_open_files

records = []
logging.getLogger("attnroute.process").addFilter(lambda record: records.append(record) or True)
soft, hard, wanted = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_open_files(wanted)
print(json.dumps([*resource.getrlimit(resource.RLIMIT_NOFILE), [r.getMessage() for r in records]]))
"""


def outcome(*, soft: int, hard: int, wanted: int) -> tuple[int, int, list[str]]:
    """Soft and hard limit afterwards, and what was logged."""
    arguments = json.dumps([soft, hard, wanted])
    command = [sys.executable, "-c", SCRIPT, arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after_soft, after_hard, messages = json.loads(done.stdout)
    return after_soft, after_hard, messages


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    assert outcome(soft=100, hard=400, wanted=300) == (400, 400, [])
    assert outcome(soft=400, hard=400, wanted=300) == (400, 400, [])


def test_a_limit_that_is_out_of_reach_is_said() -> None:
    message = "fewer files may be open than connections"
    assert outcome(soft=100, hard=200, wanted=300) == (200, 200, [message])

"""What training on several processes sends and takes: writes benchmarks/scale_out.md.

The same samples in one process and, by torchrun on gloo, in several: gradients as they are, in
fp16, by PowerSGD, and numbers that are averaged every so many local steps. On one machine the
processes share its cores, so the time says what a step costs beside the others, not what a second
machine would bring; the bytes are what each process gives to all-reduce.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from attnroute.train.dataset import ScrapeLog
from attnroute.train.worlds import play_world, write_world

ROOT = Path(__file__).resolve().parent
SETTINGS = (
    ("gradients", ()),
    ("gradients, fp16", ("--hook", "fp16")),
    ("gradients, PowerSGD rank 1", ("--hook", "powersgd")),
    ("average every 4 steps", ("--local-steps", "4")),
    ("average every 16 steps", ("--local-steps", "16")),
)


def run(
    logs: list[Path], folder: Path, processes: int, options: tuple[str, ...]
) -> dict[str, float]:
    """One training; its last losses, bytes and seconds."""
    launcher = ["-m", "attnroute.train.distributed"]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                    str(processes), *launcher]  # fmt: skip
    out = folder / "out.json"
    command = [sys.executable, *launcher, *map(str, logs), "--out", str(out), *options]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads(out.read_text())
    last = found["losses"][-10:]
    return {
        "loss": sum(last) / len(last),
        "bytes": found["sent_bytes"] / len(found["losses"]),
        "ms": 1e3 * found["seconds"] / len(found["losses"]),
    }


def main() -> int:
    """Plays some services, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--services", type=int, default=4)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--page", type=Path, default=ROOT / "scale_out.md")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder, logs = Path(name), []
        for seed in range(options.services):
            logs.append(folder / f"service-{seed}")
            path = write_world(folder / f"{seed}.yaml", seed, 30)
            with ScrapeLog(logs[-1]) as log:
                for scrape in play_world(path, seed, 1.0):
                    log.append(scrape)
        steps = ("--steps", str(options.steps))
        settings = [(1, "one process", ()), *((options.processes, *one) for one in SETTINGS)]
        for processes, text, more in settings:
            found = run(logs, folder, processes, (*steps, *more))
            rows.append(
                f"| {text} | {processes} | {found['loss']:.4f} | {found['bytes']:.0f} | "
                f"{found['ms']:.1f} |"
            )
            print(rows[-1], file=sys.stderr)
    text = [
        "# Training on several processes",
        "",
        (
            f"{options.services} simulated services, {options.steps} steps of 4 samples, gloo on "
            "one machine (`python -m benchmarks.scale_out`). *Loss*: mean of the last ten steps. "
            "*Bytes*: what a process gives to all-reduce, a step."
        ),
        "",
        "| setting | processes | loss | bytes a step | ms a step |",
        "|---|---|---|---|---|",
        *rows,
    ]
    options.page.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(options.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())

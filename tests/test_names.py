"""Words that are never right, and addresses that belong to one machine, in what is committed.

One term per thing, the same in code, metrics, proto, YAML and docs: see the glossary in
ARCHITECTURE.md. Words of other products stay in the files that speak those products' languages,
each with its reason below.
"""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Word to what we say instead. Matched as a whole word and as a part of a name in snake_case.
WORDS = {
    "cluster": "service",
    "backend": "endpoint (or service)",
    "upstream": "endpoint (or service)",
    "downstream": "client",
    "artefact": "bundle",
    "artifact": "bundle",
}

# (file, what may stand there, why). The text is removed before the words are looked for.
ALLOWED = [
    ("tests/test_names.py", ".*", "this list"),
    ("requirements/*.txt", ".*", "names of packages"),
    ("tests/conformance/java/pom.xml", "artifactId", "the format of Maven"),
    ("Cargo.lock", ".*", "names of packages"),
    ("pyproject.toml", "build-backend", "the key of the packaging standard"),
    ("*", r"svc\.cluster\.local", "the suffix of Kubernetes service names"),
    ("benchmarks/*", "(?i)cluster|upstream|backend", "configuration of Envoy, nginx and HAProxy"),
    ("tests/unit/benchmarks/*", "(?i)cluster|upstream|backend", "the same, in its tests"),
    (
        "src/attnroute/demo/*",
        r"backends\.backend_agg|\bbackend\b",
        "matplotlib's word for what it draws with",
    ),
    ("tests/conformance/*", "test_backend_metrics", "the name of a balancer of gRPC's own"),
    ("deploy/*", r"(?i)kubernetes cluster", "Kubernetes calls itself that"),
]

MACHINE = {
    r"/work/(main|shared)\b": "a path of one machine",
    r"(?<![\w.])/root/": "a path of one machine",
    r"/home/\w+/": "a path of one machine",
    r"(?i)\bfiles\.pythonhosted\b|\bpypi\.(org|python)\b": "an index; each machine has its own",
    r"(?i)--(extra-)?index-url|--find-links": "an index; each machine has its own",
    r"(?i)\b(static|index)\.crates\.io\b|\bregistry\.npmjs\b|\bproxy\.golang\b": "an index",
    r"(?i)\b(deb|security|archive)\.(debian|ubuntu)\.(org|com)\b": "a mirror",
    r"(?i)https?://[\w.-]*(mirror|nexus|artifactory)": "a mirror",
}
# Lock files name the one canonical index, not where this machine got it from.
MACHINE_ALLOWED = [("tests/test_names.py", ".*")]

TEXT_BYTES_MAX = 2_000_000


def committed_files() -> list[Path]:
    """What is in the repository or on its way there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, timeout=30,
    ).stdout.decode()  # fmt: skip
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def words_in(name: str, text: str) -> list[str]:
    for pattern, allowed, _ in ALLOWED:
        if fnmatch(name, pattern):
            text = re.sub(allowed, "", text)
    found = []
    for word, instead in WORDS.items():
        # `_` and digits part words here, and so does a capital: `ClusterName`, `my_cluster`.
        pattern_text = (
            rf"(?<![a-z])({word}|{word.upper()})s?(?![a-z])|{word.capitalize()}s?(?![a-z])"
        )
        for line, content in enumerate(text.splitlines(), start=1):
            if re.search(pattern_text, content):
                found.append(f"{name}:{line}: `{word}`; say {instead}")
    return found


def machine_in(name: str, text: str) -> list[str]:
    for pattern, allowed in MACHINE_ALLOWED:
        if fnmatch(name, pattern):
            text = re.sub(allowed, "", text)
    return [
        f"{name}:{line}: `{match[0]}` is {why}"
        for expression, why in MACHINE.items()
        for line, content in enumerate(text.splitlines(), start=1)
        if (match := re.search(expression, content))
    ]


def texts() -> list[tuple[str, str]]:
    found = []
    for path in committed_files():
        content = path.read_bytes()
        name = str(path.relative_to(ROOT))
        is_text = b"\0" not in content and not fnmatch(name, "crates/*/tests/fuzz/*")
        if is_text and len(content) <= TEXT_BYTES_MAX:
            found.append((name, content.decode()))
    return found


def test_there_is_something_to_look_at() -> None:
    names = [name for name, _ in texts()]
    assert "README.md" in names
    assert "src/attnroute/__init__.py" in names


def test_one_term_per_thing() -> None:
    found = [complaint for name, text in texts() for complaint in words_in(name, text)]
    assert not found, "\n".join(found)


def test_nothing_belongs_to_one_machine() -> None:
    found = [complaint for name, text in texts() for complaint in machine_in(name, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "the cluster",
        "upstream_host",
        "Backends",
        "struct ClusterName;",
        "DOWNSTREAM",
        "my_artifact",
    ],
)
def test_a_wrong_word_is_found(text: str) -> None:
    assert words_in("src/attnroute/x.py", text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/attnroute/x.py", "the stream goes up"),
        ("docs/x.md", "`checkout.shop.svc.cluster.local:*`"),
        ("benchmarks/peers/envoy.yaml", "clusters: [upstream]"),
        ("pyproject.toml", 'build-backend = "maturin"'),
    ],
)
def test_a_right_word_passes(name: str, text: str) -> None:
    assert words_in(name, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "cd /work/" + "main",
        "open('/root/" + "x')",
        "--index-url https://a",
        "https://files.pythonhosted" + ".org/x",
        "http://mirror.example/debian",
    ],
)
def test_a_machine_is_found(text: str) -> None:
    assert machine_in("README.md", text)

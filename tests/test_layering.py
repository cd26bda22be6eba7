"""Who may import whom, as one table: a change here is a change of the architecture.

The checks read source with `ast`, so that an import inside a function counts like one at the top.
Each check is a plain function from source to complaints and has a test that feeds it a module that
breaks the rule.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "attnroute"

# L1: a module imports from lower rows or its own package. The longest name that fits decides.
ROWS = {
    "errors": 0,
    "types": 0,
    "clock": 0,
    "logs": 0,
    "policy.schema": 1,
    "features.schema": 1,
    "features.table": 1,
    "features.window": 1,
    "dataplane": 1,
    "_proto": 1,
    "process": 2,
    "policy": 2,
    "discovery": 2,
    "telemetry": 2,
    "features": 2,
    "bundle": 2,
    "scoring": 3,
    "model": 3,
    "registry": 4,
    "fleet": 4,
    "parameters": 4,
    "rollout": 4,
    "sim": 4,
    "train": 5,
    "admin": 5,
    "resolvers": 5,
    "learning": 5,
    "scorers": 5,
    "publishing": 5,
    "sidecar": 6,
    "trainer": 6,
    "demo": 6,
    "cli": 7,
    "__main__": 8,
}

# L1: whatever the rows say, serving never reaches training.
NEVER = {"sidecar": ("train", "model"), "cli.sidecar": ("train", "model")}

# L2: what is heavy, or has one seam, has one home.
HOMES = {
    "torch": ("model", "train"),
    "onnxscript": ("model", "train"),
    "onnxruntime": ("scoring.attention", "model.export"),
    "grpc": ("admin", "registry", "fleet", "discovery.xds", "telemetry.orca", "demo"),
    "grpc_health": ("admin",),
    "grpc_reflection": ("admin",),
    "attnroute._dataplane": ("dataplane",),
    "yaml": ("policy.load",),
    "click": ("cli", "demo"),
    "rich": ("cli", "demo"),
    "httpx2": ("telemetry.fetch",),
    "starlette": ("admin.http",),
    "uvicorn": ("admin.http",),
    "matplotlib": ("demo", "sim.report", "train.plots"),
    "dns": ("discovery.dns",),
    "opentelemetry": ("telemetry.traces",),
    "cryptography": ("bundle.signature", "bundle.read", "bundle.write", "registry", "publishing"),
}

# L5: built by composition roots and commands; everything else is handed a protocol.
CONCRETE = {"DataPlane", "SystemClock", "StaticResolver", "FileResolver", "DnsResolver"}
ROOTS = ("sidecar", "resolvers", "trainer", "demo", "cli", "sim")

# Generated code follows its generator.
GENERATED = PACKAGE / "_proto"

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

# L6: the part of the core that knows neither sockets nor clocks.
SANS_IO = (
    "balancer",
    "constraints",
    "outlier",
    "ewma",
    "histogram",
    "reason",
    "rng",
    "slow_start",
    "cells",
    "ledger",
    "score_table",
    "route",
    "class",
    "orca",
    "grpc",
)
IO_WORDS = ("tokio", "hyper", "h2::", "TcpStream", "TcpListener", "Instant::now", "SystemTime::now")


def module_name(path: Path) -> str:
    """`src/attnroute/policy/load.py` is `policy.load`, a package is its own name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def row_of(module: str) -> int | None:
    fitting = [place for place in ROWS if within(module, place)]
    return ROWS[max(fitting, key=len)] if fitting else None


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def check_rows(module: str, tree: ast.AST) -> Iterator[str]:
    row = row_of(module)
    if module and row is None:
        yield f"`{module}` stands in no row of the table; give it one"
        return
    for line, name in imports(tree):
        if not within(name, "attnroute") or name in ("attnroute", "attnroute.__version__"):
            continue
        target = name.removeprefix("attnroute.")
        if within(target, "_dataplane"):
            continue  # L2 says who may
        for place, forbidden in NEVER.items():
            if within(module, place) and any(within(target, part) for part in forbidden):
                yield f"line {line}: `{module}` imports `{target}`: serving never reaches training"
        if target.split(".")[0] == module.split(".")[0]:
            continue
        other = row_of(target)
        if other is None:
            yield f"line {line}: `{module}` imports `{target}`, which stands in no row"
        elif row is None or other >= row:
            yield f"line {line}: `{module}` (row {row}) imports `{target}` (row {other})"


def check_homes(module: str, tree: ast.AST) -> Iterator[str]:
    for line, name in imports(tree):
        for package, homes in HOMES.items():
            if within(name, package) and not any(within(module, home) for home in homes):
                yield f"line {line}: `{module}` imports `{name}`; only {', '.join(homes)} may"


def check_import_does_nothing(module: str, tree: ast.Module) -> Iterator[str]:
    """L4, as far as source shows it: no bare call, no read of the environment."""
    if module == "__main__":
        return
    for node in tree.body:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            yield f"line {node.lineno}: `{module}` does work at import"
        if isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            yield f"line {node.lineno}: `{module}` runs a block at import"
        for inner in outside_functions(node):
            if isinstance(inner, ast.Attribute) and inner.attr in ("environ", "getenv"):
                yield f"line {inner.lineno}: `{module}` reads the environment at import"


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        # Defaults and decorators run at import, the body does not.
        for part in [*node.args.defaults, *node.args.kw_defaults, *node.decorator_list]:
            if part is not None:
                yield from ast.walk(part)
        return
    if isinstance(node, ast.Lambda):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from outside_functions(child)


def check_construction(module: str, tree: ast.AST) -> Iterator[str]:
    if any(within(module, root) for root in ROOTS):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in CONCRETE:
            yield f"line {node.lineno}: `{module}` constructs `{name}`; take it as an argument"


def check_shape(module: str, tree: ast.Module, source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"`{module}` has {lines} lines, at most {FILE_LINES_MAX}; it has two reasons to exist"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length >= FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: `{node.name}` has {length} lines, under 70 is the rule"
    if "utils" in module.split("."):
        yield f"`{module}`: name it for what it does"


def complaints(module: str, source: str) -> list[str]:
    tree = ast.parse(source)
    return [
        *check_rows(module, tree),
        *check_homes(module, tree),
        *check_import_does_nothing(module, tree),
        *check_construction(module, tree),
        *check_shape(module, tree, source),
    ]


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if GENERATED not in path.parents)


@pytest.mark.parametrize("path", sources(), ids=lambda path: module_name(path) or "attnroute")
def test_module_keeps_the_rules(path: Path) -> None:
    found = complaints(module_name(path), path.read_text(encoding="utf-8"))
    assert not found, "\n".join([str(path.relative_to(ROOT)), *found])


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("policy.load", "from attnroute.admin import server", "(row 2) imports `admin.server`"),
        ("discovery.file", "from attnroute.policy.load import load", "(row 2) imports `policy"),
        ("telemetry", "def f() -> None:\n    import attnroute.cli.main", "imports `cli.main`"),
        ("sidecar", "from attnroute.model import network", "serving never reaches training"),
        ("newcomer", "", "stands in no row"),
        ("admin.service", "import attnroute.newcomer", "which stands in no row"),
        ("discovery.file", "import yaml", "only policy.load may"),
        ("admin.service", "from attnroute import _dataplane", "only dataplane may"),
        ("cli.weights", "import grpc.aio", "imports `grpc.aio`; only admin"),
        ("sidecar", "import torch", "only model, train may"),
        ("admin.server", "print('hello')", "does work at import"),
        ("admin.server", "for name in []:\n    pass", "runs a block at import"),
        ("admin.server", "import os\nHOME = os.environ['HOME']", "reads the environment"),
        ("clock", "import os\ndef f(a=os.getenv('A')):\n    ...", "reads the environment"),
        ("admin.server", "def f() -> None:\n    SystemClock()", "constructs `SystemClock`"),
        ("admin.server", "def f() -> None:\n" + "    x = 1\n" * 70, "`f` has 71 lines"),
        ("admin.server", "# line\n" * 601, "has 601 lines"),
        ("admin.utils", "", "name it for what it does"),
    ],
)
def test_a_violation_is_found(module: str, source: str, expected: str) -> None:
    found = complaints(module, source)
    assert any(expected in complaint for complaint in found), found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("policy.load", "import yaml\nfrom attnroute.policy.schema import Policy"),
        ("dataplane", "from attnroute import _dataplane\nfrom attnroute._dataplane import Picker"),
        ("admin.service", "import attnroute\nfrom attnroute.policy.load import load_policy"),
        ("cli.weights", "from attnroute.admin import client\nimport click"),
        ("sidecar", "import os\ndef f() -> str:\n    SystemClock()\n    return os.environ['A']"),
        ("__main__", "from attnroute.cli.main import main\nmain()"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert complaints(module, source) == []


def run_python(code: str) -> str:
    """Runs code in a fresh interpreter: what this one has loaded says nothing."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_serving_loads_nothing_it_does_not_use() -> None:
    heavy = ("torch", "onnx", "onnxscript", "onnxruntime", "matplotlib", "pytest", "setuptools",
             "httpx2", "rich")  # fmt: skip
    loaded = run_python("import sys, attnroute.sidecar; print(*sys.modules)").split()
    assert "attnroute.dataplane" in loaded
    assert [name for name in heavy if name in loaded] == []


WATCHED_IMPORT = """
import importlib, os, sys

third_party, ours = {third_party!r}, {ours!r}
for name in third_party:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # a name inside a module, or an extra that is not installed

def threads():
    return len(os.listdir("/proc/self/task"))

seen = []
def hook(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.fork", "os.exec", "os.spawn", "signal.")):
        seen.append(event)
    elif event in ("os.system", "os.putenv", "os.mkdir"):
        seen.append(event)
    elif event == "open" and any(letter in str(arguments[1] or "r") for letter in "wax+"):
        if not str(arguments[0]).endswith(".pyc"):
            seen.append("open " + str(arguments[0]))

sys.dont_write_bytecode = True
sys.addaudithook(hook)
for name in ours:
    before = len(seen), threads()
    importlib.import_module(name)
    if (len(seen), threads()) != before:
        print(name, seen[before[0]:], threads() - before[1], "threads")
{extra}
"""


def watched_import(modules: list[str], extra: str = "") -> str:
    """Imports modules under an audit hook; names each that touched the world.

    What third parties do at their import is theirs: they are loaded before the watch begins.
    """
    third_party = sorted(
        {
            name
            for path in sources()
            for _, name in imports(ast.parse(path.read_text(encoding="utf-8")))
            if not within(name, "attnroute")
        }
    )
    return run_python(WATCHED_IMPORT.format(third_party=third_party, ours=modules, extra=extra))


def test_importing_a_module_does_nothing() -> None:
    modules = [
        f"attnroute.{module_name(path)}".rstrip(".")
        for path in sources()
        if module_name(path) != "__main__"
    ]
    assert watched_import(modules) == ""


def test_the_import_watch_sees_a_socket_and_a_thread() -> None:
    found = watched_import(
        [],
        "import socket, threading\n"
        "socket.socket().close(); before = threads()\n"
        "stop = threading.Event(); threading.Thread(target=stop.wait).start()\n"
        "print(seen, threads() - before); stop.set()",
    )
    assert found == "['socket.__new__'] 1\n"


def rust_complaints(source: str) -> list[str]:
    """Words of the outside world in code; comments may speak of them."""
    code = "\n".join(line.split("//", 1)[0] for line in source.splitlines())
    return [word for word in IO_WORDS if word in code]


def test_the_pure_part_of_the_core_touches_nothing() -> None:
    core = ROOT / "crates" / "dataplane" / "src"
    files = [
        path
        for name in SANS_IO
        for path in [core / f"{name}.rs", *sorted((core / name).glob("*.rs"))]
        if path.exists()
    ]
    assert files
    found = {path.name: words for path in files if (words := rust_complaints(path.read_text()))}
    assert found == {}


def test_a_clock_in_the_pure_part_is_found() -> None:
    assert rust_complaints("let now = std::time::Instant::now();") == ["Instant::now"]
    assert rust_complaints("// tokio's time is not read here") == []

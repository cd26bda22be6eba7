"""`attnroute check`: is this file valid, and what does a policy say in full?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from attnroute.errors import PolicyError, Problem, ScenarioError, TrainerFileError
from attnroute.policy.load import LoadedPolicy, effective_yaml, load_policy

_EPILOG = """\b
Examples:
  attnroute check policy.yaml
  attnroute check --defaults policy.yaml
  attnroute check --json configs/*.yaml | jq '.files[].problems[]'
  attnroute check --trainer trainer.yaml
  attnroute check --scenario configs/scenarios/*.yaml

\b
Problems go to stderr as `file:line:column: message`; with --json they go to stdout instead.
Exits with 2 if there is any.
"""


@click.command("check", epilog=_EPILOG)
@click.argument(
    "files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True
)
@click.option("--defaults", is_flag=True, help="Print the whole effective policy as YAML.")
@click.option("--scenario", is_flag=True, help="The files are scenarios of the simulator.")
@click.option("--trainer", is_flag=True, help="The files are those of trainers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    context: click.Context,
    *,
    files: tuple[Path, ...],
    defaults: bool,
    scenario: bool,
    trainer: bool,
    as_json: bool,
) -> None:
    """Check policy files; list every problem with its place."""
    if scenario and trainer:
        raise click.UsageError("`--scenario` and `--trainer` are different files; write one")
    if defaults and (scenario or trainer):
        option = "--scenario" if scenario else "--trainer"
        raise click.UsageError(f"`--defaults` is for policies; leave it out with `{option}`")
    if trainer:
        _check_trainers(context, files, as_json=as_json)
        return
    if scenario:
        _check_scenarios(context, files, as_json=as_json)
        return
    results = [_check(file) for file in files]
    if as_json:
        documents = [_document(*result, with_policy=defaults) for result in results]
        click.echo(json.dumps({"files": documents}, indent=2, ensure_ascii=False))
    else:
        for file, loaded, problems in results:
            for problem in problems:
                click.echo(str(problem), err=True)
            if loaded is not None:
                click.echo(_effective(file, loaded) if defaults else _summary(file, loaded))
    if any(problems for _, _, problems in results):
        context.exit(2)


def _check_scenarios(context: click.Context, files: tuple[Path, ...], *, as_json: bool) -> None:
    # Late: only scenarios need the extension.
    from attnroute.sim.scenario import load_scenario

    documents: list[dict[str, Any]] = []
    for file in files:
        problems: tuple[Problem, ...] = ()
        try:
            loaded = load_scenario(file)
        except ScenarioError as error:
            problems = error.problems
        documents.append(
            {"path": str(file), "valid": not problems, "problems": _described(problems)}
        )
        if as_json:
            continue
        for problem in problems:
            click.echo(str(problem), err=True)
        if not problems:
            load = loaded.offered_rps / loaded.capacity_rps
            overload = ", overload" if loaded.overload else ""
            click.echo(
                f"{file}: valid, {loaded.offered_rps:.0f} calls/s, load {load:.2f}{overload}"
            )
    if as_json:
        click.echo(json.dumps({"files": documents}, indent=2, ensure_ascii=False))
    if not all(document["valid"] for document in documents):
        context.exit(2)


def _check_trainers(context: click.Context, files: tuple[Path, ...], *, as_json: bool) -> None:
    from attnroute.policy.trainer import load_trainer

    documents: list[dict[str, Any]] = []
    for file in files:
        problems: tuple[Problem, ...] = ()
        try:
            load_trainer(file)
        except TrainerFileError as error:
            problems = error.problems
        documents.append(
            {"path": str(file), "valid": not problems, "problems": _described(problems)}
        )
        if as_json:
            continue
        for problem in problems:
            click.echo(str(problem), err=True)
        if not problems:
            click.echo(f"{file}: valid")
    if as_json:
        click.echo(json.dumps({"files": documents}, indent=2, ensure_ascii=False))
    if not all(document["valid"] for document in documents):
        context.exit(2)


_Result = tuple[Path, LoadedPolicy | None, tuple[Problem, ...]]


def _check(file: Path) -> _Result:
    try:
        return file, load_policy(file), ()
    except PolicyError as error:
        return file, None, error.problems


def _summary(file: Path, loaded: LoadedPolicy) -> str:
    listeners, services = len(loaded.policy.listeners), len(loaded.policy.services)
    return (
        f"{file}: valid, {listeners} listener{'s' * (listeners != 1)}, "
        f"{services} service{'s' * (services != 1)}"
    )


def _effective(file: Path, loaded: LoadedPolicy) -> str:
    # One YAML stream, whatever number of files; the name survives as a comment.
    return f"--- # {file}\n{effective_yaml(loaded.policy)}".rstrip("\n")


def _document(
    file: Path, loaded: LoadedPolicy | None, problems: tuple[Problem, ...], *, with_policy: bool
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "path": str(file),
        "valid": loaded is not None,
        "sha256": loaded.sha256 if loaded else None,
        "problems": _described(problems),
    }
    if with_policy:
        document["policy"] = loaded.policy.model_dump(mode="json") if loaded else None
    return document


def _described(problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    return [
        {"line": problem.line, "column": problem.column, "message": problem.message}
        for problem in problems
    ]

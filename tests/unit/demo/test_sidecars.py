"""The policy that the demo's sidecars run, and how it is switched."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from attnroute.demo.balancers import BALANCERS, Balancer
from attnroute.demo.models import CHANNEL
from attnroute.demo.sidecars import LISTENER, PolicyFile
from attnroute.demo.world import SERVICE
from attnroute.policy.load import load_policy

ADDRESSES = ["127.0.0.1:40001", "127.0.0.1:40002"]
TRAINER = "127.0.0.1:40100"


@pytest.mark.parametrize("balancer", BALANCERS, ids=lambda balancer: balancer.key)
def test_the_policy_is_valid_and_says_what_it_should(tmp_path: Path, balancer: Balancer) -> None:
    file = PolicyFile(tmp_path / "policy.yaml", ADDRESSES, TRAINER)
    sha256 = file.write(balancer)
    loaded = load_policy(file.path)
    assert loaded.sha256 == sha256
    assert [listener.name for listener in loaded.policy.listeners] == [LISTENER]
    service = loaded.policy.services[SERVICE]
    assert balancer.key.startswith(service.balancer.type)
    assert SERVICE in service.authorities
    assert service.request_class is not None
    assert loaded.policy.fleet.trainer == TRAINER


def test_sidecars_follow_the_channel_that_the_demo_publishes_to(tmp_path: Path) -> None:
    file = PolicyFile(tmp_path / "policy.yaml", ADDRESSES, TRAINER, models=True)
    file.write(BALANCERS[0])
    model = load_policy(file.path).policy.model
    assert model is not None
    assert (model.registry, model.channel) == (TRAINER, CHANNEL)


def test_endpoints_that_are_ill_join_and_leave(tmp_path: Path) -> None:
    file = PolicyFile(tmp_path / "policy.yaml", ADDRESSES, TRAINER, ["127.0.0.1:40003"])
    counts = []
    for with_ill in (False, True, False):
        file.write(BALANCERS[0], with_ill=with_ill)
        service = load_policy(file.path).policy.services[SERVICE]
        assert service.outlier_detection is not None
        (source,) = service.endpoints
        counts.append(len(source.static or ()))
    assert counts == [2, 3, 2]


def test_policies_of_two_balancers_differ(tmp_path: Path) -> None:
    file = PolicyFile(tmp_path / "policy.yaml", ADDRESSES, TRAINER)
    assert len({file.write(balancer) for balancer in BALANCERS}) == len(BALANCERS)


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    file = PolicyFile(tmp_path / "policy.yaml", ADDRESSES, TRAINER)
    file.write(BALANCERS[0])
    with file.path.open("rb") as before:
        sha256 = file.write(BALANCERS[1])
        # An open reader keeps the old content: the new one came by a rename.
        assert hashlib.sha256(before.read()).hexdigest() != sha256
    assert hashlib.sha256(file.path.read_bytes()).hexdigest() == sha256
    assert [path.name for path in tmp_path.iterdir()] == ["policy.yaml"]

"""What the gates of a sidecar say of a bundle moves the trainer's channels: the loop is closed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.integration.test_models import Load
from tests.support.models import lying_bundle, small_bundle
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import sync_peer
from tests.support.trainer import MINIMAL, trainer_process

from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState

MEANS = -1.0
"""The class's mean at every endpoint: right where they are equal, and better than a table of a few
calls."""


def point_canary(store: Store, version: str) -> None:
    now = store.channel("default", "canary")
    store.point(
        "default", "canary", version, expected_generation=now.generation, reason="t", operator=True
    )


def test_a_good_bundle_becomes_stable_and_one_that_lies_is_taken_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "models")
    store.add(small_bundle("1.0.0", MEANS))
    point_canary(store, "1.0.0")

    def channel(name: str) -> ChannelState:
        return store.channel("default", name)

    with ExitStack() as stack:
        _, ports = stack.enter_context(
            trainer_process(tmp_path, MINIMAL + "registry: {directory: models}\n")
        )
        trainer = ports["fleet"]

        def policy(*delays_s: float) -> str:
            served = [stack.enter_context(sync_peer(delay_s=one)).address for one in delays_s]
            model = f"{{registry: '{trainer}', channel: canary, rollout: {{min_interval: 0s}}}}"
            return minimal_policy(
                *served,
                extra="    balancer: {type: learned}\n"
                f"fleet: {{trainer: '{trainer}'}}\nmodel: {model}\n",
            )

        (tmp_path / "sidecar").mkdir()
        equal = policy(*[0.003] * 6)
        sidecar = stack.enter_context(Sidecar(tmp_path / "sidecar", equal))
        load = stack.enter_context(Load(sidecar, threads=6))
        sidecar.until(lambda: channel("stable").version == "1.0.0", "the gates' word for it")
        assert channel("stable").reason.startswith("promoted by 1 gates: gain 0.")
        # Endpoints that differ: a lie about them shows.
        sidecar.write_policy(policy(0.002, 0.004, 0.02, 0.03))
        sidecar.until(
            lambda: sidecar.metric("attnroute_policy_generation") > 1, "the other endpoints"
        )
        store.add(lying_bundle("inverted", "1.0.1"))
        point_canary(store, "1.0.1")
        sidecar.until(lambda: channel("canary").version == "1.0.0", "the gates' word against it")
        assert channel("canary").reason.startswith("taken back by 1 gates: gain -")
        assert channel("stable").version == "1.0.0"
        assert sidecar.metric("attnroute_model_info", version="1.0.0", stage="serving") == 1
        ends = {"stage": "refused", "cause": "gate"}
        assert sidecar.metric("attnroute_model_ends_total", **ends) == 1
        assert load.failed == []

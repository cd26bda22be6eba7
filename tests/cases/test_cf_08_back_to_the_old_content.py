"""CF-08: good A, bad B, good A; bad B twice; then A': generation and error after each step."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.sidecar import Sidecar, minimal_policy

from attnroute.admin.client import AdminClient

A = minimal_policy("127.0.0.1:9")
B = A.replace("endpoints", "endpoint")
A_NEW = minimal_policy("127.0.0.1:7")


def test_cf_08_back_to_the_old_content(start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(A)

    def state() -> tuple[int, bool, bool]:
        """Generation, whether an error shows, whether the metric says the same."""
        with AdminClient(sidecar.admin) as client:
            config = client.get_config()
        rejected = bool(config.rejected)
        return (
            config.generation,
            rejected,
            (sidecar.metric("attnroute_policy_rejected") == 1) == rejected,
        )

    def rejections() -> float:
        return sidecar.metric("attnroute_policy_reloads_total", result="rejected")

    def expect(generation: int, *, rejected: bool, after: str) -> None:
        sidecar.until(
            lambda: state() == (generation, rejected, True),
            f"generation {generation}, {'an' if rejected else 'no'} error, after {after}",
        )

    expect(1, rejected=False, after="the start")
    sidecar.write_policy(B)
    expect(1, rejected=True, after="B")
    sidecar.write_policy(A)
    expect(1, rejected=False, after="the return to A")
    sidecar.write_policy(B)
    expect(1, rejected=True, after="B again")
    assert rejections() == 2
    # Another bad file with other bytes, so that it can be seen to have been looked at.
    sidecar.write_policy(B + "# still wrong\n")
    sidecar.until(lambda: rejections() == 3, "the third rejection")
    expect(1, rejected=True, after="B twice")
    sidecar.write_policy(A_NEW)
    expect(2, rejected=False, after="A'")
    with AdminClient(sidecar.admin) as client:
        assert "127.0.0.1:7" in client.get_config().policy_yaml

"""Real boxes with a network, as root and as an ordinary user: while their keeper lives, and after it was killed."""

import os

import pytest
from tests.providers.native.network.scenario_runner import run_scenario

pytestmark = pytest.mark.slow


@pytest.fixture(params=["0", "1"], ids=["still machine", "forwarding machine"])
def forwarding(request: pytest.FixtureRequest) -> str:
    """Pasta carries for ordinary users in any case, for root where the machine does not forward."""
    if os.geteuid() and request.param == "1":
        pytest.skip("needs root: an ordinary user's boxes are not routed by the machine")
    return str(request.param)


def test_a_box_is_online_or_not(forwarding: str) -> None:
    """`on` reaches the outside and a resolver, not the machine; `off` reaches nothing (B16)."""
    run_scenario("on", forwarding=forwarding)


def test_connections_over_tls_arrive_whole(forwarding: str) -> None:
    """For an ordinary user, with the pasta of the distribution (B16): a connection is more than its handshake. That of
    Debian 12 sends a segment without any flag after it."""
    run_scenario("talking", forwarding=forwarding)


def test_the_doctor_makes_a_connection(forwarding: str) -> None:
    """What is said to work was tried, over the path that is promised (lesson 34)."""
    run_scenario("tried", forwarding=forwarding)


def test_no_network_is_promised_where_no_connection_comes_through() -> None:
    """With a pasta that is installed and carries nothing, doctor, probe and refusals say so (lesson 34)."""
    run_scenario("tried_in_vain", forwarding="0", mute=True)


def test_private_ranges_are_a_boxes_own(forwarding: str) -> None:
    """Threat: each set of ranges that a caller thinks of costs the machine processes that stay (B16)."""
    run_scenario("private_ranges", forwarding=forwarding)


@pytest.mark.parametrize("killed", ["keeper", "spawner"])
def test_a_box_keeps_its_network_when_its_keeper_is_killed(forwarding: str, killed: str) -> None:
    """Boxes outlive their keeper on purpose, and the next one finds them as they were: online (B27)."""
    run_scenario(f"killed_{killed}", forwarding=forwarding)


def test_a_box_is_online_again_when_a_helper_was_killed(forwarding: str) -> None:
    """With a keeper and without one: a dead worker of the network is replaced."""
    run_scenario("killed_workers", forwarding=forwarding)


def test_a_box_whose_network_is_lost_says_so_and_new_boxes_have_one(forwarding: str) -> None:
    """Never offline without a word: an event, the box's reason, and the verdict of what fails (lesson 34)."""
    run_scenario("killed_helper", forwarding=forwarding)


def test_what_is_left_of_a_dead_network_is_pruned(forwarding: str) -> None:
    """What is dead is removed, and a live keeper's boxes stay online (lesson 10)."""
    run_scenario("pruned", forwarding=forwarding)


def test_a_box_of_the_command_line_is_online_between_commands(forwarding: str) -> None:
    """A keeper that only visits leaves its boxes as they are (P1)."""
    run_scenario("left_by_the_command_line", forwarding=forwarding)

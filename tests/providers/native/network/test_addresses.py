"""Which addresses are refused, and which are given to boxes."""

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.providers.native.network import addresses

POOL = addresses.POOL


def net(text: str) -> IPv4Network:
    return IPv4Network(text)


@pytest.mark.parametrize(
    "address",
    ["10.1.2.3", "172.31.255.255", "192.168.0.1", "100.127.1.1", "169.254.169.254", "224.0.0.251", "255.255.255.255"],
)
def test_private_link_local_and_multicast_are_refused(address: str) -> None:
    assert any(IPv4Address(address) in each for each in addresses.refused(POOL, ()))


@pytest.mark.parametrize("address", ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "223.255.255.255"])
def test_the_public_neighbours_of_refused_ranges_are_not(address: str) -> None:
    assert not any(IPv4Address(address) in each for each in addresses.refused(POOL, ()))


def test_an_allowed_range_inside_a_refused_one_is_an_exception_and_the_rest_stays_refused() -> None:
    allowed = addresses.parse(["10.1.0.0/16"])
    refused = addresses.refused(POOL, allowed)
    assert net("10.0.0.0/8") in refused
    assert addresses.exceptions(refused, allowed) == [net("10.1.0.0/16")]


def test_an_allowed_range_that_covers_a_refused_one_lifts_it_but_never_the_boxes_own() -> None:
    refused = addresses.refused(POOL, addresses.parse(["0.0.0.0/0"]))
    assert refused == [POOL]


def test_an_allowed_range_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8"):
        addresses.parse(["10.0.0.1/8"])


def test_a_share_avoids_every_route_of_the_machine() -> None:
    taken = [net("198.18.0.0/16"), net("198.19.128.0/17")]
    for share in addresses.shares(POOL, "abcdef", taken):
        assert not any(share.overlaps(each) for each in taken)


def test_a_machine_that_routes_the_whole_pool_gets_an_error() -> None:
    with pytest.raises(addresses.RangesFull, match=r"198\.18\.0\.0/15"):
        addresses.shares(POOL, "abcdef", [net("198.16.0.0/12")])


@given(st.data())
def test_no_two_links_share_an_address_and_none_has_the_nameservers(data: st.DataObject) -> None:
    share = net("198.18.32.0/19")
    slots = st.integers(0, addresses.capacity(share) - 1)
    one, other = data.draw(slots), data.draw(slots)
    ends = addresses.link(share, one)
    assert ends[0] in share and ends[1] in share and addresses.nameserver(share) not in ends
    assert net(f"{ends[0]}/31")
    assert one == other or not set(ends) & set(addresses.link(share, other))

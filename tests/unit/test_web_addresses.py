"""Which hosts may be contacted: literal addresses in every spelling, and names by what they resolve to."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.addresses import check_host, forbidden, literal, system_lookup

FORBIDDEN = [
    *("127.0.0.1", "127.255.0.9", "0.0.0.0", "10.1.2.3", "172.31.255.255", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "239.1.1.1", "255.255.255.255"),
    *("198.18.0.1", "203.0.113.7", "240.0.0.1", "192.88.99.1"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2001:0:1::1", "3fff::1", "5f00::1", "100::1", "4000::1"),
    *("[::1]", "127.0.0.1.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7F.1", "017700000001", "0177.0.0.1"),
    *("0", "0x0a.0.0.1", "0xa9fea9fe", "１２７.0.0.1", "127。0。0。1", "①②⑦.0.0.1"),
    *("localhost", "LOCALHOST.", "a.b.localhost"),
]
ALLOWED = ["8.8.8.8", "1.1.1.1.", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "[2001:4860:4860::8888]", "134744072"]
NAMES = ["example.com", "localhost.example", "127.0.0.1.example", "notlocalhost", "8.8.8.8 x", "a\0b", "", "fe80::x"]


def answering(*addresses: str, seen: list[str] | None = None):
    async def lookup(host: str, port: int) -> Sequence[str]:
        if seen is not None:
            seen.append(host)
        return addresses

    return lookup


@pytest.mark.parametrize("host", FORBIDDEN)
def test_what_is_not_public_is_forbidden_in_every_spelling(host: str) -> None:
    assert forbidden(host)


@pytest.mark.parametrize("host", ALLOWED)
def test_public_addresses_may_be_contacted(host: str) -> None:
    assert forbidden(host) is None
    assert literal(host) is not None


@pytest.mark.parametrize("host", NAMES)
def test_names_are_left_to_their_addresses(host: str) -> None:
    assert (literal(host), forbidden(host)) == (None, None)


def test_the_reason_names_the_address_and_how_it_was_spelt() -> None:
    assert forbidden("0x7f.1") == "127.0.0.1 (0x7f.1) is a loopback address"
    assert forbidden("[fe80::1]") == "fe80::1 is a link-local address"


def spellings(address: ipaddress.IPv4Address) -> list[str]:
    number, parts = int(address), [int(part) for part in str(address).split(".")]
    a, b, c, d = parts
    return [
        *(str(address), f"{address}.", str(number), hex(number), f"0{number:o}", f"{a}.{b}.{c * 256 + d}"),
        *(f"{a}.{number % 2**24}", ".".join(map(hex, parts)), ".".join(f"0{part:o}" for part in parts)),
        "".join(chr(ord(letter) + 0xFEE0) if letter.isdigit() else letter for letter in str(address)),
    ]


@given(st.ip_addresses(v=4), st.integers(0, 9))
def test_a_spelling_does_not_change_the_judgement(address: ipaddress.IPv4Address, choice: int) -> None:
    spelt = spellings(address)[choice]
    assert literal(spelt) == address
    assert (forbidden(spelt) is None) == (forbidden(address) is None)


@given(st.ip_addresses())
def test_nothing_is_allowed_that_the_standard_library_calls_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if forbidden(address) is None:
        assert address.is_global
        assert not (address.is_multicast or address.is_loopback or address.is_link_local or address.is_unspecified)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_ipv6_is_never_allowed(address: ipaddress.IPv4Address) -> None:
    for wrapped in (f"::ffff:{address}", f"::{address}", f"64:ff9b::{address}", f"[::ffff:{address}]"):
        assert forbidden(wrapped)


@given(st.text(max_size=80))
def test_any_text_is_judged(text: str) -> None:
    address = literal(text)
    assert address is None or (forbidden(text) is None) == (forbidden(address) is None)


@pytest.mark.asyncio
async def test_a_name_is_judged_by_all_its_addresses() -> None:
    lookup = answering("8.8.8.8", "2606:4700::1111")
    assert await check_host("a.example", 80, allow_private=False, lookup=lookup) == ["8.8.8.8", "2606:4700::1111"]
    for private in ("127.0.0.1", "::1", "fe80::1%eth0", "::ffff:127.0.0.1", "169.254.169.254"):
        with pytest.raises(ToolFailure, match=r"Refused: localhost\.example: .*allow_private_urls"):
            await check_host("localhost.example", 80, allow_private=False, lookup=answering("8.8.8.8", private))
        assert await check_host("a.example", 80, allow_private=True, lookup=answering(private)) == [private]


@pytest.mark.asyncio
async def test_literals_and_localhost_are_not_looked_up() -> None:
    seen: list[str] = []
    lookup = answering("8.8.8.8", seen=seen)
    assert await check_host("134744072", 80, allow_private=False, lookup=lookup) == ["8.8.8.8"]
    for host in ("localhost", "127.1", "[::1]"):
        with pytest.raises(ToolFailure, match="Refused"):
            await check_host(host, 80, allow_private=False, lookup=lookup)
    assert seen == []


@pytest.mark.asyncio
async def test_a_name_without_address_is_the_callers_mistake() -> None:
    for host in ("nothing.invalid", "a" * 70 + ".example", "a..example"):
        with pytest.raises(ToolFailure, match="no address found"):
            await check_host(host, 80, allow_private=False)
    with pytest.raises(ToolFailure, match="no address found"):
        await check_host("a.example", 80, allow_private=False, lookup=answering())


@pytest.mark.asyncio
async def test_the_machines_resolver_is_asked() -> None:
    assert "127.0.0.1" in await system_lookup("localhost", 80)

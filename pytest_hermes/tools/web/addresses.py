"""Which hosts a model may make this machine contact: public ones, unless `env.allow_private_urls` says otherwise.

Only what is connected to counts. Literal addresses are judged by `forbidden`; a name is judged by all the addresses
that it resolves to (`check_host`), and a caller connects to the addresses that came back, never to the name again.
"""

from __future__ import annotations

import asyncio
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from pytest_hermes.tools.tool import ToolFailure

Address = IPv4Address | IPv6Address
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to the addresses, as text; raises OSError. Tests put their own here."""

_KINDS: tuple[tuple[IPv4Network | IPv6Network, str], ...] = tuple(
    (IPv6Network(net) if ":" in net else IPv4Network(net), kind)
    for net, kind in {
        "0.0.0.0/8": "an unspecified address",
        "127.0.0.0/8": "a loopback address",
        "169.254.0.0/16": "a link-local address (cloud metadata among them)",
        "100.64.0.0/10": "an address of carrier-grade NAT",
        "10.0.0.0/8": "a private address",
        "172.16.0.0/12": "a private address",
        "192.168.0.0/16": "a private address",
        "192.0.0.0/24": "a reserved address",
        "224.0.0.0/4": "a multicast address",
        "168.63.129.16/32": "a cloud metadata address",
        "192.88.99.0/24": "an address of a 6to4 relay",
        "::/128": "an unspecified address",
        "::1/128": "a loopback address",
        "::ffff:0:0/96": "an IPv4 address inside IPv6",
        "::/96": "an IPv4 address inside IPv6",
        "64:ff9b::/96": "an IPv4 address behind NAT64",
        "64:ff9b:1::/48": "an IPv4 address behind NAT64",
        "2001::/32": "an IPv4 address inside IPv6 (Teredo)",
        "2002::/16": "an IPv4 address inside IPv6 (6to4)",
        "3fff::/20": "an address for documentation",
        "fc00::/7": "a private address",
        "fe80::/10": "a link-local address",
        "fec0::/10": "a private address",
        "ff00::/8": "a multicast address",
    }.items()
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")


def forbidden(host: str | Address) -> str | None:
    """Why `host` may not be contacted ("127.0.0.1 is a loopback address"), or None if nothing speaks against it.

    Literal addresses are judged in every spelling that resolvers and browsers take; of names only `localhost` and those
    below it are, the others need `check_host`.
    """
    address = literal(host) if isinstance(host, str) else host
    if address is None:
        name = _plain(str(host)).lower()
        return f"{name} is this machine" if name == "localhost" or name.endswith(".localhost") else None
    kind = next((kind for network, kind in _KINDS if address in network), None)
    if kind is None and (not address.is_global or (address.version == 6 and address not in _GLOBAL_UNICAST)):
        kind = "a reserved address"
    if kind is None:
        return None
    spelt = f" ({str(host)[:80]})" if str(host).strip("[]") != str(address) else ""
    return f"{address}{spelt} is {kind}"


def literal(host: str) -> Address | None:
    """The address that `host` spells, None if it is a name: brackets, a trailing dot, full-width digits, and the
    decimal, octal, hexadecimal and shortened IPv4 forms of inet_aton(3) are understood."""
    text = _plain(host)
    try:
        return ip_address(text)
    except ValueError:
        pass
    if not text.isascii() or not text.isprintable() or " " in text:
        return None  # inet_aton stops reading at white space
    try:
        return IPv4Address(socket.inet_aton(text))
    except OSError:
        return None


def _plain(host: str) -> str:
    text = unicodedata.normalize("NFKC", host).replace("\u3002", ".")
    return text.removeprefix("[").removesuffix("]").rstrip(".")


async def system_lookup(host: str, port: int) -> list[str]:
    """The addresses that this machine's resolver gives, in its order. Raises OSError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # no name: an empty or overlong label
        raise OSError(str(error)) from error
    return list(dict.fromkeys(str(place[4][0]) for place in found))


async def check_host(host: str, port: int, *, allow_private: bool, lookup: Lookup = system_lookup) -> list[str]:
    """The addresses of `host`, which may all be contacted; connect to these.

    Raises ToolFailure when the name cannot be resolved, or when it (or one of its addresses) is forbidden and
    `allow_private` is false. A name with a public and a private address is refused: that is what rebinding looks like.
    """
    reason = None if allow_private else forbidden(host)
    addresses: Sequence[str] = []
    if reason is None:
        address = literal(host)
        try:
            addresses = [str(address)] if address else await lookup(host, port)
        except OSError as error:
            raise ToolFailure(f"{host}: no address found ({error.strerror or error}). Check the spelling.") from None
        if not allow_private:
            reasons = (forbidden(found) for found in addresses)
            reason = next((f"{host}: {found}" for found in reasons if found), None)
    if reason is not None:
        raise ToolFailure(
            f"Refused: {reason}; only public addresses may be contacted (env.allow_private_urls is false)."
        )
    if not addresses:
        raise ToolFailure(f"{host}: no address found. Check the spelling.")
    return list(addresses)

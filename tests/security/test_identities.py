"""Identities, their tokens and their permissions."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroad import Filter
from postroad.core.protocol.rights import EVERYTHING, NOTHING, OPEN, Rights
from postroad.errors import IdentitiesError, PermissionDeniedError, TokenError
from postroad.security.identities import Identities, Identity, create_identity, read_identities, revoke_identity
from postroad.security.tokens import digest_of, make_token

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_token_belongs_to_the_identity_it_was_made_for(tmp_path: Path) -> None:
    """The file holds the hash only, is readable by its owner only, and survives being changed."""
    path = tmp_path / "identities.toml"
    shop, bank = (create_identity(path, Identity(name=name, publish=True)) for name in ("shop", "bank"))
    assert shop is not None
    assert bank is not None
    assert shop not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    identities = read_identities(path)
    assert identities.of_token(shop, NOW).name == "shop"
    assert identities.of_token(bank, NOW).name == "bank"
    revoke_identity(path, "shop")
    with pytest.raises(TokenError):
        read_identities(path).of_token(shop, NOW)


@pytest.mark.parametrize("token", ["", "prt_", "prt_" + "A" * 43, "x" * 100_000, "prt_\0"])
def test_whatever_is_no_token_gets_the_same_error(token: str) -> None:
    """Nobody learns from the error whether a token exists."""
    expired = make_token()
    identities = Identities([Identity(name="old", token_sha256=digest_of(expired), expires=NOW)])
    texts = set()
    for each in (token, expired):
        with pytest.raises(TokenError) as caught:
            identities.of_token(each, NOW)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_an_identity_expires() -> None:
    identities = Identities([Identity(name="old", expires=NOW)])
    assert identities.of_name("old", NOW) is None
    assert identities.of_name("old", NOW - timedelta(seconds=1)) is not None
    assert identities.of_name("nobody", NOW) is None


def test_an_identity_without_permissions_may_do_nothing() -> None:
    rights = Identity(name="nobody").rights()
    for attempt in (rights.publishable, lambda: rights.subscribable(EVERYTHING), rights.traceable, rights.administer):
        with pytest.raises(PermissionDeniedError, match="nobody may not"):
            attempt()
    with pytest.raises(PermissionDeniedError):
        rights.use_queue("put", "orders")
    with pytest.raises(PermissionDeniedError):
        NOTHING.publishable()


@pytest.mark.parametrize(
    "fields",
    [
        {"publish": "region ="},
        {"queues": ("orders",)},
        {"queues": ("eat:orders",)},
        {"queues": ("put:",)},
        {"queues": ("put:or*ders",)},
        {"topics": ("manage:x",)},
    ],
)
def test_a_permission_that_says_nothing_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(IdentitiesError, match="identity 'shop'"):
        Identity(name="shop", **fields).rights()  # type: ignore[arg-type]


def test_names_of_queues_are_whole_or_prefixes() -> None:
    rights = Identity(name="shop", queues=("put:orders", "take:in.*")).rights()
    rights.use_queue("put", "orders")
    rights.use_queue("take", "in.eu")
    for action, name in (("put", "orders2"), ("take", "orders"), ("take", "in"), ("manage", "orders")):
        with pytest.raises(PermissionDeniedError):
            rights.use_queue(action, name)


@pytest.mark.parametrize("wanted", ["", "a = 1 OR b = 2", "a = 1 OR TRUE", "NOT s = 'x'", "s = 'EU' AND a = 1", "s IS NULL"])
def test_a_filter_is_joined_with_the_permission_on_the_tree(wanted: str) -> None:
    """An OR in the text does not escape from the permission."""
    permission = Filter("s = 'EU'")
    rights = Rights("shop", subscribe=permission)
    allowed = rights.subscribable(Filter(wanted))
    for region in ("EU", "US", None):
        for number in (1, 2, None):
            attributes = {"s": region, "a": number, "b": number}
            expected = permission.matches(attributes) is True and Filter(wanted).matches(attributes) is True
            assert (allowed.matches(attributes) is True) == expected, (wanted, attributes)
    assert OPEN.subscribable(Filter(wanted)) == Filter(wanted)


def test_two_identities_cannot_share_a_name_or_a_token(tmp_path: Path) -> None:
    digest = digest_of("x")
    with pytest.raises(IdentitiesError, match="the name"):
        Identities([Identity(name="a"), Identity(name="a")])
    with pytest.raises(IdentitiesError, match="share a token"):
        Identities([Identity(name="a", token_sha256=digest), Identity(name="b", token_sha256=digest)])
    path = tmp_path / "identities.toml"
    create_identity(path, Identity(name="a"))
    with pytest.raises(IdentitiesError, match="revoke it first"):
        create_identity(path, Identity(name="a"))


@pytest.mark.parametrize("text", ["[[identity]]", '[[identity]]\nname = "a b"', '[[identity]]\nname = "a"\nrole = "x"', "x = ["])
def test_a_file_that_says_something_unknown_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "identities.toml"
    path.write_text(text)
    with pytest.raises(IdentitiesError, match=r"identities\.toml"):
        read_identities(path)

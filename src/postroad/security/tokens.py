"""Tokens: 256 random bits that we make ourselves, so there is no password to guess and nothing to decode.

A token looks like `prt_` and 43 characters. The file of identities holds its SHA-256 only; with 256 random bits no slow hash is
needed. Tokens are compared by their hashes in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

PREFIX: Final = "prt_"
RANDOM_BYTES: Final = 32
CHARACTERS_MAX: Final = 128


def make_token() -> str:
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def digest_of(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_token_of(token: str, digest: str) -> bool:
    return hmac.compare_digest(digest_of(token), digest)

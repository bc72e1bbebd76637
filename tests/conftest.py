"""Fixtures shared by all tests."""

from __future__ import annotations

pytest_plugins = ("tests.postgres",)

"""Ranges of seeds, as the simulators' commands take them."""

from __future__ import annotations

import click


class SeedRange(click.ParamType[range]):
    """`A:B` means the seeds A to B - 1, one number that seed alone."""

    name = "A:B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        first, colon, last = str(value).partition(":")
        if not first.isdigit() or (colon and not last.isdigit()):
            self.fail(f"{value!r} is not a range of seeds; write A:B for the seeds A to B - 1, or one seed", param, ctx)
        seeds = range(int(first), int(last) if colon else int(first) + 1)
        if not seeds:
            self.fail(f"{value!r} is an empty range of seeds", param, ctx)
        return seeds

"""Postroad: messaging you can audit."""

from importlib.metadata import PackageNotFoundError, version

from postroad.core.filters.filter import Filter
from postroad.core.filters.limits import FilterLimits
from postroad.errors import FilterSyntaxError, PostroadError
from postroad.types import MessageId

try:
    __version__ = version("postroad")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

__all__ = ["Filter", "FilterLimits", "FilterSyntaxError", "MessageId", "PostroadError", "__version__"]

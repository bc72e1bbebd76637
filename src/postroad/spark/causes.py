"""The root cause in an error of Spark: what a person needs to know of hundreds of lines of stack traces."""

from __future__ import annotations

import re
from typing import Any, Final

SHOWN_MAX: Final = 400
_CAUSES_MAX: Final = 20
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Warning|Interrupt|Exit)): (.+)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^\s*Caused by: (?:[\w.$]+\.)?([\w$]+): (.+)$", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last)"
_WRAPPERS: Final = frozenset({"PythonException", "SparkException", "PySparkException", "PySparkRuntimeError", "Py4JJavaError"})


def root_cause(error: BaseException) -> str:
    """Return one line that says why a job failed."""
    text = f"{error}\n{_chain(error)}"
    if _TRACEBACK in text:
        raised = [f"{name}: {said}" for name, said in _PYTHON.findall(text.split(_TRACEBACK, 1)[1]) if name not in _WRAPPERS]
        if raised:
            return raised[-1][:SHOWN_MAX]
    caused = [(name, said) for name, said in _JAVA.findall(text) if name not in _WRAPPERS]
    if caused:
        name, said = caused.pop()
        while caused and said in caused[-1][1]:  # the one before it says the same, and of what
            name, said = caused.pop()
        return f"{name}: {said}"[:SHOWN_MAX]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:SHOWN_MAX]


def _chain(error: BaseException) -> str:
    """Return the causes that Java knows, outermost first, as its stack traces write them."""
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    lines = []
    for _ in range(_CAUSES_MAX):
        if cause is None:
            break
        lines.append(f"Caused by: {cause.toString()}")
        cause = cause.getCause()
    return "\n".join(lines[1:])

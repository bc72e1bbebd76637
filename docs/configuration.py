"""The page of a broker's and a topology's configuration keys, from the structs that read them."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

import msgspec

from postroad.runtime import config

HEAD = """# Configuration

A broker reads one TOML file (`postroad broker --config FILE`). Two keys are needed, everything else has a default:

```toml
id = 1
data_dir = "/var/lib/postroad"
listen = "127.0.0.1:7400"

[[neighbours]]
address = "10.0.0.2:7400"
```

An unknown key is an error, which suggests a similar one. Sizes are in bytes, times in seconds (with `_ms`, milliseconds).

"""

TOPOLOGY = """# A topology file

`postroad overlay FILE` runs all brokers of one file on this machine:

```toml
data_dir = "data"

[[brokers]]
name = "north"
id = 1
listen = "127.0.0.1:7401"
neighbours = ["south"]

[[brokers]]
name = "south"
id = 2
listen = "127.0.0.1:7402"
```

"""


def config_page() -> str:
    """List every key with its type, default and meaning."""
    broker = config.sections(config.NodeConfig)
    topology = [section for section in config.sections(config.TopologyConfig) if section not in broker]
    return HEAD + "\n".join(map(_section, broker)) + "\n" + TOPOLOGY + "\n".join(map(_section, topology))


def _section(section: type[msgspec.Struct]) -> str:
    title, _, rest = (inspect.getdoc(section) or "").partition(":")
    heading = f"## {title.strip()}" if rest else f"## {title.strip().rstrip('.')}"
    intro = f"{rest.strip()[0].upper()}{rest.strip()[1:]}\n\n" if rest else ""
    rows = [_row(field) for field in msgspec.structs.fields(section)]
    return f"{heading}\n\n{intro}| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _row(field: msgspec.structs.FieldInfo) -> str:
    info = msgspec.inspect.type_info(field.type)
    schema = info.extra_json_schema or {} if isinstance(info, msgspec.inspect.Metadata) else {}
    return f"| `{field.name}` | {_kind(field.type)} | {_default(field)} | {schema.get('description', '')} |"


def _kind(annotation: Any) -> str:
    """Say in a word what a key holds."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kind(typing.get_args(annotation)[0])
    if origin is tuple:
        inner = typing.get_args(annotation)[0]
        return "tables" if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else f"list of {_kind(inner)}"
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(each) for each in typing.get_args(annotation) if each is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return "table"
    return {bool: "`true` or `false`", int: "integer", float: "number", str: "string"}[annotation]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "needed"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if isinstance(value, msgspec.Struct) or value == () or value is None:
        return ""
    if isinstance(value, bool):
        return f"`{value}`".lower()
    return f"`{value:_}`" if isinstance(value, int) else f"`{value}`" if value != "" else ""

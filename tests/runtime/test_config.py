"""Configuration files: what is read, and how a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.errors import ConfigError
from postroad.runtime.config import (
    Limits,
    Neighbour,
    NodeConfig,
    Overlay,
    TopologyConfig,
    Tracking,
    dump_config,
    load_config,
    load_topology,
    parse_config,
    split_address,
)


def test_the_smallest_file_gives_the_defaults_and_listens_to_this_machine_only(tmp_path: Path) -> None:
    """Two keys are enough; the data directory is relative to the file."""
    file = tmp_path / "broker.toml"
    file.write_text('id = 7\ndata_dir = "data"\n', encoding="utf-8")
    config = load_config(file)
    assert (config.id, config.title, config.listen) == (7, "broker-7", "127.0.0.1:7400")
    assert config.data_dir == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id = 1\ndata_dir = 'd'\nlissen = 'x:1'", "unknown key `lissen`; did you mean `listen`?"),
        (
            "id = 1\ndata_dir = 'd'\n[limits]\nconections_max = 1",
            "unknown key `limits.conections_max`; did you mean `connections_max`?",
        ),
        ("id = 1\ndata_dir = 'd'\n[[neighbours]]\naddress = 'x:1'\nprice = 2", "unknown key `neighbours[0].price`"),
        ("id = 1\ndata_dir = 'd'\nzzzzqqq = 1", "known keys: "),
        ("data_dir = 'd'", "missing key `id`"),
        ("id = 0\ndata_dir = 'd'", "`id`"),
        ("id = 1\ndata_dir = 'd'\nlisten = 'nowhere'", "`listen`"),
        ("id = 1\ndata_dir = 'd'\n[links]\nheartbeat_s = -1", "`links.heartbeat_s`"),
        ("id = 1\ndata_dir = 'd'\n[tracking]\nbits = 65537", "`tracking.bits` must be a multiple of 8"),
        ("id = 1\ndata_dir = 'd'\n[tracking]\nbits = 64\ncapacity = 65", "at least `tracking.capacity` (65)"),
        ("id = 1\ndata_dir = 'd'\n[tracking]\nhashes = 0", "`tracking.hashes`"),
        ("id = 1\ndata_dir = 'd'\n[tracking]\nstrategy = 'blom'", "`tracking.strategy`"),
        ("id = 1\ndata_dir = 'd'\n[tracking]\npersistance_ms = 1", "did you mean `persistence_ms`?"),
        ("id = ", "not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, said: str) -> None:
    """The text names the key and, if there is one, a similar known key."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, NodeConfig, "file.toml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("file.toml: ")


def test_a_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    """No traceback for a wrong path."""
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        load_config(tmp_path / "missing.toml")


def test_a_configuration_written_out_reads_back_the_same() -> None:
    """The overlay command hands configurations to its brokers this way."""
    config = NodeConfig(
        id=3,
        name='a "quoted" name',
        data_dir="/d",
        neighbours=(Neighbour(address="h:1", cost=5), Neighbour(address="[::1]:2")),
        limits=Limits(connections_max=5),
        overlay=Overlay(retired=(4, 5)),
        tracking=Tracking(strategy="bloom", bits=1024, hashes=5, capacity=100, retention_s=60.0, per_neighbour=True),
    )
    assert parse_config(dump_config(config), NodeConfig, "text") == config


TOPOLOGY = """
data_dir = "all"
[[brokers]]
name = "north"
id = 1
listen = "127.0.0.1:7401"
neighbours = ["south"]
[[brokers]]
name = "south"
id = 2
listen = "127.0.0.1:7402"
data_dir = "elsewhere"
[links]
heartbeat_s = 0.5
[tracking]
strategy = "bloom"
"""


def test_a_topology_gives_each_broker_its_configuration(tmp_path: Path) -> None:
    """Names of neighbours become addresses, shared sections go to all."""
    file = tmp_path / "overlay.toml"
    file.write_text(TOPOLOGY, encoding="utf-8")
    north, south = load_topology(file)
    assert north.neighbours == (Neighbour(address="127.0.0.1:7402"),)
    assert (north.data_dir, south.data_dir) == (str(tmp_path / "all" / "north"), str(tmp_path / "elsewhere"))
    assert north.links.heartbeat_s == south.links.heartbeat_s == 0.5
    assert north.tracking.strategy == south.tracking.strategy == "bloom"


def test_what_the_theorems_do_not_like_is_not_refused() -> None:
    """A short lifetime or a large skew costs accuracy, which `postroad tracking plan` tells; it breaks nothing."""
    text = "id = 1\ndata_dir = 'd'\n[tracking]\npersistence_ms = 1\nskew_tolerance_ms = 86_400_000"
    settings = parse_config(text, NodeConfig, "x").tracking.settings()
    assert (settings.persistence_ms, settings.skew_tolerance_ms, settings.strategy) == (1, 86_400_000, "exact")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('neighbours = ["south"]', 'neighbours = ["sout"]'), "did you mean `south`?"),
        (("id = 2", "id = 1"), "two brokers have the id `1`"),
        (('name = "south"', 'name = "north"'), "two brokers have the name `north`"),
        (("127.0.0.1:7402", "127.0.0.1:7401"), "two brokers have the listen"),
    ],
)
def test_a_topology_that_contradicts_itself_is_refused(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    """Ids, names and addresses are unique, and neighbours exist."""
    file = tmp_path / "overlay.toml"
    file.write_text(TOPOLOGY.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_topology(file)
    assert said in str(caught.value)
    assert isinstance(parse_config(TOPOLOGY, TopologyConfig, "x"), TopologyConfig)


def test_addresses_may_be_ipv6() -> None:
    """Brackets keep the colons of the host apart from the port's."""
    assert split_address("[::1]:7400") == ("::1", 7400)
    with pytest.raises(ConfigError):
        split_address("host:99999")

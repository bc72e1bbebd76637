"""The settings of a broker's machine, from its configuration file and the options of its command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from postroad.core.broker.admission_settings import AdmissionSettings
from postroad.runtime.config import NodeConfig
from postroad.runtime.rate_profile import publisher_rates
from postroad.tracking.tap.tracked_broker import TrackedConfig

REPLACE_WAIT_S: Final = 30.0  # for a neighbour to tell what is known of the broker that this one replaces


def machine_settings(config: NodeConfig, *, replaces: bool) -> TrackedConfig:
    """Return the settings of the machine; with `replaces`, the files of its former life are lost."""
    overlay, limits = config.overlay, config.limits
    return TrackedConfig(
        cache_bytes=overlay.cache_bytes,
        silence_s=overlay.silence_s,
        subscriber_grace_s=overlay.subscriber_grace_s,
        keep_s=config.storage.keep_s,
        publish_window_bytes=limits.publish_window_bytes,
        pubends=config.pubends,
        subscriptions_max=limits.subscriptions_max,
        subscriptions_per_identity_max=limits.subscriptions_per_identity_max,
        names_per_identity_max=limits.names_per_identity_max,
        newcomer_wait_s=_newcomer_wait_s(config, replaces=replaces),
        replaces=replaces,
        has_neighbours=bool(config.neighbours),
        home_query_s=overlay.home_query_s,
        retired=overlay.retired,
        congestion=config.congestion.settings(),
        admission=_admission_settings(config),
        tracking=config.tracking.settings(),
    )


def _admission_settings(config: NodeConfig) -> AdmissionSettings:
    settings, path = config.admission.settings(), config.admission.rates_file
    return replace(settings, publisher_rates=publisher_rates(Path(path), config.id)) if path else settings


def _newcomer_wait_s(config: NodeConfig, *, replaces: bool) -> float:
    """Return how long to wait, with empty files, for word of a former life; others may link to one that names none."""
    wait_s = config.overlay.newcomer_wait_s
    if not config.neighbours:
        return wait_s if replaces else 0.0
    return max(wait_s, REPLACE_WAIT_S) if replaces else wait_s

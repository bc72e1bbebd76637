"""From what is asked of tracking to its parameters, and back: the theory of section 4 as arithmetic.

The quantities, under the paper's names: a bloom has m bits, k hash functions and takes n ids. Equation (1) gives its false
positive probability fpp, equation (2) that of a history, efpp, with |M| blooms in a matching set. At the peak rate a bloom is
full after T_f = n / rate; it is stored after T_p at the latest; so it lives for T_n = min(T_f, T_p) at least. Matching sets
stay within |M| = w + 1 if 2 T_s + T_j <= w T_n (Theorem 1 without the jitter T_j, Corollary 2 with it).

`plan` looks for the parameters that are not given; `check` says of a complete set which inequality fails, by how much, and
which change would repair it. Like the paper, a plan takes a whole number of bits per message, the smallest that will do, and
n = m / bits to the nearest; with the paper's k this gives all six of its (m, k, n), but for one message: 65,536 / 26 is
2520.6 and it took 2,521, 65,536 / 9 is 7281.8 and it took 7,281.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, expm1, floor, log, log1p
from typing import Final

from postroad.errors import InvalidValueError
from postroad.tracking.histories import blooms
from postroad.tracking.histories.settings import TrackingSettings

M_SMALLEST: Final = 1 << 10
M_USUAL: Final = 1 << 16  # 8 KiB
M_LARGEST: Final = 1 << 27  # 16 MiB for each history in memory
K_USUAL_MAX: Final = 16  # above it a bloom gains less than a hundredth in size
MATCHING_SET_MAX: Final = 64
RATE_MIN: Final = 1e-6
T_P_MARGIN: Final = 1.1  # "slightly larger than T_f" (section 4.2)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. Whatever is None is to be found; `matching_set` is |M| = w + 1."""

    efpp: float
    rate: float  # messages per second of one history, at its peak
    matching_set: int = 2
    m: int | None = None
    k: int | None = None
    n: int | None = None
    persistence_ms: float | None = None  # T_p
    skew_ms: float | None = None  # T_s
    jitter_ms: float = 0.0  # T_j

    def __post_init__(self) -> None:
        _between("efpp", self.efpp, 1e-15, 0.5)
        _between("rate", self.rate, RATE_MIN, 1e12)
        _between("matching set", self.matching_set, 1, MATCHING_SET_MAX)
        _between("m", self.m, 8, blooms.M_MAX)
        _between("k", self.k, 1, blooms.K_MAX)
        _between("n", self.n, 1, blooms.M_MAX)
        _between("persistence interval", self.persistence_ms, 1e-3, 1e12)
        _between("skew tolerance", self.skew_ms, 0, 1e12)
        _between("jitter", self.jitter_ms, 0, 1e12)

    @property
    def fpp(self) -> float:
        """What a single bloom may have: equation (2) solved for fpp."""
        return -expm1(log1p(-self.efpp) / self.matching_set)


@dataclass(frozen=True, slots=True)
class Broken:
    """An inequality that does not hold: `left` should be at most `right`."""

    name: str
    inequality: str
    left: float
    right: float
    unit: str
    repairs: tuple[str, ...]

    def __str__(self) -> str:
        over = self.left - self.right
        by = f"{_readable(over)} {self.unit} too much" if self.unit else f"{self.left / self.right:,.2f} times too much"
        sides = f"{_readable(self.left)} > {_readable(self.right)} {self.unit}".rstrip()
        return f"{self.name}: {self.inequality} fails: {sides}, {by}. Fix it with one of: {'; '.join(self.repairs)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A complete set of parameters, what follows from them, and what is wrong with them."""

    wish: Wish
    m: int
    k: int
    n: int
    persistence_ms: float
    skew_ms: float
    broken: tuple[Broken, ...] = ()

    @property
    def matching_set(self) -> int:
        return self.wish.matching_set

    @property
    def fpp(self) -> float:
        return blooms.fpp(self.m, self.k, self.n)

    @property
    def efpp(self) -> float:
        return efpp(self.fpp, self.matching_set)

    @property
    def fill_ms(self) -> float:
        """T_f."""
        return 1000 * self.n / self.wish.rate

    @property
    def lifetime_ms(self) -> float:
        """T_n."""
        return min(self.fill_ms, self.persistence_ms)

    @property
    def bits_per_message(self) -> float:
        """Of a bloom that is stored full."""
        return self.m / self.n

    @property
    def stored_bits_per_message(self) -> float:
        """At the peak rate, where T_p may store blooms before they are full."""
        return self.m / max(min(self.n, self.wish.rate * self.persistence_ms / 1000), 1)

    @property
    def skew_ms_max(self) -> float:
        """The largest T_s that the matching set bears."""
        return max(((self.matching_set - 1) * self.lifetime_ms - self.wish.jitter_ms) / 2, 0.0)


def efpp(fpp: float, matching_set: int) -> float:
    """Return the expected false positive probability of a history: equation (2)."""
    return -expm1(matching_set * log1p(-fpp)) if fpp < 1 else 1.0


def capacity_for(m: int, k: int, fpp: float) -> int:
    """Return how many ids a bloom takes before its false positive probability exceeds this: equation (1) solved for n."""
    return floor(log1p(-(fpp ** (1 / k))) / (k * log1p(-1 / m)))


def bits_for(m: int, k: int, fpp: float) -> int:
    """Return the smallest whole number of bits per message that will do."""
    capacity = capacity_for(m, k, fpp)
    return ceil(m / capacity) if capacity else m


def best_k(m: int, fpp: float, k_max: int = K_USUAL_MAX) -> int:
    """Return the number of hash functions that lets the bloom take the most ids, of two equals the smaller."""
    return max(range(1, k_max + 1), key=lambda k: (capacity_for(m, k, fpp), -k))


def optimal_k(bits_per_message: float) -> int:
    """Return the k with the lowest false positive probability at m/n: about m/n ln 2."""
    around = max(1, floor(bits_per_message * log(2)))
    return min((around, around + 1), key=lambda k: (-expm1(-k / bits_per_message)) ** k)


def unnecessary_searches(neighbours: int, probability: float) -> float:
    """Return how many of the neighbours that did not see a message will be searched all the same: section 4.3's D' efpp."""
    return neighbours * probability


def plan(wish: Wish) -> Plan:
    """Find what is not given. What cannot be had is in the plan's `broken`."""
    if wish.m is not None:
        return _plan_for(wish, wish.m)
    sizes = [1 << bits for bits in range(M_SMALLEST.bit_length() - 1, M_LARGEST.bit_length())]
    return _plan_for(wish, _size(wish, sizes))


def _size(wish: Wish, sizes: list[int]) -> int:
    """Choose m: as the skew demands; else so that blooms are full within T_p; else the usual."""
    if wish.skew_ms is not None or wish.jitter_ms:
        usual = [m for m in sizes if m >= M_USUAL]
        return min(usual, key=lambda m: _excess_ms(_plan_for(wish, m)))  # the first of those that do equally well
    if wish.persistence_ms is not None:
        full = [m for m in sizes if _plan_for(wish, m).fill_ms <= wish.persistence_ms]
        return full[-1] if full else sizes[0]
    return M_USUAL


def _excess_ms(found: Plan) -> float:
    """Return by how much clocks and ways exceed what the matching set bears; 0 when they do not."""
    return max(2 * found.skew_ms + found.wish.jitter_ms - (found.matching_set - 1) * found.lifetime_ms, 0.0)


def _plan_for(wish: Wish, m: int) -> Plan:
    k = wish.k if wish.k is not None else best_k(m, wish.fpp)
    n = wish.n if wish.n is not None else _capacity(m, k, wish.fpp)
    fill_ms = 1000 * n / wish.rate
    persistence_ms = wish.persistence_ms if wish.persistence_ms is not None else ceil(fill_ms * T_P_MARGIN)
    found = Plan(wish, m, k, n, persistence_ms, 0.0)
    skew_ms = wish.skew_ms if wish.skew_ms is not None else float(floor(found.skew_ms_max))
    return check(replace(found, skew_ms=skew_ms))


def _capacity(m: int, k: int, fpp: float) -> int:
    """Return m / bits, to the nearest, for the smallest whole number of bits that will do."""
    most = capacity_for(m, k, fpp)
    return max(min(round(m / bits_for(m, k, fpp)), most), 1)


def check(found: Plan) -> Plan:
    """Return the plan with the inequalities that it breaks."""
    return replace(found, broken=tuple(fault for fault in (_inaccurate(found), _check_skew(found)) if fault is not None))


def check_rate(settings: TrackingSettings, rate: float) -> Broken | None:
    """Say whether blooms with these settings bear a history of so many messages per second, with matching sets of two."""
    skew_ms, lifetime_ms = float(settings.skew_tolerance_ms), float(settings.lifetime_ms)
    wish = Wish(0.5, max(rate, RATE_MIN), 2, settings.m, settings.k, settings.n, lifetime_ms, skew_ms, float(settings.jitter_ms))
    return _check_skew(Plan(wish, settings.m, settings.k, settings.n, lifetime_ms, skew_ms))


def matching_set(settings: TrackingSettings, rate: float) -> int:
    """Return how many blooms of a history an id may have to be looked for in: |M| = w + 1, with the w that it takes."""
    life_ms = min(1000 * settings.n / max(rate, RATE_MIN), settings.lifetime_ms)
    return 1 + ceil(settings.late_ms / life_ms)


def _inaccurate(found: Plan) -> Broken | None:
    wish = found.wish
    if found.efpp <= wish.efpp:
        return None
    repairs = []
    capacity = capacity_for(found.m, found.k, wish.fpp)
    if capacity:
        repairs.append(f"n <= {capacity:,}")
        repairs.append(f"m >= {ceil(found.n * found.m / capacity):,} bits")
    k = best_k(found.m, wish.fpp, blooms.K_MAX)
    if capacity_for(found.m, k, wish.fpp) >= found.n:
        repairs.append(f"k = {k}")
    if found.fpp <= wish.efpp and found.matching_set > 1:
        repairs.append(f"a matching set of {max(floor(log1p(-wish.efpp) / log1p(-found.fpp)), 1)}")
    repairs.append(f"an efpp of {found.efpp:.2g}")
    return Broken("Equations (1) and (2)", "1 - (1 - fpp)^|M| <= efpp", found.efpp, wish.efpp, "", tuple(repairs))


def _check_skew(found: Plan) -> Broken | None:
    wish, w = found.wish, found.matching_set - 1
    left, right = 2 * found.skew_ms + wish.jitter_ms, w * found.lifetime_ms
    if left <= right:
        return None
    name = "Corollary 2" if wish.jitter_ms else "Theorem 1"
    inequality = "2 T_s + T_j <= w T_n" if wish.jitter_ms else "2 T_s <= w T_n"
    return Broken(name, f"{inequality} with w = {w}", left, right, "ms", tuple(_skew_repairs(found, left)))


def _skew_repairs(found: Plan, left: float) -> list[str]:
    wish, w = found.wish, found.matching_set - 1
    repairs = []
    if w * found.lifetime_ms >= wish.jitter_ms:
        repairs.append(f"T_s <= {floor(found.skew_ms_max):,} ms")
    if w:
        repairs.append(_longer_lives(found, left / w))
    larger = ceil(left / found.lifetime_ms) + 1
    if larger <= MATCHING_SET_MAX:
        repairs.append(f"a matching set of {larger}, which has efpp {efpp(found.fpp, larger):.2g} with these blooms")
    return repairs


def _longer_lives(found: Plan, needed_ms: float) -> str:
    """Say what makes T_n = min(T_f, T_p) as long as this."""
    parts = []
    if found.fill_ms < needed_ms:
        n = ceil(needed_ms * found.wish.rate / 1000)
        parts.append(f"n >= {n:,} with m >= {ceil(n * found.bits_per_message):,} bits (then T_f >= {ceil(needed_ms):,} ms)")
    if found.persistence_ms < needed_ms:
        parts.append(f"T_p >= {ceil(needed_ms):,} ms")
    return " and ".join(parts)


def _readable(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:,.4g}"


def _between(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidValueError(f"the {name} must be from {low:g} to {high:g}, not {value:g}")

"""Plans and checks of tracking's parameters, and the command that shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.cli import main
from postroad.errors import InvalidValueError
from postroad.tracking.histories import blooms, tuning
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.histories.tuning import Plan, Wish, plan


@pytest.mark.parametrize(
    ("efpp", "m", "k", "n"),
    [
        (1e-5, 1 << 16, 16, 2_521),
        (0.01, 1 << 16, 8, 5_461),
        (0.05, 1 << 16, 8, 7_281),
        (1e-5, 1 << 20, 12, 38_836),
        (0.01, 1 << 20, 6, 87_381),
        (0.05, 1 << 20, 6, 131_072),
    ],
)
def test_a_plan_gives_the_capacities_of_the_paper(efpp: float, m: int, k: int, n: int) -> None:
    """With the paper's m and k, the six capacities of Table 2 come out (it rounds 65,536/9 down), and keep what they promise."""
    found = plan(Wish(efpp, 5_000, m=m, k=k))
    assert found.n == (7_282 if n == 7_281 else n)
    assert found.efpp <= efpp
    assert not found.broken


def test_the_example_of_the_paper_comes_out() -> None:
    """Five nines with two blooms in a matching set: fpp at most 5e-6, 26 bits per message, 16 hash functions (section 5.1)."""
    found = plan(Wish(1e-5, 5_000))
    assert (found.m, found.k, found.n, found.matching_set) == (65_536, 16, 2_521, 2)
    assert found.wish.fpp == pytest.approx(5e-6, rel=1e-4)
    assert found.fpp == pytest.approx(3.966e-6, rel=1e-3)  # better than asked for: 26 is the next whole number of bits
    assert found.bits_per_message == pytest.approx(26, rel=1e-3)
    assert found.skew_ms == 252
    assert found.persistence_ms > found.fill_ms


wishes = st.builds(
    Wish,
    efpp=st.floats(1e-9, 0.2),
    rate=st.floats(0.1, 1e6),
    matching_set=st.integers(1, 10),
    m=st.none() | st.integers(64, 1 << 24),
    k=st.none() | st.integers(1, 64),
    n=st.none() | st.integers(1, 1 << 20),
    persistence_ms=st.none() | st.floats(1, 1e6),
    skew_ms=st.none() | st.floats(0, 1e5),
    jitter_ms=st.just(0.0) | st.floats(0, 1e5),
)


@given(wishes)
@example(Wish(0.125, 1.0, persistence_ms=2.0, skew_ms=1e-09, jitter_ms=2.0))
def test_a_plan_that_claims_to_hold_holds(wish: Wish) -> None:
    """Whatever is asked for: no fault reported means that every inequality is true, and a fault that one is false."""
    found = plan(wish)
    accurate = 1 - (1 - blooms.fpp(found.m, found.k, found.n)) ** found.matching_set <= wish.efpp * (1 + 1e-6)
    lifetime_ms = min(1000 * found.n / wish.rate, found.persistence_ms)
    overlap_ms, borne_ms = 2 * found.skew_ms + wish.jitter_ms, (found.matching_set - 1) * lifetime_ms
    names = {fault.name for fault in found.broken}
    on_the_edge = overlap_ms == pytest.approx(borne_ms, rel=1e-6, abs=1e-6)  # where rounding decides
    assert (names == set()) == (accurate and overlap_ms <= borne_ms) or found.n == 1 or on_the_edge
    for name in ("m", "k", "n", "persistence_ms", "skew_ms"):
        asked = getattr(wish, name)
        assert asked is None or getattr(found, name) == asked


def broken(wish: Wish) -> dict[str, tuning.Broken]:
    return {fault.name: fault for fault in plan(wish).broken}


def test_a_skew_that_is_too_large_breaks_theorem_1() -> None:
    """The fault names the inequality, both sides, and repairs that do repair."""
    wish = Wish(1e-5, 5_000, m=65_536, skew_ms=300)
    fault = broken(wish)["Theorem 1"]
    assert fault.left == 600
    assert fault.right == pytest.approx(504.2)
    assert fault.repairs[0] == "T_s <= 252 ms"
    assert not plan(Wish(1e-5, 5_000, m=65_536, skew_ms=252)).broken
    assert any("n >= 3,000" in repair and "T_p >= 600 ms" in repair for repair in fault.repairs)
    assert not broken(Wish(1e-5, 5_000, m=1 << 17, n=3_000, persistence_ms=600, skew_ms=300))
    assert "a matching set of 3" in fault.repairs[-1]
    assert "Theorem 1" not in broken(Wish(1e-5, 5_000, m=65_536, skew_ms=300, matching_set=3))


def test_jitter_breaks_corollary_2() -> None:
    """With jitter it is the corollary that fails, and no skew at all can repair it when the jitter alone is too much."""
    fault = broken(Wish(1e-5, 5_000, m=65_536, skew_ms=0, jitter_ms=1_000))["Corollary 2"]
    assert not any(repair.startswith("T_s") for repair in fault.repairs)
    assert "Corollary 2" in broken(Wish(1e-5, 5_000, m=65_536, skew_ms=252, jitter_ms=10))


def test_a_short_persistence_interval_shortens_lifetimes() -> None:
    """T_n is T_p when T_p is below T_f, and blooms are stored partly full."""
    found = plan(Wish(1e-5, 5_000, m=65_536, persistence_ms=100))
    assert found.lifetime_ms == 100
    assert found.skew_ms == 50
    assert found.stored_bits_per_message == pytest.approx(65_536 / 500)


def test_too_many_messages_break_equation_2() -> None:
    """A bloom that takes too many messages: the fault says how many it may take, and that is exact."""
    fault = broken(Wish(1e-5, 5_000, m=65_536, k=16, n=5_461))["Equations (1) and (2)"]
    most = int(fault.repairs[0].removeprefix("n <= ").replace(",", ""))
    assert not broken(Wish(1e-5, 5_000, m=65_536, k=16, n=most))
    assert broken(Wish(1e-5, 5_000, m=65_536, k=16, n=most + 1))


def test_a_plan_grows_the_bloom_until_the_skew_fits() -> None:
    """Clocks that differ by seconds need blooms that live for seconds."""
    found = plan(Wish(1e-5, 5_000, skew_ms=5_000, jitter_ms=1_000))
    assert found.m == 1 << 21
    assert not found.broken


def test_a_plan_that_cannot_be_comes_as_near_as_it_can() -> None:
    """T_p = 10 s is below 2 T_s + T_j = 11 s: the bloom lives as long as T_p lets it, and the fault says what is missing."""
    found = plan(Wish(1e-5, 5_000, skew_ms=5_000, jitter_ms=1_000, persistence_ms=10_000))
    assert found.lifetime_ms == 10_000
    (fault,) = found.broken
    assert "11,000 > 10,000 ms, 1,000 ms too much" in str(fault)
    assert "T_s <= 4,500 ms" in fault.repairs
    assert "T_p >= 11,000 ms" in fault.repairs


def test_a_plan_fills_its_blooms_within_the_persistence_interval() -> None:
    """Given T_p alone, the largest bloom that is full by then."""
    found = plan(Wish(1e-5, 5_000, persistence_ms=10_000))
    assert found.m == 1 << 20
    assert found.fill_ms <= 10_000 < 2 * found.fill_ms


@pytest.mark.parametrize(
    "values", [{"efpp": 0}, {"efpp": 1}, {"rate": 0}, {"matching_set": 0}, {"m": 1}, {"k": 65}, {"n": 0}, {"skew_ms": -1}]
)
def test_wishes_out_of_bounds_are_refused(values: dict[str, float]) -> None:
    """A value that makes no sense is named in the error."""
    with pytest.raises(InvalidValueError):
        Wish(**{"efpp": 1e-5, "rate": 5_000, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("m", 7), ("m", 1_001), ("k", 65), ("n", 0), ("ids_max", 0), ("persistence_ms", 0), ("jitter_ms", -1)]
)
def test_settings_out_of_bounds_are_refused(name: str, value: int) -> None:
    """A configuration that cannot work is refused where it is made, by name."""
    with pytest.raises(InvalidValueError, match=f"tracking: {name} must be"):
        TrackingSettings(**{name: value})  # type: ignore[arg-type]


def test_unnecessary_searches_are_few() -> None:
    """Section 4.3's two figures."""
    assert tuning.unnecessary_searches(5, 1e-5) == pytest.approx(5e-5)
    assert tuning.unnecessary_searches(5, 0.05) == pytest.approx(0.25)


# --- the command ---------------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["tracking", *arguments])
    return result.exit_code, result.output


def test_the_command_prints_a_plan_as_json() -> None:
    """All that a configuration needs, under stable names."""
    code, output = run("plan", "--efpp", "1e-5", "--rate", "5000", "--json")
    document = json.loads(output)
    assert code == 0
    assert (document["m"], document["k"], document["n"], document["matching_set"]) == (65_536, 16, 2_521, 2)
    assert document["fpp"] <= 5e-6
    assert document["efpp"] <= 1e-5
    assert document["bits_per_message"] == pytest.approx(26, rel=1e-3)
    assert document["skew_tolerance_ms"] == 252
    assert document["persistence_interval_ms"] == 555


def test_the_command_prints_a_plan_to_read() -> None:
    """The bytes per message and the inequality are there."""
    code, output = run("plan", "--efpp", "1e-5", "--rate", "5000")
    assert code == 0
    assert "3.25 bytes per message" in output
    assert "Theorem 1" in output


def test_the_how_to_shows_what_the_command_prints() -> None:
    """The plan on the page is the plan of the command."""
    page = (Path(__file__).parents[3] / "docs" / "howto" / "choose-tracking.md").read_text(encoding="utf-8")
    _, output = run("plan", "--efpp", "1e-5", "--rate", "5000")
    assert f"$ postroad tracking plan --efpp 1e-5 --rate 5000\n{output}```" in page


def test_the_command_explains_what_fails_and_exits_with_1() -> None:
    """A check of bad values names the inequality, the amount and the repair."""
    values = ["--bits", "65536", "--hashes", "16", "--capacity", "2521", "--persistence-ms", "1000", "--skew-ms", "300"]
    code, output = run("check", "--efpp", "1e-5", "--rate", "5000", *values)
    assert code == 1
    assert "Theorem 1: 2 T_s <= w T_n with w = 1 fails: 600 > 504.2 ms, 95.8 ms too much" in output
    assert "T_s <= 252 ms" in output
    code, output = run("plan", "--efpp", "1e-5", "--rate", "5000", "--bits", "65536", "--skew-ms", "300", "--json")
    assert code == 1
    assert json.loads(output)["broken"][0]["name"] == "Theorem 1"


def test_a_check_needs_all_values() -> None:
    """What is missing is named."""
    code, output = run("check", "--efpp", "1e-5", "--rate", "5000", "--bits", "65536")
    assert code == 2
    assert "--hashes, --capacity, --persistence-ms, --skew-ms" in output


def test_bad_values_are_refused_with_their_code() -> None:
    """Out of bounds is an error of its own, not a plan."""
    code, output = run("plan", "--efpp", "2", "--rate", "5000")
    assert code == 1
    assert "[error 101]" in output


def test_a_plan_is_complete() -> None:
    """What follows from the parameters is computed, not stored."""
    found = Plan(Wish(1e-5, 5_000), 65_536, 16, 2_521, 1_000.0, 100.0)
    assert found.lifetime_ms == pytest.approx(504.2)
    assert tuning.check(found).broken == ()

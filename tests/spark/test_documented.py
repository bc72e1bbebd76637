"""The how-to names every option, and the example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.spark.data import batch_of, write_log

from postroad.core.protocol.packets import pubend_id
from postroad.spark.options import READ_OPTIONS, WRITE_OPTIONS

ROOT = Path(__file__).parents[2]


def test_every_option_is_in_the_how_to() -> None:
    """Nothing can be set that the page does not tell of, and it tells of nothing else."""
    page = (ROOT / "docs" / "howto" / "spark.md").read_text(encoding="utf-8")
    reading, writing = page.split("## Options for reading")[1].split("## Options for writing")
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) ", reading, re.MULTILINE)
    assert {*re.findall(r"\w+", " ".join(cells)), "paths"} == set(READ_OPTIONS)
    assert "`paths`" in reading
    assert set(re.findall(r"^\| `(\w+)` ", writing.split("## When")[0], re.MULTILINE)) == set(WRITE_OPTIONS)


def test_the_example_counts(tmp_path: Path) -> None:
    """It reads a data directory and prints counts, nothing else."""
    batch = batch_of(0, 10, {"symbol": ["A", "B"] * 5, "price": [float(n) for n in range(10)]})
    write_log(tmp_path / "data", {pubend_id(1): [batch]})
    command = [
        sys.executable,
        str(ROOT / "examples" / "spark_counts.py"),
        "--data",
        str(tmp_path / "data"),
        "--where",
        "price >= 3",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([*command, "--master", "local[1]"], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("A 3\nB 4\n", "")

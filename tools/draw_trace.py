"""Draw docs/images/trace.svg: what `postroad trace` shows of a message that crossed four brokers.

The picture is a real trace, made here: python tools/draw_trace.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import postroad.sync
from postroad.testing import overlay

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "trace.svg"
LINE_PX, CHARACTER_PX, MARGIN_PX = 22, 8.8, 24
GREEN, GREY, INK = "#0f766e", "#64748b", "#0f172a"


def trace() -> list[str]:
    """Publish an order at one end of an overlay and return the commands and what they show."""
    links = [("north", "west"), ("north", "east"), ("west", "south"), ("east", "south")]
    with overlay(links) as urls, postroad.sync.connect(urls["south"]) as south, postroad.sync.connect(urls["north"]) as north:
        billing = south.subscribe("type = 'order' AND total > 100", name="billing")
        with north.subscribe("type = 'order' AND total > 1000", name="auditors"):
            message_id = str(north.publish({"type": "order", "total": 120.5}))
            assert billing.get(timeout=30) is not None
            commands = [["trace", message_id], ["explain", message_id, "--subscriber", "auditors"]]
            lines: list[str] = []
            for command in commands:
                lines += [f"$ postroad {' '.join(command)}", *run(command, urls["north"]), ""]
        return lines[:-1]


def run(command: list[str], url: str) -> list[str]:
    environment = {**os.environ, "POSTROAD_URL": url, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "postroad", *command], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.rstrip().splitlines()


def draw(lines: list[str]) -> str:
    """Return the lines as a picture that loads nothing."""
    width = round(max(map(len, lines)) * CHARACTER_PX + 2 * MARGIN_PX)
    height = len(lines) * LINE_PX + 2 * MARGIN_PX
    texts = []
    for number, line in enumerate(lines):
        color = GREY if line.startswith("$") else GREEN if re.search(r"subscriber |^filtered", line) else INK
        shown = line.replace("&", "&amp;").replace("<", "&lt;").replace(" ", "\u00a0")
        texts.append(f'<text x="{MARGIN_PX}" y="{MARGIN_PX + 15 + number * LINE_PX}" fill="{color}">{shown}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="monospace" font-size="14.5">'
    box = f'<rect width="{width}" height="{height}" rx="10" fill="#f8fafc" stroke="#cbd5e1"/>'
    return "\n".join([head, box, *texts, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw(trace()), encoding="utf-8")

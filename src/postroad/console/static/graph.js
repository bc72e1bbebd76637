// Brokers and links as a drawing that stands still: places are computed once for a topology, and kept.
import { useMemo } from "preact/hooks";
import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from "d3-force";
import { cut, html, useMedia } from "./parts.js";

const WIDE = { width: 760, height: 400, card: { width: 172, height: 60 }, cards: 10 };
const NARROW = { width: 380, height: 460, card: { width: 158, height: 58 }, cards: 8 };
const MANY = 60; // from here on brokers are dots without numbers
const GAP = 26; // between cards
const STRETCH_MAX = 1.7;
const NEAR = 24; // cards whose places differ by less are put in one line
const LABEL = 62; // the width of a label

// The order of a walk from neighbour to neighbour: on a circle in this order, few links cross.
function walk(ids, pairs) {
  const next = new Map(ids.map((id) => [id, []]));
  for (const [a, b] of pairs) { next.get(a)?.push(b); next.get(b)?.push(a); }
  const seen = new Set();
  for (const first of ids) {
    const waiting = [first];
    while (waiting.length) {
      const id = waiting.pop();
      if (seen.has(id) || !next.has(id)) continue;
      seen.add(id);
      waiting.push(...next.get(id).sort((a, b) => b - a));
    }
  }
  return [...seen];
}

function settle(ids, pairs) {
  const nodes = ids.map((id, i) => {
    const angle = (2 * Math.PI * i) / ids.length;
    return { id, x: 200 * Math.cos(angle), y: 160 * Math.sin(angle) };
  });
  const known = new Set(ids);
  const links = pairs.filter(([a, b]) => known.has(a) && known.has(b)).map(([source, target]) => ({ source, target }));
  const many = ids.length > MANY;
  forceSimulation(nodes)
    .force("link", forceLink(links).id((node) => node.id).distance(many ? 30 : 150))
    .force("charge", forceManyBody().strength(many ? -40 : -900))
    .force("apart", forceCollide(many ? 8 : 46))
    .force("x", forceX(0).strength(0.05))
    .force("y", forceY(0).strength(0.05))
    .stop()
    .tick(ids.length > 300 ? 60 : 300);
  return nodes;
}

// Turn the drawing so that its longest direction is that of the space, with the lowest id at the upper left.
function turn(nodes, upright) {
  const mean = (read) => nodes.reduce((sum, node) => sum + read(node), 0) / nodes.length;
  const [x, y] = [mean((node) => node.x), mean((node) => node.y)];
  const [xx, yy, xy] = [mean((node) => (node.x - x) ** 2), mean((node) => (node.y - y) ** 2), mean((node) => (node.x - x) * (node.y - y))];
  const angle = -0.5 * Math.atan2(2 * xy, xx - yy) + (upright ? Math.PI / 2 : 0);
  const turned = nodes.map((node) => ({
    id: node.id,
    x: (node.x - x) * Math.cos(angle) - (node.y - y) * Math.sin(angle),
    y: (node.x - x) * Math.sin(angle) + (node.y - y) * Math.cos(angle),
  }));
  const first = turned.reduce((low, node) => (node.id < low.id ? node : low));
  const [x1, y1] = [first.x > 0 ? -1 : 1, first.y > 0 ? -1 : 1];
  for (const node of turned) { node.x *= x1; node.y *= y1; }
  return turned;
}

// Move cards apart that lie on each other, and back inside.
function separate(nodes, space, card) {
  const [left, right] = [card.width / 2 + 4, space.width - card.width / 2 - 4];
  const [top, bottom] = [card.height / 2 + 14, space.height - card.height / 2 - 8];
  for (let round = 0; round < 120; round += 1) {
    for (const [i, a] of nodes.entries()) {
      for (const b of nodes.slice(i + 1)) {
        const x = card.width + GAP - Math.abs(a.x - b.x);
        const y = card.height + GAP - Math.abs(a.y - b.y);
        if (x <= 0 || y <= 0) continue;
        const along = x < y ? "x" : "y";
        const by = (Math.min(x, y) / 2) * (a[along] < b[along] || (a[along] === b[along] && a.id < b.id) ? 1 : -1);
        a[along] -= by;
        b[along] += by;
      }
    }
    for (const node of nodes) {
      node.x = Math.min(right, Math.max(left, node.x));
      node.y = Math.min(bottom, Math.max(top, node.y));
    }
  }
}

// Put cards in line that nearly are: slightly crooked rows and columns look like mistakes.
function align(nodes, along) {
  const ordered = [...nodes].sort((a, b) => a[along] - b[along]);
  let row = [];
  const level = () => { const mean = row.reduce((sum, node) => sum + node[along], 0) / row.length; for (const node of row) node[along] = mean; };
  for (const node of ordered) {
    if (row.length && node[along] - row[0][along] > NEAR) { level(); row = []; }
    row.push(node);
  }
  level();
}

function place(all, pairs, space, card) {
  if (!all.length) return new Map();
  const nodes = turn(settle(walk(all, pairs), pairs), space.height > space.width);
  const [xs, ys] = [nodes.map((node) => node.x), nodes.map((node) => node.y)];
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  let across = (space.width - card.width - 20) / Math.max(right - left, 1);
  let down = (space.height - card.height - 40) / Math.max(bottom - top, 1);
  across = Math.min(across, down * STRETCH_MAX, 2.2);
  down = Math.min(down, across * STRETCH_MAX, 2.2);
  for (const node of nodes) {
    node.x = space.width / 2 + (node.x - (left + right) / 2) * across;
    node.y = space.height / 2 + (node.y - (top + bottom) / 2) * down;
  }
  if (nodes.length <= MANY) {
    separate(nodes, space, card);
    align(nodes, "x");
    align(nodes, "y");
  }
  return new Map(nodes.map((node) => [node.id, node]));
}

// `nodes`: {id, title, detail, state, mark, spoken}; `links`: {a, b, state, label, weight, arrow}; `selected`: the id of a node.
export function Graph({ nodes, links, selected, onSelect, label }) {
  const space = useMedia("(max-width: 800px)") ? NARROW : WIDE;
  const style = nodes.length <= space.cards ? "card" : nodes.length <= MANY ? "disc" : "point";
  const card = style === "card" ? space.card : { width: style === "disc" ? 40 : 14, height: style === "disc" ? 40 : 14 };
  const topology = JSON.stringify([space.width, nodes.map((node) => node.id), links.map((link) => [link.a, link.b])]);
  const places = useMemo(() => place(nodes.map((node) => node.id), links.map((link) => [link.a, link.b]), space, card), [topology]);
  const choose = (id) => (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onSelect(id);
  };
  return html`<svg class="graph" viewBox="0 0 ${space.width} ${space.height}" role="group" aria-label=${label}>
    ${links.map((link) => html`<${Link} key=${`${link.a}-${link.b}`} link=${link} a=${places.get(link.a)} b=${places.get(link.b)} card=${style === "card" ? card : null} />`)}
    ${nodes.map((node) => {
      const at = places.get(node.id);
      return html`<g key=${node.id} class="node ${node.state} ${node.id === selected ? "selected" : ""}" transform="translate(${at.x.toFixed(1)},${at.y.toFixed(1)})"
        tabindex="0" role="button" aria-pressed=${node.id === selected} aria-label=${`${cut(node.title, 80)}: ${node.spoken}`}
        data-broker=${node.id} data-state=${node.state} data-mark=${node.mark || null} onClick=${choose(node.id)} onKeyDown=${choose(node.id)}>
        <title>${cut(node.title, 200)}: ${node.spoken}</title>
        ${style === "card" ? html`<${Card} node=${node} card=${card} />` : html`<circle class="lamp" r=${style === "disc" ? 17 : 6} />${style === "disc" && html`<text class="number" dy="5">${node.id}</text>`}`}
      </g>`;
    })}
  </svg>`;
}

function Card({ node, card }) {
  const [x, y] = [-card.width / 2, -card.height / 2];
  return html`<rect class="box" x=${x} y=${y} width=${card.width} height=${card.height} rx="12" />
    <circle class="lamp" cx=${x + 29} r="17" /><text class="number" x=${x + 29} dy="5">${node.id}</text>
    <text class="title" x=${x + 56} y="-4">${cut(node.title, 13)}</text><text class="detail" x=${x + 56} y="15">${node.detail}</text>
    ${node.mark && html`<g class="flag" transform="translate(${card.width / 2 - 42},${y})"><rect x="-36" y="-10" width="72" height="20" rx="10" /><text dy="4">${node.mark}</text></g>`}`;
}

function Link({ link, a, b, card }) {
  if (!a || !b) return null;
  const flat = Math.abs(b.y - a.y) < Math.abs(b.x - a.x);
  const room = card && (flat ? Math.abs(b.x - a.x) - card.width > LABEL : Math.abs(b.y - a.y) - card.height > 24);
  const [x, y] = [(a.x + b.x) / 2, (a.y + b.y) / 2];
  const degrees = (Math.atan2(b.y - a.y, b.x - a.x) * 180) / Math.PI + (link.arrow === link.a ? 180 : 0);
  return html`<g class="link ${link.state}" data-link=${`${link.a}-${link.b}`}>
    <line x1=${a.x} y1=${a.y} x2=${b.x} y2=${b.y} stroke-width=${1.5 + Math.min(6, link.weight || 0)} />
    ${link.arrow && html`<path class="arrow" d="M-10,-9 L11,0 L-10,9 Z" transform="translate(${x},${y}) rotate(${degrees})" />`}
    ${room && link.label && html`<text x=${x} y=${flat ? y - 9 : y + 4} class="label">${link.label}</text>`}
  </g>`;
}

// Brokers and links as a drawing that stands still: positions are computed once for a topology, and kept.
import { useMemo } from "preact/hooks";
import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from "d3-force";
import { html } from "./parts.js";

const WIDTH = 900;
const HEIGHT = 520;
const MANY = 60; // from here on names are left out of the drawing

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

function place(all, pairs) {
  const ids = walk(all, pairs);
  const nodes = ids.map((id, i) => {
    const angle = (2 * Math.PI * i) / ids.length - Math.PI / 2;
    return { id, x: WIDTH / 2 + 180 * Math.cos(angle), y: HEIGHT / 2 + 150 * Math.sin(angle) };
  });
  const known = new Set(ids);
  const links = pairs.filter(([a, b]) => known.has(a) && known.has(b)).map(([source, target]) => ({ source, target }));
  const many = ids.length > MANY;
  forceSimulation(nodes)
    .force("link", forceLink(links).id((node) => node.id).distance(many ? 30 : 150))
    .force("charge", forceManyBody().strength(many ? -40 : -900))
    .force("apart", forceCollide(many ? 8 : 46))
    .force("x", forceX(WIDTH / 2).strength(0.05))
    .force("y", forceY(HEIGHT / 2).strength(0.09))
    .stop()
    .tick(ids.length > 300 ? 60 : 300);
  const xs = nodes.map((node) => node.x);
  const ys = nodes.map((node) => node.y);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = Math.min((WIDTH - 200) / Math.max(right - left, 1), (HEIGHT - 150) / Math.max(bottom - top, 1), 1.6);
  return new Map(nodes.map((node) => [node.id, {
    x: WIDTH / 2 + (node.x - (left + right) / 2) * scale,
    y: HEIGHT / 2 + (node.y - (top + bottom) / 2) * scale - 8,
  }]));
}

// `nodes`: {id, title, detail, state, mark}; `links`: {a, b, state, label, weight}; `selected`: the id of a node.
export function Graph({ nodes, links, selected, onSelect, label }) {
  const topology = JSON.stringify([nodes.map((node) => node.id), links.map((link) => [link.a, link.b])]);
  const places = useMemo(() => place(nodes.map((node) => node.id), links.map((link) => [link.a, link.b])), [topology]);
  const many = nodes.length > MANY;
  const choose = (id) => (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onSelect(id);
  };
  return html`<svg class="graph" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="group" aria-label=${label}>
    ${links.map((link) => {
      const [a, b] = [places.get(link.a), places.get(link.b)];
      if (!a || !b) return null;
      return html`<g key=${`${link.a}-${link.b}`} class="link ${link.state}">
        <line x1=${a.x} y1=${a.y} x2=${b.x} y2=${b.y} stroke-width=${1.5 + Math.min(6, link.weight || 0)} />
        ${link.arrow && html`<path class="arrow" d="M-9,-7 L9,0 L-9,7 Z" transform="translate(${(a.x + b.x) / 2},${(a.y + b.y) / 2}) rotate(${(Math.atan2(link.arrow === link.b ? b.y - a.y : a.y - b.y, link.arrow === link.b ? b.x - a.x : a.x - b.x) * 180) / Math.PI})" />`}
        ${!many && link.label && html`<text x=${(a.x + b.x) / 2} y=${(a.y + b.y) / 2 - 10} class="label">${link.label}</text>`}
      </g>`;
    })}
    ${nodes.map((node) => {
      const at = places.get(node.id);
      return html`<g key=${node.id} class="node ${node.state} ${node.id === selected ? "selected" : ""}" transform="translate(${at.x},${at.y})"
        tabindex="0" role="button" aria-pressed=${node.id === selected} aria-label=${`${node.title}: ${node.spoken}`}
        data-broker=${node.id} data-state=${node.state} onClick=${choose(node.id)} onKeyDown=${choose(node.id)}>
        <circle r=${many ? 7 : 24} />
        ${!many && html`<text class="number" dy="6">${node.id}</text>`}
        ${!many && html`<text class="title" dy="44">${node.title.slice(0, 24)}</text>`}
        ${!many && html`<text class="detail" dy="61">${node.detail}</text>`}
        ${node.mark && html`<text class="mark" x=${many ? 6 : 22} y=${many ? -6 : -18}>${node.mark}</text>`}
      </g>`;
    })}
  </svg>`;
}

// Small pieces that all pages use: formats, tables, notes, charts. Texts reach the page as text nodes, never as markup.
import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import uPlot from "uplot";

export const html = htm.bind(h);

const SHOWN_MAX = 300; // characters of a name before it is cut; the whole is in the title

export function bytes(n) {
  if (!n) return "0 B";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(n) / 3), units.length - 1);
  const value = n / 1000 ** power;
  return `${value >= 100 || power === 0 ? Math.round(value) : value.toFixed(1)} ${units[power]}`;
}

export function count(n) {
  return Number(n).toLocaleString("en");
}

export function rate(n) {
  return n >= 100 ? count(Math.round(n)) : (Math.round(n * 10) / 10).toString();
}

export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 86_400_000 * 2) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

export function clock(ms) {
  return new Date(Number(ms)).toLocaleTimeString("en-GB", { hour12: false }) + "." + String(ms % 1000).padStart(3, "0");
}

// A name that somebody else chose. Isolated, so that marks for right-to-left text change nothing around it.
export function Name({ of }) {
  const text = String(of);
  const shown = text.length > SHOWN_MAX ? text.slice(0, SHOWN_MAX) + "…" : text;
  return html`<bdi class="name" title=${text.slice(0, 2000)}>${shown}</bdi>`;
}

export function Dot({ state, label }) {
  return html`<span class="dot ${state}" role="img" aria-label=${label || state}></span>`;
}

export function Note({ kind = "info", children }) {
  return html`<p class="note ${kind}" role=${kind === "error" ? "alert" : "status"}>${children}</p>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h3>${title}</h3><div>${children}</div></div>`;
}

export function Table({ caption, heads, rows, label }) {
  return html`<div class="table" tabindex="0" role="region" aria-label=${label || caption}>
    <table>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${heads.map((head) => html`<th scope="col" class=${head.number ? "number" : ""}>${head.text || head}</th>`)}</tr></thead>
      <tbody>${rows}</tbody>
    </table>
  </div>`;
}

export function Value({ of }) {
  if (of === null || of === undefined) return html`<i>null</i>`;
  if (typeof of === "object") {
    if ("base64" in of) return html`<span class="faint">bytes</span> <code>${of.base64}</code>`;
    if ("integer" in of) return html`<code>${of.integer}</code>`;
    if ("float" in of) return html`<code>${of.float}</code>`;
  }
  return typeof of === "string" ? html`<${Name} of=${of} />` : html`<code>${String(of)}</code>`;
}

export function Attributes({ of }) {
  const names = Object.keys(of);
  if (!names.length) return html`<span class="faint">no attributes</span>`;
  return html`<dl class="attributes">${names.map((name) => html`<div><dt><${Name} of=${name} /></dt><dd><${Value} of=${of[name]} /></dd></div>`)}</dl>`;
}

export function Payload({ of }) {
  if (!of.bytes) return html`<span class="faint">empty</span>`;
  const cut = of.cut ? html`<span class="faint"> … (${bytes(of.bytes)} in all)</span>` : "";
  return html`<pre tabindex="0">${of.text !== undefined ? of.text : of.base64}</pre>${of.text === undefined ? html`<span class="faint">base64 </span>` : ""}${cut}`;
}

// Load something, and again each `every` milliseconds. Returns [value, error, reload].
export function useLoaded(load, inputs, every = 0) {
  const [state, setState] = useState({ value: null, error: "" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let ended = false;
    let timer = 0;
    const run = async () => {
      try {
        const value = await load();
        if (!ended) setState({ value, error: "" });
      } catch (error) {
        if (!ended) setState((before) => ({ ...before, error: error.message }));
      }
      if (!ended && every) timer = setTimeout(run, every);
    };
    run();
    return () => { ended = true; clearTimeout(timer); };
  }, [...inputs, round]);
  return [state.value, state.error, () => setRound((n) => n + 1)];
}

// A chart of one figure over the last minutes.
export function Chart({ title, points, format }) {
  const place = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    const box = place.current;
    const style = getComputedStyle(box);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: box.clientWidth || 300, height: 120, cursor: { show: false }, legend: { show: false },
      axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")) }, { ...axis, size: 62, values: (_, ticks) => ticks.map(format) }],
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
      series: [{}, { stroke: color("--accent"), width: 2, fill: color("--accent-soft"), points: { show: false } }],
    };
    const drawn = new uPlot(options, points, box);
    chart.current = drawn;
    const watcher = new ResizeObserver(() => drawn.setSize({ width: box.clientWidth, height: 120 }));
    watcher.observe(box);
    return () => { watcher.disconnect(); chart.current = null; drawn.destroy(); };
  }, []);
  useEffect(() => { if (chart.current) chart.current.setData(points); }, [points]);
  const last = points[1].length ? points[1][points[1].length - 1] : 0;
  return html`<figure class="chart"><figcaption>${title} <strong>${format(last)}</strong></figcaption><div ref=${place} aria-hidden="true"></div></figure>`;
}

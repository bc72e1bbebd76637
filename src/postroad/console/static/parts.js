// Small pieces that all pages use: formats, tables, notes, charts. Texts reach the page as text nodes, never as markup.
import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);

const SHOWN_MAX = 300; // characters of a name before it is cut; more of it is in the title
const TITLE_MAX = 2000;
const CHART_MS = 120_000; // what a chart shows

export function bytes(n) {
  if (!n) return "0 B";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(n, 1)) / 3), units.length - 1);
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

export function moment(ms) {
  return `${new Date(ms).toLocaleDateString("sv-SE")} ${new Date(ms).toLocaleTimeString("en-GB", { hour12: false })}`;
}

export function cut(text, most) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

// A name that somebody else chose. Isolated, so that marks for right-to-left text change nothing around it.
export function Name({ of, most = SHOWN_MAX }) {
  const text = String(of);
  return html`<bdi class="name" title=${text.length > most ? text.slice(0, TITLE_MAX) : null}>${cut(text, most)}</bdi>`;
}

export function Dot({ state, label }) {
  return html`<span class="dot ${state}" role="img" aria-label=${label || state}></span>`;
}

export function Badge({ kind = "", children }) {
  return html`<span class="badge ${kind}">${children}</span>`;
}

export function Note({ kind = "info", children }) {
  return html`<p class="note ${kind}" role=${kind === "error" ? "alert" : "status"}>${children}</p>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h3>${title}</h3><div>${children}</div></div>`;
}

export function Tile({ label, value, unit, state = "" }) {
  return html`<div class="tile ${state}"><span>${label}</span><b>${value}</b>${unit && html` <small>${unit}</small>`}</div>`;
}

// A page: its title, what it is for, and its content once there is some. Errors float above, so nothing moves.
export function Page({ title, about, error, waits, children }) {
  return html`<div class="top"><h1>${title}</h1><p>${about}</p></div>
    ${error && html`<div class="toast" role="alert">${error}</div>`}
    ${waits ? html`<div class="waiting">Asking the brokers…</div>` : children}`;
}

export function Table({ caption, heads, rows, className = "" }) {
  return html`<div class="table ${className}" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${heads.map((head) => html`<th scope="col" class=${head.number ? "number" : ""}>${head.text || head}</th>`)}</tr></thead>
      <tbody>${rows}</tbody>
    </table>
  </div>`;
}

// How much of something is used, from 0 to 1.
export function Meter({ part, label }) {
  const shown = Math.max(0, Math.min(1, part || 0));
  const kind = shown > 0.95 ? "bad" : shown > 0.8 ? "warn" : "";
  return html`<svg class="meter ${kind}" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${`${label}: ${Math.round(shown * 100)}%`}><rect width=${shown * 100} height="8" /></svg>`;
}

export function Value({ of }) {
  if (of === null || of === undefined) return html`<i>null</i>`;
  if (typeof of === "object") {
    if ("base64" in of) return html`<span class="faint">bytes</span> <code>${of.base64}</code>`;
    if ("integer" in of) return html`<code>${of.integer}</code>`;
    if ("float" in of) return html`<code>${of.float}</code>`;
  }
  return typeof of === "string" ? html`<${Name} of=${of} />` : String(of);
}

export function Attributes({ of }) {
  const names = Object.keys(of);
  if (!names.length) return html`<span class="faint">no attributes</span>`;
  return html`<dl class="attributes">${names.map((name) => html`<div><dt><${Name} of=${name} /></dt><dd><${Value} of=${of[name]} /></dd></div>`)}</dl>`;
}

export function Payload({ of }) {
  if (!of.bytes) return html`<span class="faint">empty</span>`;
  const rest = of.cut ? html`<span class="faint"> … (${bytes(of.bytes)} in all)</span>` : "";
  return html`<div><pre tabindex="0"><bdi>${of.text !== undefined ? of.text : of.base64}</bdi></pre>${of.text === undefined ? html`<span class="faint">base64 </span>` : ""}${rest}</div>`;
}

// The beginning of a payload in one line.
export function Preview({ of }) {
  return html`<bdi class="preview">${of.bytes ? cut(of.text ?? of.base64, 120) : ""}</bdi>`;
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

// A question that somebody types and sends: what was typed, the newest answer, and what went wrong.
export function useAsked(load) {
  const [text, setText] = useState("");
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState("");
  const ask = async (event) => {
    event.preventDefault();
    setError("");
    try {
      setAnswer(await load(text));
    } catch (failure) {
      setAnswer(null);
      setError(failure.message);
    }
  };
  return { text, setText, answer, error, ask };
}

export function useMedia(query) {
  const [matches, setMatches] = useState(matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const changed = () => setMatches(list.matches);
    list.addEventListener("change", changed);
    return () => list.removeEventListener("change", changed);
  }, [query]);
  return matches;
}

// A chart of one figure over the last two minutes. `points` are pairs of milliseconds and value.
export function Chart({ title, points, format }) {
  const last = points.length ? points[points.length - 1] : [0, 0];
  const shown = points.filter(([ms]) => last[0] - ms <= CHART_MS);
  const most = Math.max(...shown.map((point) => point[1]), 0);
  const at = ([ms, value]) => `${(100 * (1 - (last[0] - ms) / CHART_MS)).toFixed(2)},${(39 - (37 * value) / (most || 1)).toFixed(2)}`;
  const line = shown.map(at).join(" L");
  const first = shown.length ? at(shown[0]).split(",")[0] : 0;
  return html`<figure class="chart"><figcaption><span>${title}</span><strong>${format(last[1])}</strong></figcaption>
    <svg viewBox="0 0 100 40" preserveAspectRatio="none" aria-hidden="true">${shown.length > 1 && html`<path class="area" d="M${first},40 L${line} L100,40 Z" /><path class="line" d="M${line}" />`}</svg>
    <div class="axis"><span>2 min ago</span><span>at most ${format(most)}</span><span>now</span></div></figure>`;
}

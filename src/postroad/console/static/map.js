// The map: every broker and link, who is slow, who is throttled by whom, and what is down.
import { useState } from "preact/hooks";
import { call, live, picture } from "./api.js";
import { Chart, Dot, Empty, Meter, Name, Note, Page, Table, Tile, bytes, clock, count, cut, html, rate, span, useLoaded } from "./parts.js";
import { Graph } from "./graph.js";

const BEHIND_MS = 2000; // a broker further behind is marked
const FULL = 0.9; // a link is marked that uses more of its limit
const LINKS_SHOWN = 200;

function stateOf(broker, throttling) {
  if (!broker.up) return "down";
  if (broker.disk_full || throttling.has(broker.id)) return "bad";
  if (broker.lag_ms > BEHIND_MS) return "slow";
  return "up";
}

function traffic(link) {
  return Object.values(link.to).reduce((sum, way) => sum + way.bytes_per_s, 0);
}

// How much of its limit the busier direction uses, or null where there is no limit.
function useOf(link) {
  const limited = Object.values(link.to).filter((way) => way.limit);
  return limited.length ? Math.max(...limited.map((way) => way.bytes_per_s / way.limit)) : null;
}

function labelOf(link) {
  if (!link.up) return "down";
  const used = useOf(link);
  if (used !== null) return `${bytes(traffic(link))}/s · ${Math.round(100 * used)}% of limit`;
  return traffic(link) ? `${bytes(traffic(link))}/s` : "";
}

export function drawing(data) {
  const throttled = data.pubends.filter((each) => each.throttled_since_ms);
  const hosts = new Set(throttled.map((each) => each.broker));
  const throttling = new Set(throttled.map((each) => each.throttled_by));
  const nodes = data.brokers.map((broker) => {
    const state = stateOf(broker, throttling);
    const words = { up: "up", down: "down", slow: `${span(broker.lag_ms)} behind`, bad: broker.disk_full ? "disk full" : "slows publishers" };
    const short = state === "bad" && !broker.disk_full ? "throttles" : words[state];
    const calm = broker.published_per_s ? `${rate(broker.published_per_s)} msg/s` : broker.subscriptions ? `${count(broker.subscriptions)} subscr.` : "relays";
    return { id: broker.id, title: broker.name, detail: state === "up" ? calm : short, state, mark: hosts.has(broker.id) ? "throttled" : "", spoken: words[state] + (hosts.has(broker.id) ? ", its publishers are throttled" : "") };
  });
  const most = Math.max(1, ...data.links.map(traffic));
  const links = data.links.map((link) => ({
    a: link.a, b: link.b, state: link.up ? (useOf(link) > FULL ? "full" : "up") : "down", weight: (5 * traffic(link)) / most, label: labelOf(link),
  }));
  return { nodes, links };
}

// What needs somebody's attention, the worst first.
function problems(data) {
  return [
    ...(live.value ? [] : [["error", "connection", html`The connection to this broker is lost. The figures are old; the page goes on by itself.`]]),
    ...data.brokers.filter((broker) => !broker.up).map((broker) => ["error", `down ${broker.id}`, html`<b><${Name} of=${broker.name} most=${60} /></b> is down: ${cut(broker.reason || "nobody can reach it", 200)}`]),
    ...data.pubends.filter((each) => each.throttled_since_ms).map((each) => ["warning", `throttled ${each.pubend}`, html`<b>Publishers at broker ${each.broker} are throttled</b> to ${rate(each.rate_limit)} msg/s since ${clock(each.throttled_since_ms).slice(0, 8)}; the reason is broker ${each.throttled_by}`]),
    ...data.brokers.filter((broker) => broker.up && broker.disk_full).map((broker) => ["error", `disk ${broker.id}`, html`The disk of <b><${Name} of=${broker.name} most=${60} /></b> is full; it refuses messages`]),
    ...data.brokers.filter((broker) => broker.up && broker.lag_ms > BEHIND_MS).map((broker) => ["warning", `behind ${broker.id}`, html`<b><${Name} of=${broker.name} most=${60} /></b> is ${span(broker.lag_ms)} behind`]),
    ...data.brokers.flatMap((broker) => (broker.notices || []).map((notice, i) => ["warning", `notice ${broker.id} ${i}`, html`<${Name} of=${broker.name} most=${60} />: ${cut(notice, 300)}`])),
  ];
}

function Attention({ data }) {
  const found = problems(data);
  return html`<section class="card"><h2>Attention</h2><div class="attention" tabindex="0" role="region" aria-label="What needs attention">
    ${found.length === 0
      ? html`<p class="calm"><svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="10" /><path d="M7.500 12.500l3 3 6-7" /></svg><span><b>All is well</b>Every broker is up, nobody is far behind, no publisher is throttled.</span></p>`
      : found.slice(0, 50).map(([kind, key, text]) => html`<${Note} key=${key} kind=${kind}>${text}<//>`)}</div></section>`;
}

export function MapPage() {
  const [selected, select] = useState(null);
  const data = picture.value;
  const about = "Every broker and link of the overlay, as they are now.";
  if (!data) return html`<${Page} title="Map" about=${about} waits=${true} />`;
  const { nodes, links } = drawing(data);
  const up = data.brokers.filter((broker) => broker.up);
  const throttled = data.pubends.filter((each) => each.throttled_since_ms).length;
  const behind = Math.max(0, ...up.map((each) => each.lag_ms));
  const sum = (read) => up.reduce((total, each) => total + (read(each) || 0), 0);
  return html`<${Page} title="Map" about=${about}>
    <div class="tiles">
      <${Tile} label="Brokers up" value=${up.length} unit=${`of ${data.brokers.length}`} state=${up.length < data.brokers.length ? "bad" : ""} />
      <${Tile} label="Published" value=${rate(data.pubends.reduce((total, each) => total + each.published_per_s, 0))} unit="msg/s" />
      <${Tile} label="Subscriptions" value=${count(sum((each) => each.subscriptions))} />
      <${Tile} label="Furthest behind" value=${span(behind)} state=${behind > BEHIND_MS ? "warn" : ""} />
      <${Tile} label="Throttled streams" value=${count(throttled)} state=${throttled ? "warn" : ""} />
    </div>
    <div class="columns">
      <div><section class="card"><h2 class="hidden">Overlay</h2><${Graph} nodes=${nodes} links=${links} selected=${selected} onSelect=${(id) => select(id === selected ? null : id)} label="The overlay: brokers and links" />
        <p class="legend"><span><${Dot} state="up" /> up</span><span><${Dot} state="slow" /> behind</span><span><${Dot} state="bad" /> slows publishers, or full</span><span><${Dot} state="down" /> down</span><span><span class="flag">throttled</span> its publishers wait</span></p></section>
        <${Links} links=${data.links} /></div>
      <aside><${Attention} data=${data} />
        <section class="card">${selected === null
          ? html`<h2 class="hidden">Charts</h2><${Chart} title="Published, msg/s" points=${data.history.map((p) => [p[0], p[1]])} format=${rate} />
            <${Chart} title="On links, per second" points=${data.history.map((p) => [p[0], p[2]])} format=${bytes} />
            <${Chart} title="Furthest behind" points=${data.history.map((p) => [p[0], p[3]])} format=${span} />
            <p class="faint">Choose a broker on the map to see its details.</p>`
          : html`<${BrokerDetails} id=${selected} key=${selected} close=${() => select(null)} />`}</section></aside>
    </div><//>`;
}

function Links({ links }) {
  return html`<h2>Links <span class="faint">${count(links.length)}</span></h2>
    ${links.length === 0
      ? html`<${Empty} title="One broker, no links">Start a second one and give it this broker as a neighbour: <code>postroad broker --id 2 --data-dir more-data --listen 127.0.0.1:0 --neighbour HOST:PORT</code><//>`
      : html`<${Table} caption="Links" heads=${["Link", "State", { text: "Cost", number: true }, { text: "Traffic", number: true }, "Use of its limit", { text: "Waiting", number: true }, { text: "Dropped", number: true }]}
          rows=${links.slice(0, LINKS_SHOWN).map((link) => {
            const ways = Object.values(link.to);
            const used = useOf(link);
            return html`<tr key=${`${link.a}-${link.b}`}><td>${link.a} – ${link.b}</td><td><${Dot} state=${link.up ? "up" : "down"} /> ${link.up ? "up" : "down"}</td>
              <td class="number">${link.cost ?? "–"}</td><td class="number">${bytes(traffic(link))}/s</td><td>${used === null ? html`<span class="faint">no limit</span>` : html`<${Meter} part=${used} label="use of the limit" />`}</td>
              <td class="number">${bytes(ways.reduce((total, way) => total + way.backlog_bytes, 0))}</td><td class="number">${count(ways.reduce((total, way) => total + way.dropped_frames, 0))}</td></tr>`;
          })} />`}
    ${links.length > LINKS_SHOWN && html`<p class="faint">The first ${LINKS_SHOWN} of ${count(links.length)} links.</p>`}`;
}

function BrokerDetails({ id, close }) {
  const [report, error] = useLoaded(() => call(`/api/brokers/${id}?page=0`), [id], 2000);
  const broker = picture.value.brokers.find((each) => each.id === id);
  if (!broker) return html`<p>Broker ${id} is gone.</p>`;
  const age = picture.value.at_ms - (broker.heard_ms || 0);
  return html`<h2><${Name} of=${broker.name} most=${60} /></h2>
    ${error && html`<${Note} kind="error">${cut(error, 300)}<//>`}
    ${report && html`<dl class="facts">
      <div><dt>Id</dt><dd>${id}</dd></div><div><dt>Address</dt><dd><${Name} of=${report.address} most=${60} /></dd></div>
      <div><dt>Software</dt><dd><${Name} of=${report.software} most=${60} /></dd></div><div><dt>Started</dt><dd>${span(report.wall_ms - report.started_ms)} ago</dd></div>
      <div><dt>Neighbours</dt><dd>${broker.neighbours.slice(0, 20).join(", ") || "none"}</dd></div>
      <div><dt>Subscriptions</dt><dd>${count(report.subscription_count)}</dd></div><div><dt>Clients</dt><dd>${count(report.figures.clients ?? 0)}</dd></div>
      <div><dt>Cache</dt><dd>${bytes(report.figures.cache_bytes)}</dd></div><div><dt>Waiting to be sent</dt><dd>${bytes(report.figures.backlog_bytes)}</dd></div>
      ${age > 3000 && html`<div><dt>Figures are</dt><dd>${span(age)} old</dd></div>`}
    </dl>
    <h3>Streams</h3>
    <${Table} caption="Streams at this broker" heads=${["Stream", "Here", { text: "Behind", number: true }]}
      rows=${report.streams.slice(0, 50).map((stream) => html`<tr key=${stream.pubend}><td>${Math.floor(stream.pubend / 256)}/${stream.pubend % 256}</td>
        <td>${stream.is_hosted ? "published here" : stream.is_recovering ? "recovering" : stream.engaged ? `${count(stream.engaged)} subscribed` : "relayed"}</td>
        <td class="number">${stream.is_hosted ? "–" : span(stream.lag_ms)}</td></tr>`)} />`}
    <p><button class="plain" onClick=${close}>Back to the charts</button></p>`;
}

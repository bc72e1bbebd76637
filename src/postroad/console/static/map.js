// The map: every broker and link, who is slow, who is throttled by whom, and what is down.
import { useState } from "preact/hooks";
import { call, live, picture } from "./api.js";
import { Chart, Dot, Empty, Name, Note, Table, bytes, clock, count, html, rate, span, useLoaded } from "./parts.js";
import { Graph } from "./graph.js";

const BEHIND_MS = 2000; // a broker further behind is marked

function stateOf(broker, throttling) {
  if (!broker.up) return "down";
  if (broker.disk_full || throttling.has(broker.id)) return "bad";
  if (broker.lag_ms > BEHIND_MS) return "slow";
  return "up";
}

function linkUse(link) {
  return Object.values(link.to).reduce((sum, way) => sum + way.bytes_per_s, 0);
}

export function drawing(data) {
  const throttled = data.pubends.filter((each) => each.throttled_since_ms);
  const hosts = new Set(throttled.map((each) => each.broker));
  const throttling = new Set(throttled.map((each) => each.throttled_by));
  const nodes = data.brokers.map((broker) => {
    const state = stateOf(broker, throttling);
    const words = { up: "up", down: "down", slow: `${span(broker.lag_ms)} behind`, bad: broker.disk_full ? "disk full" : "slows publishers" };
    const detail = broker.up ? (state === "up" ? `${rate(broker.published_per_s)} msg/s` : words[state]) : "down";
    return { id: broker.id, title: broker.name, detail, state, mark: hosts.has(broker.id) ? "▼" : "", spoken: words[state] + (hosts.has(broker.id) ? ", throttled" : "") };
  });
  const most = Math.max(1, ...data.links.map(linkUse));
  const links = data.links.map((link) => ({
    a: link.a, b: link.b, state: link.up ? "up" : "down", weight: (5 * linkUse(link)) / most,
    label: link.up ? (linkUse(link) ? `${bytes(linkUse(link))}/s` : "") : "down",
  }));
  return { nodes, links };
}

export function MapPage() {
  const [selected, select] = useState(null);
  const data = picture.value;
  if (!data) return html`<h1>Map</h1><p class="loading">Asking the brokers…</p>`;
  const { nodes, links } = drawing(data);
  const throttled = data.pubends.filter((each) => each.throttled_since_ms);
  const down = data.brokers.filter((broker) => !broker.up);
  const seconds = data.history.map((point) => point[0] / 1000);
  return html`<h1>Map</h1>
    <div class="tiles">
      <div><b>${data.brokers.length - down.length}</b> of ${data.brokers.length} brokers up</div>
      <div><b>${rate(data.pubends.reduce((sum, each) => sum + each.published_per_s, 0))}</b> messages/s published</div>
      <div><b>${count(data.brokers.reduce((sum, each) => sum + (each.subscriptions || 0), 0))}</b> subscriptions</div>
      <div><b>${span(Math.max(0, ...data.brokers.map((each) => (each.up ? each.lag_ms : 0))))}</b> behind at most</div>
    </div>
    ${!live.value && html`<${Note} kind="error">The connection to this broker is lost. The figures are old; the page goes on by itself.<//>`}
    ${down.map((broker) => html`<${Note} kind="error"><b><${Name} of=${broker.name} /></b> is down: ${broker.reason || "nobody can reach it"}.<//>`)}
    ${throttled.map((each) => html`<${Note} kind="warning"><b>Publishers at broker ${each.broker} are throttled</b> to ${rate(each.rate_limit)} msg/s since ${clock(each.throttled_since_ms)}; the reason is broker ${each.throttled_by}.<//>`)}
    ${data.brokers.flatMap((broker) => (broker.notices || []).map((notice) => html`<${Note} kind="warning"><${Name} of=${broker.name} />: ${notice}<//>`))}
    <div class="columns">
      <section class="card wide"><${Graph} nodes=${nodes} links=${links} selected=${selected} onSelect=${(id) => select(id === selected ? null : id)} label="The overlay: brokers and links" />
        <p class="legend"><${Dot} state="up" /> up <${Dot} state="slow" /> behind <${Dot} state="bad" /> slows publishers <${Dot} state="down" /> down · ▼ throttled</p></section>
      <aside class="card">${selected === null
        ? html`<h2>Overlay</h2>
          <${Chart} title="Published, messages/s" points=${[seconds, data.history.map((p) => p[1])]} format=${rate} />
          <${Chart} title="On links, bytes/s" points=${[seconds, data.history.map((p) => p[2])]} format=${bytes} />
          <p class="faint">Choose a broker to see its details.</p>`
        : html`<${BrokerDetails} id=${selected} key=${selected} />`}</aside>
    </div>
    <h2>Links</h2>
    ${data.links.length === 0
      ? html`<${Empty} title="One broker, no links">Start a second one with <code>postroad broker --neighbour HOST:PORT</code>.<//>`
      : html`<${Table} caption="Links" heads=${["Link", "State", { text: "Cost", number: true }, { text: "Traffic", number: true }, { text: "Waiting", number: true }, { text: "Dropped frames", number: true }]}
          rows=${data.links.slice(0, 200).map((link) => {
            const ways = Object.values(link.to);
            return html`<tr key=${`${link.a}-${link.b}`}><td>${link.a} – ${link.b}</td><td><${Dot} state=${link.up ? "up" : "down"} /> ${link.up ? "up" : "down"}</td>
              <td class="number">${link.cost ?? "–"}</td><td class="number">${bytes(linkUse(link))}/s</td>
              <td class="number">${bytes(ways.reduce((sum, way) => sum + way.backlog_bytes, 0))}</td><td class="number">${count(ways.reduce((sum, way) => sum + way.dropped_frames, 0))}</td></tr>`;
          })} />`}
    ${data.links.length > 200 && html`<p class="faint">The first 200 of ${count(data.links.length)} links.</p>`}`;
}

function BrokerDetails({ id }) {
  const [report, error] = useLoaded(() => call(`/api/brokers/${id}?page=0`), [id], 2000);
  const broker = picture.value.brokers.find((each) => each.id === id);
  if (!broker) return html`<p>Broker ${id} is gone.</p>`;
  return html`<h2><${Name} of=${broker.name} /></h2>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${report && html`<dl class="facts">
      <div><dt>Id</dt><dd>${id}</dd></div><div><dt>Address</dt><dd><${Name} of=${report.address} /></dd></div>
      <div><dt>Software</dt><dd>${report.software}</dd></div><div><dt>Started</dt><dd>${span(report.wall_ms - report.started_ms)} ago</dd></div>
      <div><dt>Subscriptions</dt><dd>${count(report.subscription_count)}</dd></div><div><dt>Clients</dt><dd>${count(report.figures.clients ?? 0)}</dd></div>
      <div><dt>Cache</dt><dd>${bytes(report.figures.cache_bytes)}</dd></div><div><dt>Waiting to be sent</dt><dd>${bytes(report.figures.backlog_bytes)}</dd></div>
    </dl>
    <h3>Streams</h3>
    <${Table} caption="Streams at this broker" heads=${["Pubend", "", { text: "Behind", number: true }]}
      rows=${report.streams.slice(0, 50).map((stream) => html`<tr key=${stream.pubend}><td>${stream.pubend >> 8}/${stream.pubend & 255}</td>
        <td>${stream.is_hosted ? "hosted here" : stream.is_recovering ? "recovering" : stream.engaged ? "live" : "relayed"}</td>
        <td class="number">${stream.is_hosted ? "–" : span(stream.lag_ms)}</td></tr>`)} />`}`;
}

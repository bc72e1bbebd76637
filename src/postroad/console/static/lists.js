// Subscriptions and publishers.
import { useRef, useState } from "preact/hooks";
import { call, picture } from "./api.js";
import { Advertised } from "./more.js";
import { Badge, Empty, Name, Page, Table, Tile, bytes, clock, count, cut, html, rate, span, useLoaded } from "./parts.js";

const PAGE = 100;
const STREAMS_SHOWN = 500;

// How many messages were published in the last `ms`: at most so many wait for whoever is as far behind.
function publishedWithin(ms) {
  const history = picture.value?.history || [];
  if (!ms || history.length < 2) return null;
  const now = history[history.length - 1][0];
  let messages = 0;
  for (let i = 1; i < history.length; i += 1) {
    const from = Math.max(history[i - 1][0], now - ms);
    if (history[i][0] > from) messages += (history[i][1] * (history[i][0] - from)) / 1000;
  }
  return { messages: Math.round(messages), whole: now - history[0][0] >= ms };
}

function Behind({ ms }) {
  const found = ms > 100 ? publishedWithin(ms) : null;
  return html`${span(ms)}<span class="more">${ms > 100 ? (found ? found.whole ? `up to ${count(found.messages)} messages` : `over ${count(found.messages)} published since` : "") : "up to date"}</span>`;
}

function BrokerChoice({ id, value, onChoose }) {
  const up = picture.value?.brokers.filter((each) => each.up) || [];
  return html`<label for=${id}>At broker</label><select id=${id} value=${value} onChange=${(event) => onChoose(Number(event.target.value))}>${up.map((each) => html`<option value=${each.id}>${each.id} ${cut(each.name, 40)}</option>`)}</select>`;
}

export function SubscriptionsPage() {
  const [found, error] = useLoaded(() => call("/api/durables"), [], 3000);
  const away = found?.durables.filter((each) => !each.connected && each.filter !== null).length;
  return html`<${Page} title="Subscriptions" about="Who wants what, where it is served, and how far behind it is." error=${error} waits=${!found || !picture.value}>
    ${found && html`<div class="tiles"><${Tile} label="Durable" value=${count(found.count)} /><${Tile} label="Of these away" value=${count(away)} /><${Tile} label="Furthest behind" value=${span(Math.max(0, ...found.durables.map((each) => each.behind_ms)))} />
        <${Tile} label="Connected, all brokers" value=${count((picture.value?.brokers || []).reduce((sum, each) => sum + (each.subscriptions || 0), 0))} /></div>
      <h2>Durable</h2>
      ${found.count === 0
        ? html`<${Empty} title="No durable subscription">Messages wait for a durable subscription while its client is away. Make one: <pre>postroad subscribe --name orders --filter "kind = 'order'"</pre><//>`
        : html`<${Table} caption="Durable subscriptions" heads=${["Name", "State", "Filter", { text: "Home", number: true }, { text: "Behind", number: true }]}
            rows=${found.durables.map((each) => html`<tr key=${each.name}><td><${Name} of=${each.name} /></td>
              <td>${each.filter === null ? html`<${Badge} kind="bad">cannot be asked<//>` : each.connected ? html`<${Badge} kind="good">connected<//>` : html`<${Badge} kind="warn">away<//>`}</td>
              <td>${each.filter === null ? html`<span class="faint">its home is not reachable</span>` : html`<code>${cut(each.filter || "everything", 500)}</code>`}</td>
              <td class="number">${each.home}</td><td class="number">${each.filter === null ? "–" : html`<${Behind} ms=${each.behind_ms} />`}</td></tr>`)} />
          ${found.count > found.durables.length && html`<p class="faint">The ${count(found.durables.length)} furthest behind of ${count(found.count)}.</p>`}`}`}
    <h2>Connected</h2><${Connected} /><//>`;
}

function Connected() {
  const [chosen, choose] = useState(null);
  const [wanted, setWanted] = useState("");
  const [pages, setPages] = useState([0]);
  const home = picture.value?.home;
  const broker = chosen ?? home;
  const after = pages[pages.length - 1];
  const [report] = useLoaded(async () => (broker ? call(`/api/brokers/${broker}?page=${PAGE}&after=${after}&wanted=${encodeURIComponent(wanted)}`) : null), [broker, wanted, after], 3000);
  const [admission] = useLoaded(async () => (broker === home ? call("/api/more/admission").catch(() => null) : null), [broker], 5000);
  const rows = report?.subscriptions || [];
  const reserved = admission?.served ? new Map(admission.reservations.filter((each) => !each.neighbour).map((each) => [each.filter, each.decided])) : null;
  return html`<form class="bar" onSubmit=${(event) => event.preventDefault()}>
      <${BrokerChoice} id="at" value=${broker} onChoose=${(id) => { choose(id); setPages([0]); }} />
      <label for="wanted">containing</label><input id="wanted" value=${wanted} placeholder="a part of the name, client or filter" onInput=${(event) => { setWanted(event.target.value); setPages([0]); }} autocomplete="off" /></form>
    ${!report && html`<div class="waiting">Asking the broker…</div>`}
    ${report && (rows.length === 0 ? html`<${Empty} title="No subscription here">${wanted ? "None contains this text." : html`Subscribe at this broker: <code>postroad subscribe --filter "price > 100"</code>`}<//>`
      : html`<${Table} caption="Subscriptions of connected clients" heads=${[{ text: "Number", number: true }, "Client", "Name", "Filter", "State", ...(reserved ? ["Admission"] : []), { text: "Behind", number: true }]}
        rows=${rows.map((each) => html`<tr key=${each.number}><td class="number">${each.number}</td><td><${Name} of=${each.client} /></td><td>${each.name ? html`<${Name} of=${each.name} />` : html`<span class="faint">live only</span>`}</td>
          <td><code>${cut(each.filter || "everything", 500)}</code></td><td>${each.is_answered ? (each.is_open ? html`<${Badge} kind="good">active<//>` : html`<${Badge} kind="warn">its client does not read<//>`) : html`<${Badge} kind="warn">waits for brokers on the way<//>`}</td>
          ${reserved && html`<td>${reserved.has(each.filter) ? (reserved.get(each.filter) ? "reserved" : "waits for a decision") : "not reserved"}</td>`}<td class="number"><${Behind} ms=${each.lag_ms} /></td></tr>`)} />`)}
    ${report && html`<p class="bar"><button class="plain" disabled=${pages.length === 1} onClick=${() => setPages(pages.slice(0, -1))}>Previous</button>
      <button class="plain" disabled=${rows.length < PAGE} onClick=${() => setPages([...pages, rows[rows.length - 1].number])}>Next</button>
      <span class="faint">${count(report.subscription_count)} at this broker</span></p>`}`;
}

function Throttle({ stream }) {
  if (!stream.throttled_since_ms) return html`<${Badge} kind="good">not throttled<//>`;
  return html`<${Badge} kind="bad">${rate(stream.rate_limit)} msg/s<//><span class="more">since ${clock(stream.throttled_since_ms).slice(0, 8)}, because of broker ${stream.throttled_by}</span>`;
}

export function PublishersPage() {
  const data = picture.value;
  const [broker, choose] = useState(null);
  const at = broker ?? data?.home;
  const before = useRef({});
  const [report, error] = useLoaded(async () => (at ? withRates(await call(`/api/brokers/${at}?page=0`), before) : null), [at], 2000);
  const [admission] = useLoaded(() => call("/api/more/admission").catch(() => ({ served: false })), [], 5000);
  const about = "What is published where, how fast, and who is slowed down by whom.";
  if (!data || !admission || (!report && !error)) return html`<${Page} title="Publishers" about=${about} waits=${true} />`;
  const publishing = (report?.clients || []).filter((each) => each.publishes);
  const throttled = data.pubends.filter((each) => each.throttled_since_ms);
  return html`<${Page} title="Publishers" about=${about} error=${error}>
    <div class="tiles"><${Tile} label="Published" value=${rate(data.pubends.reduce((sum, each) => sum + each.published_per_s, 0))} unit="msg/s" /><${Tile} label="Streams" value=${count(data.pubends.length)} />
      <${Tile} label="Throttled streams" value=${count(throttled.length)} state=${throttled.length ? "bad" : ""} /><${Tile} label="Wait for the disk" value=${count(data.pubends.reduce((sum, each) => sum + each.waiting, 0))} unit="messages" /></div>
    <h2>Streams</h2>
    ${data.pubends.length === 0 ? html`<${Empty} title="No stream yet">Publish a message: <pre>${`echo '{"attributes": {"symbol": "IBM"}, "payload": "hello"}' | postroad publish`}</pre><//>` : html`<${Table} caption="Streams" heads=${["Stream", { text: "Messages/s", number: true }, { text: "Published", number: true }, { text: "Waiting", number: true }, "Throttled to", "Furthest behind"]}
      rows=${data.pubends.slice(0, STREAMS_SHOWN).map((each) => html`<tr key=${each.pubend} data-pubend=${each.pubend} data-throttled=${each.throttled_since_ms ? "yes" : "no"}><td>broker ${each.broker}, log ${each.pubend % 256}</td><td class="number">${rate(each.published_per_s)}</td><td class="number">${count(each.published)}</td><td class="number">${count(each.waiting)}</td>
        <td><${Throttle} stream=${each} /></td>
        <td>${each.lag_broker ? `broker ${each.lag_broker}, ${span(each.lag_ms)}` : html`<span class="faint">nobody</span>`}${each.recovering.length ? html`<span class="more">recovering: ${each.recovering.slice(0, 20).join(", ")}</span>` : ""}</td></tr>`)} />`}
    <h2>Clients that publish</h2>
    <form class="bar"><${BrokerChoice} id="publishers-at" value=${at} onChoose=${choose} /></form>
    ${publishing.length === 0 ? html`<${Empty} title="No connected client has published here">Choose another broker, or publish with <code>postroad publish</code>.<//>` : html`<${Table} caption="Clients that publish" heads=${["Client", { text: "Sends now", number: true }, { text: "Received from it", number: true }, { text: "Sent to it", number: true }, { text: "Waiting for it", number: true }]}
      rows=${publishing.map((each) => html`<tr key=${each.link}><td><${Name} of=${each.name} /></td><td class="number">${each.bytes_per_s === null ? "–" : `${bytes(each.bytes_per_s)}/s`}</td><td class="number">${bytes(each.received_bytes)}</td><td class="number">${bytes(each.sent_bytes)}</td><td class="number">${bytes(each.backlog_bytes)}</td></tr>`)} />`}
    <h2>Advertised</h2>
    ${admission?.served && admission.advertised.length > 0 ? html`<${Advertised} of=${admission.advertised} />`
      : html`<p class="faint">${admission?.served ? "Nothing is advertised." : "Admission control is off, so publishers advertise nothing."}</p>`}<//>`;
}

// Add what each client sends a second, by what it had sent at the last look.
function withRates(report, before) {
  const spent = (report.wall_ms - before.current.wall_ms) / 1000;
  for (const each of report.clients) {
    const last = before.current.broker === report.broker ? before.current.received?.get(each.link) : undefined;
    each.bytes_per_s = last !== undefined && spent > 0 ? Math.max(0, each.received_bytes - last) / spent : null;
  }
  before.current = { broker: report.broker, wall_ms: report.wall_ms, received: new Map(report.clients.map((each) => [each.link, each.received_bytes])) };
  return report;
}

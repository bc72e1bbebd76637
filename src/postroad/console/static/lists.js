// Subscriptions and publishers.
import { useState } from "preact/hooks";
import { call, picture } from "./api.js";
import { Dot, Empty, Name, Note, Table, bytes, clock, count, html, rate, span, useLoaded } from "./parts.js";

export function SubscriptionsPage() {
  const [found, error] = useLoaded(() => call("/api/durables"), [], 3000);
  return html`<h1>Subscriptions</h1>
    <h2>Durable</h2>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${found && (found.count === 0
      ? html`<${Empty} title="No durable subscription">Make one: <code>postroad subscribe --name orders --filter "kind = 'order'"</code>. Messages wait for it while its client is away.<//>`
      : html`<${Table} caption="Durable subscriptions" heads=${["Name", "State", "Filter", { text: "Home", number: true }, { text: "Behind", number: true }]}
          rows=${found.durables.map((each) => html`<tr key=${each.name}><td><${Name} of=${each.name} /></td>
            <td><${Dot} state=${each.connected ? "up" : "slow"} /> ${each.connected ? "connected" : "away"}</td>
            <td>${each.filter === null ? html`<span class="faint">its home cannot be asked</span>` : html`<code>${each.filter || "everything"}</code>`}</td>
            <td class="number">${each.home}</td><td class="number">${span(each.behind_ms)}</td></tr>`)} />
        ${found.count > found.durables.length && html`<p class="faint">The ${count(found.durables.length)} furthest behind of ${count(found.count)}.</p>`}`)}
    <h2>Connected</h2><${Connected} />`;
}

function Connected() {
  const brokers = picture.value?.brokers.filter((each) => each.up) || [];
  const [chosen, choose] = useState(null);
  const [wanted, setWanted] = useState("");
  const [pages, setPages] = useState([0]);
  const broker = chosen ?? picture.value?.home;
  const after = pages[pages.length - 1];
  const [report, error] = useLoaded(async () => (broker ? call(`/api/brokers/${broker}?page=100&after=${after}&wanted=${encodeURIComponent(wanted)}`) : null), [broker, wanted, after], 3000);
  const rows = report?.subscriptions || [];
  return html`<form class="bar" onSubmit=${(event) => event.preventDefault()}>
      <label for="at">At broker</label><select id="at" value=${broker} onChange=${(event) => { choose(Number(event.target.value)); setPages([0]); }}>${brokers.map((each) => html`<option value=${each.id}>${each.id} ${each.name.slice(0, 60)}</option>`)}</select>
      <label for="wanted">containing</label><input id="wanted" value=${wanted} onInput=${(event) => { setWanted(event.target.value); setPages([0]); }} autocomplete="off" /></form>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${report && (rows.length === 0 ? html`<${Empty} title="No subscription here">${wanted ? "None contains this text." : html`Subscribe: <code>postroad subscribe --filter "price > 100"</code>`}<//>`
      : html`<${Table} caption="Subscriptions of connected clients" heads=${[{ text: "Number", number: true }, "Client", "Name", "Filter", "State", { text: "Behind", number: true }]}
        rows=${rows.map((each) => html`<tr key=${each.number}><td class="number">${each.number}</td><td><${Name} of=${each.client} /></td><td>${each.name ? html`<${Name} of=${each.name} />` : html`<span class="faint">live only</span>`}</td>
          <td><code>${each.filter || "everything"}</code></td><td>${each.is_answered ? (each.is_open ? "active" : "its client does not read") : "waiting for brokers on the way"}</td><td class="number">${span(each.lag_ms)}</td></tr>`)} />`)}
    ${report && html`<p class="bar"><button class="plain" disabled=${pages.length === 1} onClick=${() => setPages(pages.slice(0, -1))}>Previous</button>
      <button class="plain" disabled=${rows.length < 100} onClick=${() => setPages([...pages, rows[rows.length - 1].number])}>Next</button>
      <span class="faint">${count(report.subscription_count)} at this broker</span></p>`}`;
}

export function PublishersPage() {
  const data = picture.value;
  const [broker, choose] = useState(null);
  const at = broker ?? data?.home;
  const [report, error] = useLoaded(async () => (at ? call(`/api/brokers/${at}?page=0`) : null), [at], 2000);
  if (!data) return html`<h1>Publishers</h1><p class="loading">Asking the brokers…</p>`;
  const publishing = (report?.clients || []).filter((each) => each.publishes);
  return html`<h1>Publishers</h1>
    <h2>Streams</h2>
    ${data.pubends.length === 0 ? html`<${Empty} title="No stream yet">Publish a message first.<//>` : html`<${Table} caption="Streams" heads=${["Pubend", { text: "Messages/s", number: true }, { text: "Published", number: true }, { text: "Waiting", number: true }, "Throttled", "Furthest behind"]}
      rows=${data.pubends.slice(0, 500).map((each) => html`<tr key=${each.pubend} data-pubend=${each.pubend} data-throttled=${each.throttled_since_ms ? "yes" : "no"}><td>${each.broker}/${each.pubend & 255}</td><td class="number">${rate(each.published_per_s)}</td><td class="number">${count(each.published)}</td><td class="number">${count(each.waiting)}</td>
        <td>${each.throttled_since_ms ? html`<${Dot} state="bad" /> to ${rate(each.rate_limit)} msg/s since ${clock(each.throttled_since_ms)}, because of broker ${each.throttled_by}` : "no"}</td>
        <td>${each.lag_broker ? `broker ${each.lag_broker}, ${span(each.lag_ms)}` : "nobody"}${each.recovering.length ? `; recovering: ${each.recovering.join(", ")}` : ""}</td></tr>`)} />`}
    <h2>Clients that publish</h2>
    <form class="bar"><label for="publishers-at">At broker</label><select id="publishers-at" value=${at} onChange=${(event) => choose(Number(event.target.value))}>${data.brokers.filter((each) => each.up).map((each) => html`<option value=${each.id}>${each.id} ${each.name.slice(0, 60)}</option>`)}</select></form>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${publishing.length === 0 ? html`<p class="faint">No connected client has published here.</p>` : html`<${Table} caption="Clients that publish" heads=${["Client", { text: "Received", number: true }, { text: "Sent", number: true }, { text: "Waiting for it", number: true }]}
      rows=${publishing.map((each) => html`<tr key=${each.link}><td><${Name} of=${each.name} /></td><td class="number">${bytes(each.received_bytes)}</td><td class="number">${bytes(each.sent_bytes)}</td><td class="number">${bytes(each.backlog_bytes)}</td></tr>`)} />`}`;
}

// One message: where it came from, which way it went, who got it, and why somebody did not.
import { useState } from "preact/hooks";
import { call, picture } from "./api.js";
import { Attributes, Badge, Empty, Name, Note, Page, Payload, Table, clock, html, moment, useAsked, useLoaded } from "./parts.js";
import { Graph } from "./graph.js";
import { drawing } from "./map.js";
import { go } from "./router.js";

const KINDS = { delivered: "good", filtered: "", missing: "bad", gap: "bad", "in doubt": "warn", "cannot tell": "warn" };

export function MessagePage({ id }) {
  const [wanted, setWanted] = useState(id || "");
  const open = (event) => { event.preventDefault(); if (wanted.trim()) go(`/message/${encodeURIComponent(wanted.trim())}`); };
  return html`<${Page} title="One message" about="Where it came from, which way it went, who got it, and why somebody did not.">
    <form class="bar" onSubmit=${open}><label for="message-id">Message id</label>
      <input id="message-id" class="code" value=${wanted} onInput=${(event) => setWanted(event.target.value)} placeholder="00000000-00000001-01a1f29ef87c-0000" spellcheck="false" autocomplete="off" />
      <button>Trace</button></form>
    ${id ? html`<${Traced} id=${id} key=${id} />` : html`<${Empty} title="Which message?">Paste an id, as <code>postroad publish --ids</code> and <code>postroad subscribe</code> print it, or choose a message in the <a href="/tail">live tail</a>.<//>`}<//>`;
}

function chance(probability) {
  if (!probability) return "exact";
  return probability < 0.0001 ? probability.toExponential(1) : `${(100 * probability).toFixed(2)}%`;
}

function Traced({ id }) {
  const [found, error, again] = useLoaded(() => call(`/api/messages/${encodeURIComponent(id)}`), [id]);
  if (error) return html`<${Note} kind="error">${error}<//>`;
  if (!found) return html`<div class="waiting">Asking the brokers on the way…</div>`;
  const { trace, message } = found;
  const saw = new Map(trace.brokers.filter((each) => !each.isolated).map((each) => [each.broker, each]));
  if (trace.published_probability !== null || saw.size) saw.set(trace.origin, saw.get(trace.origin) || { upstream: null, probability: trace.published_probability });
  const worst = Math.max(0, trace.published_probability || 0, ...trace.brokers.map((each) => each.probability), ...trace.subscribers.map((each) => each.probability));
  return html`${trace.problem && html`<${Note} kind="warning">${trace.problem}<//>`}
    ${!trace.found && html`<${Note} kind="warning">No broker knows this message yet. Tracks appear within seconds after publishing. <button class="plain" onClick=${again}>Ask again</button><//>`}
    <div class="columns">
      <section class="card"><h2>Path</h2>${picture.value ? html`<${PathDrawing} trace=${trace} saw=${saw} />` : html`<div class="waiting">Asking for the map…</div>`}
        <ol class="path">${[...saw.keys()].map((broker) => html`<li key=${broker}><${Badge} kind="good">broker ${broker}<//>${broker === trace.origin ? "published it" : saw.get(broker).upstream ? `got it from broker ${saw.get(broker).upstream}` : "saw it"}</li>`)}</ol></section>
      <aside><section class="card"><h2>Message</h2>
        <dl class="facts"><div><dt>Published</dt><dd>${moment(trace.time_ms).slice(0, 10)} ${clock(trace.time_ms)}</dd></div>
          <div><dt>Publisher</dt><dd>number ${trace.publisher} at broker ${trace.origin}</dd></div>
          <div><dt>Chance of error</dt><dd>${worst ? `at most ${chance(worst)} for each answer` : "none: tracks are exact"}</dd></div></dl>
        ${message ? html`<h3>Attributes</h3><${Attributes} of=${message.attributes} /><h3>Payload</h3><${Payload} of=${message.payload} />` : html`<p class="faint">${found.hidden}</p>`}</section></aside>
    </div>
    <section><h2>Who got it</h2>
      ${trace.subscribers.length === 0 ? html`<${Empty} title="No delivery is recorded">Nobody wanted it, or its tracks are not written yet. <button class="plain" onClick=${again}>Ask again</button><//>`
        : html`<${Table} caption="Who got it" className="receipts" heads=${["Subscriber", "At broker", "Record", { text: "Chance of error", number: true }]}
          rows=${trace.subscribers.map((each) => html`<tr key=${each.subscriber + each.broker}><td><${Name} of=${each.subscriber} /></td><td>${each.broker}</td><td>${each.isolated ? html`<${Badge} kind="warn">unconfirmed: its broker does not have the message<//>` : html`<${Badge} kind="good">delivered<//>`}</td><td class="number">${chance(each.probability)}</td></tr>`)} />`}
      ${trace.unasked.map((each) => html`<${Note} kind="warning">Broker ${each.broker} may have seen it and could not be asked: ${each.reason || each.status}.<//>`)}
      ${trace.holes.map((each) => html`<${Note} kind="warning">The tracks of broker ${each.broker} have a hole there: ${each.reason}.<//>`)}
    </section>
    ${trace.found && html`<${Others} id=${id} />`}
    <${Explain} id=${id} />`;
}

function PathDrawing({ trace, saw }) {
  const { nodes, links } = drawing(picture.value);
  const got = new Map();
  for (const each of trace.subscribers) if (!each.isolated) got.set(each.broker, (got.get(each.broker) || 0) + 1);
  const shown = nodes.map((node) => {
    const delivered = got.has(node.id) ? `${got.get(node.id)} got it` : "";
    const detail = node.id === trace.origin ? (delivered ? `origin · ${delivered}` : "published here") : delivered || (saw.has(node.id) ? "passed it on" : "not involved");
    return { ...node, mark: "", state: saw.has(node.id) ? (node.id === trace.origin ? "origin" : "saw") : "unseen", detail, spoken: saw.has(node.id) ? "saw the message" : "did not see it" };
  });
  const taken = links.map((link) => {
    const to = [[link.a, link.b], [link.b, link.a]].find(([from, next]) => saw.get(next)?.upstream === from);
    return { ...link, label: "", weight: to ? 3 : 0, state: to ? "taken" : "unused", arrow: to ? to[1] : null };
  });
  return html`<${Graph} nodes=${shown} links=${taken} selected=${null} onSelect=${() => {}} label="The way of the message" />`;
}

// The durable subscriptions that did not get it, each with its reason.
function Others({ id }) {
  const [found, error] = useLoaded(() => call(`/api/messages/${encodeURIComponent(id)}/others`), [id]);
  return html`<section><h2>Who did not, and why</h2>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${!found && !error && html`<div class="waiting">Asking for the reasons…</div>`}
    ${found && (found.others.length === 0 ? html`<p class="faint">Every durable subscription got it, or there is none.</p>` : html`<${Table} caption="Who did not get it" className="others" heads=${["Subscriber", "Verdict", "Reason", "Its filter"]}
      rows=${found.others.map((each) => html`<tr key=${each.subscriber} data-verdict=${each.verdict}><td><${Name} of=${each.subscriber} /></td><td><${Badge} kind=${KINDS[each.verdict] ?? "warn"}>${each.verdict}<//></td><td>${each.reason}</td><td>${each.filter === null ? "–" : html`<code>${each.filter || "everything"}</code>`}</td></tr>`)} />`)}
    ${found && found.left_out > 0 && html`<p class="faint">${found.left_out} more are not asked here; name one below.</p>`}</section>`;
}

function Explain({ id }) {
  const { text, setText, answer, error, ask } = useAsked((name) => call(`/api/messages/${encodeURIComponent(id)}/explain?subscriber=${encodeURIComponent(name)}`));
  return html`<section class="card"><h2>Ask about one subscriber</h2>
    <form class="bar" onSubmit=${ask}><label for="subscriber">Subscriber</label>
      <input id="subscriber" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="name of a durable subscription, now or in the past" autocomplete="off" />
      <button>Explain</button></form>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${answer && html`<div class="verdict ${KINDS[answer.verdict] || "warn"}" data-verdict=${answer.verdict}><b>${answer.verdict}</b>: ${answer.reason}.
      ${answer.filter && html`<div>Its filter: <code>${answer.filter}</code></div>`}</div>`}
  </section>`;
}

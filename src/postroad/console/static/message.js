// One message: where it came from, which way it went, who got it, and why somebody did not.
import { useState } from "preact/hooks";
import { call, picture } from "./api.js";
import { Attributes, Empty, Name, Note, Payload, clock, html, useLoaded } from "./parts.js";
import { Graph } from "./graph.js";
import { drawing } from "./map.js";
import { go } from "./router.js";

export function MessagePage({ id }) {
  const [wanted, setWanted] = useState(id || "");
  const open = (event) => { event.preventDefault(); if (wanted.trim()) go(`/message/${encodeURIComponent(wanted.trim())}`); };
  return html`<h1>One message</h1>
    <form class="bar" onSubmit=${open}><label for="message-id">Message id</label>
      <input id="message-id" value=${wanted} onInput=${(event) => setWanted(event.target.value)} placeholder="32 hexadecimal digits, as publish --ids and subscribe print them" spellcheck="false" autocomplete="off" />
      <button>Trace</button></form>
    ${id ? html`<${Traced} id=${id} key=${id} />` : html`<${Empty} title="Which message?">Paste an id, or choose one in the <a href="/tail">live tail</a>.<//>`}`;
}

function percent(probability) {
  if (!probability) return "";
  return probability < 0.0001 ? ` (error ${probability.toExponential(1)})` : ` (error ${(100 * probability).toFixed(2)}%)`;
}

function Traced({ id }) {
  const [found, error, again] = useLoaded(() => call(`/api/messages/${encodeURIComponent(id)}`), [id]);
  if (error) return html`<${Note} kind="error">${error}<//>`;
  if (!found) return html`<p class="loading">Asking the brokers on the way…</p>`;
  const { trace, message } = found;
  const saw = new Map(trace.brokers.filter((each) => !each.isolated).map((each) => [each.broker, each]));
  if (trace.published_probability !== null || saw.size) saw.set(trace.origin, saw.get(trace.origin) || { upstream: null, probability: trace.published_probability });
  return html`${trace.problem && html`<${Note} kind="warning">${trace.problem}<//>`}
    ${!trace.found && html`<${Note} kind="warning">No broker knows this message yet. Tracks appear within seconds after publishing. <button class="plain" onClick=${again}>Ask again</button><//>`}
    <div class="columns">
      <section class="card wide"><h2>Path</h2>${picture.value && html`<${PathDrawing} trace=${trace} saw=${saw} />`}
        <ol class="path">${[...saw.keys()].map((broker) => html`<li key=${broker}>broker ${broker}${broker === trace.origin ? " published it" : saw.get(broker).upstream ? ` got it from broker ${saw.get(broker).upstream}` : " saw it"}${percent(saw.get(broker).probability)}</li>`)}</ol></section>
      <aside class="card"><h2>Message</h2>
        <dl class="facts"><div><dt>Published</dt><dd>${new Date(trace.time_ms).toISOString().slice(0, 10)} ${clock(trace.time_ms)}</dd></div>
          <div><dt>Publisher</dt><dd>${trace.publisher} at broker ${trace.origin}</dd></div></dl>
        ${message ? html`<h3>Attributes</h3><${Attributes} of=${message.attributes} /><h3>Payload</h3><${Payload} of=${message.payload} />` : html`<p class="faint">${found.hidden}</p>`}</aside>
    </div>
    <section class="card"><h2>Who got it</h2>
      ${trace.subscribers.length === 0 ? html`<p class="faint">No delivery is recorded.</p>` : html`<ul class="receipts">${trace.subscribers.map((each) => html`<li key=${each.subscriber + each.broker}>✓ <${Name} of=${each.subscriber} /> at broker ${each.broker}${percent(each.probability)}${each.isolated ? " – unconfirmed: its broker does not have the message" : ""}</li>`)}</ul>`}
      ${trace.unasked.map((each) => html`<${Note} kind="warning">Broker ${each.broker} may have seen it and could not be asked: ${each.reason || each.status}.<//>`)}
      ${trace.holes.map((each) => html`<${Note} kind="warning">The tracks of broker ${each.broker} have a hole there: ${each.reason}.<//>`)}
    </section>
    <${Explain} id=${id} />`;
}

function PathDrawing({ trace, saw }) {
  const { nodes, links } = drawing(picture.value);
  const got = new Map();
  for (const each of trace.subscribers) if (!each.isolated) got.set(each.broker, (got.get(each.broker) || 0) + 1);
  const shown = nodes.map((node) => ({
    ...node, mark: "", state: saw.has(node.id) ? (node.id === trace.origin ? "origin" : "saw") : "unseen",
    detail: node.id === trace.origin ? "published here" : got.has(node.id) ? `${got.get(node.id)} got it` : saw.has(node.id) ? "passed it on" : "",
    spoken: saw.has(node.id) ? "saw the message" : "did not see it",
  }));
  const taken = links.map((link) => {
    const to = [[link.a, link.b], [link.b, link.a]].find(([from, next]) => saw.get(next)?.upstream === from);
    return { ...link, label: "", weight: to ? 3 : 0, state: to ? "taken" : "unused", arrow: to ? to[1] : null };
  });
  return html`<${Graph} nodes=${shown} links=${taken} selected=${null} onSelect=${() => {}} label="The way of the message" />`;
}

function Explain({ id }) {
  const [subscriber, setSubscriber] = useState("");
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState("");
  const [names] = useLoaded(() => call("/api/durables").catch(() => ({ durables: [] })), []);
  const ask = async (event) => {
    event.preventDefault();
    setError("");
    try {
      setAnswer(await call(`/api/messages/${encodeURIComponent(id)}/explain?subscriber=${encodeURIComponent(subscriber)}`));
    } catch (failure) {
      setAnswer(null);
      setError(failure.message);
    }
  };
  return html`<section class="card"><h2>Why did a subscriber get it, or not?</h2>
    <form class="bar" onSubmit=${ask}><label for="subscriber">Subscriber</label>
      <input id="subscriber" list="subscribers" value=${subscriber} onInput=${(event) => setSubscriber(event.target.value)} placeholder="name of a durable subscription" autocomplete="off" />
      <datalist id="subscribers">${(names?.durables || []).slice(0, 100).map((each) => html`<option value=${each.name} />`)}</datalist>
      <button>Explain</button></form>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${answer && html`<div class="verdict ${answer.verdict.replaceAll(" ", "-")}"><b>${answer.verdict}</b>: ${answer.reason}.
      ${answer.filter && html`<br />Its filter: <code>${answer.filter}</code>`}</div>`}
  </section>`;
}

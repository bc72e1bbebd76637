// Queues: depth, what is in flight, dead letters; peek, put, redrive, purge.
import { useState } from "preact/hooks";
import { call } from "./api.js";
import { Attributes, Empty, Name, Note, Payload, Table, count, html, rate, span, useLoaded } from "./parts.js";

export function QueuesPage() {
  const [found, error, again] = useLoaded(() => call("/api/queues"), [], 2000);
  const [selected, select] = useState(null);
  const queue = found?.queues.find((each) => each.name === selected);
  return html`<h1>Queues</h1>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${found && !found.served && html`<${Empty} title="This broker serves no queues">Set <code>store</code> under <code>[queues]</code> in its configuration.<//>`}
    ${found?.served && (found.queues.length === 0
      ? html`<${Empty} title="No queue yet">Create one: <code>postroad queue create jobs</code><//>`
      : html`<${Table} caption="Queues" heads=${["Queue", { text: "Waiting", number: true }, { text: "In flight", number: true }, { text: "Scheduled", number: true }, { text: "Oldest", number: true }, { text: "Put/s", number: true }, { text: "Done/s", number: true }, "Dead letters", "Bound to"]}
        rows=${found.queues.map((each) => html`<tr key=${each.name} data-queue=${each.name}><td><button class="link" aria-expanded=${each.name === selected} onClick=${() => select(each.name === selected ? null : each.name)}><${Name} of=${each.name} /></button></td>
          <td class="number">${count(each.waiting)}</td><td class="number">${count(each.leased)}</td><td class="number">${count(each.scheduled)}</td><td class="number">${span(each.oldest_ms)}</td>
          <td class="number">${rate(each.put_per_s)}</td><td class="number">${rate(each.done_per_s)}</td><td>${each.dead_letters ? html`<${DeadLetters} of=${each.dead_letters} all=${found.queues} />` : "–"}</td>
          <td>${each.bound.map((text) => html`<code>${text || "everything"}</code> `)}</td></tr>`)} />`)}
    ${queue && html`<${Queue} queue=${queue} key=${queue.name} changed=${again} />`}`;
}

function messages(n) {
  return n === 1 ? "One message was" : `${count(n)} messages were`;
}

function DeadLetters({ of, all }) {
  const queue = all.find((each) => each.name === of);
  return html`<${Name} of=${of} />${queue ? `: ${count(queue.waiting)}` : ""}`;
}

function Queue({ queue, changed }) {
  const path = `/api/queues/${encodeURIComponent(queue.name)}`;
  const [page, pageError, again] = useLoaded(async () => (queue.allowed.includes("take") ? call(`${path}/messages`) : null), [queue.name], 3000);
  const [text, setText] = useState("");
  const [priority, setPriority] = useState(5);
  const [note, setNote] = useState(null);
  const [asking, setAsking] = useState(false);
  const act = async (action, body, say) => {
    try {
      const done = await call(`${path}/${action}`, { method: "POST", body });
      setNote({ kind: "info", text: say(done) });
    } catch (error) {
      setNote({ kind: "error", text: error.message });
    }
    setAsking(false);
    again();
    changed();
  };
  const put = (event) => { event.preventDefault(); act("put", { payload: text, priority: Number(priority) }, () => "One message was put."); setText(""); };
  const may = (action) => queue.allowed.includes(action);
  return html`<section class="card"><h2>Queue <${Name} of=${queue.name} /></h2>
    ${note && html`<${Note} kind=${note.kind}>${note.text}<//>`}
    ${may("put") && html`<form class="bar" onSubmit=${put}><label for="put-text">Put a message</label><input id="put-text" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" />
      <label for="put-priority">priority</label><input id="put-priority" type="number" min="1" max="10" value=${priority} onInput=${(event) => setPriority(event.target.value)} /><button>Put</button></form>`}
    ${may("manage") && html`<p class="bar">
      ${queue.dead_letters && html`<button class="plain" onClick=${() => act("redrive", {}, (done) => `${messages(done.moved)} put back.`)}>Redrive dead letters</button>`}
      ${asking ? html`<span>Delete all ${count(queue.waiting)} waiting messages?</span> <button class="danger" onClick=${() => act("purge", {}, (done) => `${messages(done.deleted)} deleted.`)}>Delete them</button> <button class="plain" onClick=${() => setAsking(false)}>Keep them</button>`
        : html`<button class="plain" onClick=${() => setAsking(true)}>Purge…</button>`}</p>`}
    ${pageError && html`<${Note} kind="error">${pageError}<//>`}
    ${page && (page.messages.length === 0 ? html`<p class="faint">The queue is empty.</p>` : html`<h3>Next messages</h3><ul class="messages">${page.messages.map((each) => html`<li key=${each.id}><details><summary>#${each.id} <span class="faint">priority ${each.priority}${each.deliveries ? `, taken ${each.deliveries} times` : ""}</span> ${Object.keys(each.attributes).length ? html`<${Attributes} of=${each.attributes} />` : html`<${Name} of=${(each.payload.text ?? each.payload.base64 ?? "").slice(0, 120)} />`}</summary><${Payload} of=${each.payload} /></details></li>`)}</ul>
      ${page.more && html`<p class="faint">The first ${page.messages.length} messages.</p>`}`)}
  </section>`;
}

// Queues: depth, what is in flight, dead letters; peek, put, redrive, purge.
import { useState } from "preact/hooks";
import { call } from "./api.js";
import { Attributes, Badge, Empty, Name, Note, Page, Payload, Preview, Table, Tile, count, cut, html, rate, span, useLoaded } from "./parts.js";

export function QueuesPage() {
  const [found, error, again] = useLoaded(() => call("/api/queues"), [], 2000);
  const [selected, select] = useState(null);
  const queues = found?.queues || [];
  const queue = queues.find((each) => each.name === selected);
  const dead = new Set(queues.map((each) => each.dead_letters).filter(Boolean));
  const sum = (read) => queues.reduce((total, each) => total + read(each), 0);
  return html`<${Page} title="Queues" about="Work that waits, is in flight, or has failed; look into a queue, put, redrive, purge." error=${error} waits=${!found}>
    ${found && !found.served && html`<${Empty} title="This broker serves no queues">Name a store in its configuration:<pre>[queues]${"\n"}store = "queues.sqlite"</pre><//>`}
    ${found?.served && (queues.length === 0
      ? html`<${Empty} title="No queue yet">Create one, and put something on it:<pre>postroad queue create jobs${"\n"}postroad queue put jobs hello</pre><//>`
      : html`<div class="tiles"><${Tile} label="Waiting" value=${count(sum((each) => (dead.has(each.name) ? 0 : each.waiting)))} /><${Tile} label="In flight" value=${count(sum((each) => each.leased))} /><${Tile} label="Done" value=${rate(sum((each) => each.done_per_s))} unit="msg/s" />
          <${Tile} label="Dead letters" value=${count(sum((each) => (dead.has(each.name) ? each.waiting : 0)))} state=${sum((each) => (dead.has(each.name) ? each.waiting : 0)) ? "bad" : ""} /></div>
        <${Table} caption="Queues" heads=${["Queue", { text: "Waiting", number: true }, { text: "In flight", number: true }, { text: "Scheduled", number: true }, { text: "Oldest", number: true }, { text: "Put/s", number: true }, { text: "Done/s", number: true }, "Dead letters", "Bound to"]}
        rows=${queues.map((each) => html`<tr key=${each.name} data-queue=${each.name}><td><button class="link" aria-expanded=${each.name === selected} onClick=${() => select(each.name === selected ? null : each.name)}><${Name} of=${each.name} most=${120} /></button></td>
          <td class="number">${count(each.waiting)}</td><td class="number">${count(each.leased)}</td><td class="number">${count(each.scheduled)}</td><td class="number">${span(each.oldest_ms)}</td>
          <td class="number">${rate(each.put_per_s)}</td><td class="number">${rate(each.done_per_s)}</td><td>${each.dead_letters ? html`<${DeadLetters} of=${each.dead_letters} all=${queues} />` : dead.has(each.name) ? html`<span class="faint">holds them</span>` : "–"}</td>
          <td>${each.bound.length ? each.bound.map((text) => html`<code>${cut(text || "everything", 300)}</code> `) : html`<span class="faint">nothing</span>`}</td></tr>`)} />
        ${queue ? html`<${Queue} queue=${queue} key=${queue.name} changed=${again} />` : html`<p class="faint">Choose a queue to look into it.</p>`}`)}<//>`;
}

function messages(n) {
  return n === 1 ? "One message was" : `${count(n)} messages were`;
}

function DeadLetters({ of, all }) {
  const queue = all.find((each) => each.name === of);
  return html`<${Badge} kind=${queue?.waiting ? "bad" : ""}>${queue ? count(queue.waiting) : "?"}<//> <span class="faint">in <${Name} of=${of} most=${60} /></span>`;
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
  return html`<section class="card"><h2>Queue <${Name} of=${queue.name} most=${120} /></h2>
    <div class="outcome" aria-live="polite">${note && html`<${Note} kind=${note.kind}>${cut(note.text, 300)}<//>`}</div>
    ${may("put") && html`<form class="bar" onSubmit=${put}><label for="put-text">Put a message</label><input id="put-text" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" />
      <label for="put-priority">priority</label><input id="put-priority" type="number" min="1" max="10" value=${priority} onInput=${(event) => setPriority(event.target.value)} /><button>Put</button></form>`}
    ${may("manage") && html`<p class="bar">
      ${queue.dead_letters && html`<button class="plain" onClick=${() => act("redrive", {}, (done) => `${messages(done.moved)} put back.`)}>Redrive dead letters</button>`}
      ${asking ? html`<span>Delete all ${count(queue.waiting)} waiting messages?</span> <button class="danger" onClick=${() => act("purge", {}, (done) => `${messages(done.deleted)} deleted.`)}>Delete them</button> <button class="plain" onClick=${() => setAsking(false)}>Keep them</button>`
        : html`<button class="plain" onClick=${() => setAsking(true)}>Purge…</button>`}</p>`}
    ${pageError && html`<${Note} kind="error">${cut(pageError, 300)}<//>`}
    ${page && (page.messages.length === 0 ? html`<${Empty} title="The queue is empty">${may("put") ? "Put a message above." : "Nothing waits."}<//>` : html`<div class="peek"><section><h3>Next messages</h3><ul class="messages">${page.messages.map((each) => html`<li key=${each.id}><details><summary><b>#${each.id}</b> <span class="faint">priority ${each.priority}${each.deliveries ? `, taken ${each.deliveries} times` : ""}</span> ${Object.keys(each.attributes).length > 0 && html`<${Attributes} of=${each.attributes} />`} <${Preview} of=${each.payload} /></summary><div class="open"><${Attributes} of=${each.attributes} /><${Payload} of=${each.payload} /></div></details></li>`)}</ul>
      ${page.more && html`<p class="faint">The first ${page.messages.length} messages.</p>`}</section>
      ${page.by_priority.length > 0 && html`<section><h3>Waiting by priority</h3><${Priorities} of=${page.by_priority} /></section>`}</div>`)}
  </section>`;
}

function Priorities({ of }) {
  const most = Math.max(1, ...of.map((each) => each[1]));
  return html`<table><caption class="hidden">Waiting by priority</caption><thead class="hidden"><tr><th scope="col">Priority</th><th scope="col">Share</th><th scope="col">Waiting</th></tr></thead>
    <tbody>${of.map(([priority, waiting]) => html`<tr key=${priority} data-priority=${priority}><td>${priority}</td><td class="wide"><svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${(100 * waiting) / most} height="8" /></svg></td><td class="number">${count(waiting)}</td></tr>`)}</tbody></table>`;
}

// Topics, admission, books: pages whose figures come from beside the overlay.
import { call } from "./api.js";
import { Dot, Empty, Name, Note, Table, count, html, rate, useLoaded } from "./parts.js";

export function TopicsPage() {
  const [found, error] = useLoaded(() => call("/api/more/topics"), [], 3000);
  return html`<h1>Topics</h1>${error && html`<${Note} kind="error">${error}<//>`}
    ${found && !found.served && html`<${Empty} title="No topic server is shown here">Topics have servers of their own. Name their directories in <code>topics</code> under <code>[console]</code>.<//>`}
    ${found?.served && (found.topics.length === 0 ? html`<${Empty} title="No topic yet">Subscribe to one: <code>postroad topic get news --id reader --proxy ADDRESS</code><//>`
      : html`<${Table} caption="Topics" heads=${["Topic", "Owner", { text: "Subscribers", number: true }, { text: "Messages", number: true }, { text: "Bytes", number: true }]}
        rows=${found.topics.map((each) => html`<tr key=${each.owner + each.topic}><td><${Name} of=${each.topic} /></td><td><${Name} of=${each.owner} /></td><td class="number">${count(each.subscribers)}</td><td class="number">${count(each.messages)}</td><td class="number">${count(each.bytes)}</td></tr>`)} />`)}`;
}

export function AdmissionPage() {
  const [found, error] = useLoaded(() => call("/api/more/admission"), [], 3000);
  return html`<h1>Admission</h1>${error && html`<${Note} kind="error">${error}<//>`}
    ${found && !found.served && html`<${Empty} title="Admission control is off">Set <code>policy</code> under <code>[admission]</code>; then brokers accept a subscription only if they can serve it.<//>`}
    ${found?.served && html`<${Table} caption="Resources" heads=${["Resource", { text: "Capacity", number: true }, { text: "Reserved", number: true }, { text: "Free", number: true }]}
      rows=${found.resources.map((each) => html`<tr key=${each.name}><td><${Name} of=${each.name} /></td><td class="number">${each.capacity === null ? "no limit" : rate(each.capacity)}</td><td class="number">${rate(each.reserved)}</td><td class="number">${each.capacity === null ? "–" : rate(each.capacity - each.reserved)}</td></tr>`)} />
      <p class="faint">${count(found.advertisements)} advertisements, ${count(found.reservations)} reservations.</p>
      <h2>Refused</h2>${found.refused.length === 0 ? html`<p class="faint">Nothing was refused since this broker started.</p>` : html`<ul>${found.refused.map((each) => html`<li><code>${each.filter}</code>: ${each.reason}</li>`)}</ul>`}`}`;
}

const WORDS = { closes: "The books close.", "does not close": "The books do not close.", "cannot tell": "Nobody can tell: evidence is missing." };

export function BooksPage() {
  const [found, error] = useLoaded(() => call("/api/more/books"), [], 10_000);
  return html`<h1>Books</h1>${error && html`<${Note} kind="error">${error}<//>`}
    ${found && (!found.served || !found.verdict ? html`<${Empty} title="No audit yet">Run <code>postroad pipeline audit --data DIR --books FILE.json</code> and name the file in <code>books</code> under <code>[console]</code>. An audit compares, for every message, who should have got it and who did.<//>`
      : html`<div class="verdict ${found.verdict.replaceAll(" ", "-")}"><b>${WORDS[found.verdict] || found.verdict}</b> ${found.told}</div>
        <div class="tiles"><div><b>${count(found.published)}</b> published</div><div><b>${count(found.expected)}</b> expected</div><div><b>${count(found.delivered)}</b> delivered</div><div><b>${count(found.missing)}</b> missing</div></div>
        ${found.subscribers.length > 0 && html`<h2>Subscribers</h2><${Table} caption="Subscribers" heads=${["Subscriber", { text: "Expected", number: true }, { text: "Delivered", number: true }, { text: "Missing", number: true }]}
          rows=${found.subscribers.map((each) => html`<tr key=${each.subscriber}><td><${Name} of=${each.subscriber} /></td><td class="number">${count(each.expected)}</td><td class="number">${count(each.delivered)}</td><td class="number">${each.missing ? html`<${Dot} state="bad" /> ` : ""}${count(each.missing)}</td></tr>`)} />`}
        ${found.named.length > 0 && html`<h2>Named messages</h2><ul class="messages">${found.named.map((each) => html`<li><span>${each.verdict}: <${Name} of=${each.subscriber} /> <code>${each.id}</code></span><a href=${`/message/${each.id}`}>trace</a></li>`)}</ul>`}`)}`;
}

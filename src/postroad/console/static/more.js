// Topics, admission, books: pages whose figures come from beside the overlay.
import { call } from "./api.js";
import { Badge, Dot, Empty, Meter, Name, Note, Page, Table, Tile, bytes, count, cut, html, moment, rate, useAsked, useLoaded } from "./parts.js";

export function TopicsPage() {
  const [found, error] = useLoaded(() => call("/api/more/topics"), [], 3000);
  return html`<${Page} title="Topics" about="Named feeds with servers of their own: who owns each, who subscribes, and how much waits." error=${error} waits=${!found}>
    ${found && !found.served && html`<${Empty} title="No topics service is shown here">Topics have servers of their own. Start one with <code>postroad topics proxy p1</code> and <code>postroad topics server s1</code>, then name the proxy in the broker's configuration:<pre>[console]${"\n"}topics = ["127.0.0.1:7101"]</pre><//>`}
    ${found?.served && html`
      <div class="tiles"><${Tile} label="Topics" value=${count(found.topic_count)} />
        <${Tile} label="Servers up" value=${`${found.servers.filter((each) => each.up).length} of ${found.servers.length}`} />
        <${Tile} label="Proxies up" value=${`${found.proxies.filter((each) => each.up).length} of ${found.proxies.length}`} />
        <${Tile} label="Unread messages" value=${count(found.topics.reduce((sum, each) => sum + each.unread, 0))} /></div>
      ${found.topics.length === 0
        ? html`<${Empty} title="No topic yet">Subscribe somebody to one: <code>postroad topic subscribe reader news</code>, then <code>postroad topic put writer news --text hello</code><//>`
        : html`<${Table} caption="Topics" heads=${["Topic", "Owner", "State", { text: "Subscribers", number: true }, { text: "Unread", number: true }, { text: "Kept", number: true }, { text: "Size", number: true }]}
          rows=${found.topics.map((each) => html`<tr key=${each.owner + each.topic} data-topic=${each.topic}><td><${Name} of=${each.topic} /></td><td><${Name} of=${each.owner} /></td><td><${Badge} kind=${each.state === "serving" ? "good" : "warn"}>${each.state}<//></td>
            <td class="number">${count(each.subscribers)}</td><td class="number">${count(each.unread)}</td><td class="number">${count(each.messages)}</td><td class="number">${bytes(each.bytes)}</td></tr>`)} />`}
      <h2>Servers and proxies</h2>
      <${Table} caption="Servers and proxies" heads=${["Name", "Kind", "Address", "State", { text: "Topics", number: true }]}
        rows=${[...found.servers.map((each) => ({ ...each, kind: "server" })), ...found.proxies.map((each) => ({ ...each, kind: "proxy" }))].map((each) => html`<tr key=${each.kind + each.address}><td>${each.name ? html`<${Name} of=${each.name} />` : "?"}</td><td>${each.kind}</td><td><${Name} of=${each.address} /></td>
          <td><${Dot} state=${each.up ? "up" : "down"} /> ${each.up ? "up" : "no answer"}</td><td class="number">${each.topics ?? "–"}</td></tr>`)} />`}<//>`;
}

function amount(use, value) {
  return use.unit === "bytes" ? bytes(value) : `${rate(value)} ${use.unit}`;
}

export function Advertised({ of }) {
  return html`<${Table} caption="Advertised" heads=${["What will be published", { text: "At most", number: true }, { text: "Times", number: true }, "At brokers"]}
    rows=${of.map((each) => html`<tr key=${each.filter}><td><code>${cut(each.filter || "everything", 500)}</code></td><td class="number">${rate(each.per_s)} msg/s</td><td class="number">${count(each.count)}</td><td>${each.brokers.join(", ")}</td></tr>`)} />`;
}

export function AdmissionPage() {
  const [found, error] = useLoaded(() => call("/api/more/admission"), [], 3000);
  return html`<${Page} title="Admission" about="What publishers advertised, what is reserved for subscriptions, and what is still free at this broker." error=${error} waits=${!found}>
    ${found && !found.served && html`<${Empty} title="Admission control is off">Every subscription is accepted, and a crowded overlay gets slower for all. With a policy, brokers accept a subscription only if they can serve it:<pre>[admission]${"\n"}policy = "full"</pre><//>`}
    ${found?.served && html`
      <h2>Resources of broker ${found.broker}</h2>
      ${found.resources.length === 0 ? html`<${Empty} title="No limit is set">Set <code>cpu_rate</code> or <code>link_rate</code> under <code>[admission]</code>.<//>` : html`<${Table} caption="Resources" heads=${["Resource", "Use", { text: "Reserved", number: true }, { text: "Limit", number: true }, { text: "Free", number: true }]}
        rows=${found.resources.map((each) => html`<tr key=${each.name}><td>${each.name}${each.measured ? html` <span class="faint">measured</span>` : ""}</td><td class="wide"><${Meter} part=${each.limit ? each.used / each.limit : 0} label=${`use of ${each.name}`} /></td>
          <td class="number">${amount(each, each.used)}</td><td class="number">${each.limit === null ? "no limit" : amount(each, each.limit)}</td><td class="number">${each.limit === null ? "–" : amount(each, Math.max(0, each.limit - each.used))}</td></tr>`)} />`}
      <${Fits} />
      <div class="halves"><section><h2>Advertised <span class="faint">${count(found.advertisements)}</span></h2>
        ${found.advertised.length === 0 ? html`<${Empty} title="Nothing is advertised">A publisher says what it will send: <code>await client.advertise("price > 100", max_rate=50)</code><//>` : html`<${Advertised} of=${found.advertised} />`}</section>
      <section><h2>Reserved <span class="faint">${count(found.reservation_count)}</span></h2>
        ${found.reservations.length === 0 ? html`<${Empty} title="Nothing is reserved">Every admitted subscription appears here.<//>` : html`<${Table} caption="Reserved" heads=${["Filter", "For", { text: "Subscriptions", number: true }, "State"]}
          rows=${found.reservations.map((each) => html`<tr key=${`${each.filter}-${each.origin}-${each.neighbour}`}><td><code>${each.filter || "everything"}</code></td><td>${each.neighbour ? `broker ${each.origin}, over broker ${each.neighbour}` : "clients here"}</td><td class="number">${count(each.subscriptions)}</td>
            <td>${each.decided ? html`<${Badge} kind="good">reserved<//>` : html`<${Badge} kind="warn">waits for a decision<//>`}</td></tr>`)} />`}</section></div>`}<//>`;
}

// Would a subscription fit? Nothing is reserved by asking.
function Fits() {
  const { text, setText, answer, error, ask } = useAsked((filter) => call(`/api/admission?filter=${encodeURIComponent(filter)}`));
  return html`<section class="card"><h2>Would a subscription fit?</h2>
    <form class="bar" onSubmit=${ask}><label for="fits">Filter</label><input id="fits" class="code" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="price > 100" spellcheck="false" autocomplete="off" /><button>Ask the brokers</button></form>
    ${error && html`<${Note} kind="error">${error}<//>`}
    ${answer && html`<div class="verdict ${answer.admitted ? "good" : "bad"}"><b>${answer.admitted ? "It fits." : "It would be refused."}</b> ${answer.highest_per_s ? `It brings up to ${rate(answer.highest_per_s)} msg/s, by what is advertised.` : "Nothing that is advertised matches it."}
      ${answer.refusals.length > 0 && html`<ul>${answer.refusals.map((each) => html`<li>${each}</li>`)}</ul>`}
      ${!answer.admitted && answer.largest_per_s !== null && html`<div>At most ${rate(answer.largest_per_s)} msg/s more would fit.</div>`}
      ${!answer.admitted && answer.fitting !== null && html`<div>This would fit: <code>${answer.fitting}</code></div>`}</div>`}</section>`;
}

const WORDS = {
  closes: ["The books close.", "good"],
  "does not close": ["The books do not close.", "bad"],
  "cannot tell": ["It cannot be decided whether the books close: evidence is missing.", "warn"],
};

export function BooksPage() {
  const [found, error] = useLoaded(() => call("/api/more/books"), [], 10_000);
  const [words, kind] = WORDS[found?.verdict] || [found?.verdict, "warn"];
  return html`<${Page} title="Books" about="The last audit: for every message, who should have got it, and who did." error=${error} waits=${!found}>
    ${found && (!found.served || !found.verdict ? html`<${Empty} title="No audit yet">An audit compares the brokers' logs with their tracks, and names every message that is missing:<pre>postroad pipeline audit --data DIR --books DIR/books.json</pre>Then name the file in the broker's configuration:<pre>[console]${"\n"}books = "books.json"</pre><//>`
      : html`<div class="verdict ${kind}"><b>${words}</b> <span>${found.told}</span> <span class="faint">${moment(found.at_ms)}</span></div>
        <div class="tiles"><${Tile} label="Published" value=${count(found.published)} /><${Tile} label="Expected deliveries" value=${count(found.expected)} /><${Tile} label="Recorded deliveries" value=${count(found.delivered)} />
          <${Tile} label="Missing" value=${count(found.missing)} state=${found.missing ? "bad" : "good"} /><${Tile} label="Explained by crashes or holes" value=${count(found.explained)} /></div>
        ${found.subscribers.length > 0 && html`<h2>Subscribers</h2><${Table} caption="Subscribers" heads=${["Subscriber", "Result", { text: "Expected", number: true }, { text: "Delivered", number: true }, { text: "Missing", number: true }]}
          rows=${found.subscribers.map((each) => html`<tr key=${each.subscriber}><td><${Name} of=${each.subscriber} /></td><td><${Badge} kind=${each.missing ? "bad" : "good"}>${each.missing ? "incomplete" : "complete"}<//></td><td class="number">${count(each.expected)}</td><td class="number">${count(each.delivered)}</td><td class="number">${count(each.missing)}</td></tr>`)} />`}
        ${found.named.length > 0 && html`<h2>Named messages <span class="faint">${count(found.named.length)}</span></h2><${Table} caption="Named messages" heads=${["Verdict", "Subscriber", "Message", "Reason"]}
          rows=${found.named.map((each) => html`<tr key=${each.id + each.subscriber}><td><${Badge} kind=${each.verdict === "missing" || each.verdict === "skipped" ? "bad" : "warn"}>${each.verdict}<//></td><td><${Name} of=${each.subscriber} /></td><td><a href=${`/message/${each.id}`}><code>${each.id}</code></a></td><td>${each.reason || "–"}</td></tr>`)} />`}`)}<//>`;
}

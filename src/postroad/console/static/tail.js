// The live tail of a filter: type, watch, pause, open.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, follow } from "./api.js";
import { Attributes, Empty, Page, Payload, Preview, clock, count, html } from "./parts.js";

const KEPT = 200;
const POINTED_MAX = 60; // further right, a mark would not be seen

export function TailPage() {
  const [text, setText] = useState(new URLSearchParams(location.search).get("filter") || "");
  const [problem, setProblem] = useState(null);
  const [followed, setFollowed] = useState(null);
  const [messages, setMessages] = useState([]);
  const [counts, setCounts] = useState({ received: 0, left_out: 0 });
  const [error, setError] = useState("");
  const [paused, setPaused] = useState(false);
  const [connected, setConnected] = useState(false);
  const isPaused = useRef(false);
  isPaused.current = paused;

  useEffect(() => { // say what is wrong while typing
    let ended = false;
    const timer = setTimeout(async () => {
      try {
        const answer = await call(`/api/filter?text=${encodeURIComponent(text)}`);
        if (!ended) setProblem(answer.error ? answer : null);
      } catch (failure) {
        if (!ended) setProblem({ error: failure.message, position: null });
      }
    }, 200);
    return () => { ended = true; clearTimeout(timer); };
  }, [text]);

  useEffect(() => {
    if (followed === null) return undefined;
    setMessages([]);
    setCounts({ received: 0, left_out: 0 });
    return follow(`/api/tail?filter=${encodeURIComponent(followed)}`, (turn) => {
      setConnected(true);
      setCounts({ received: turn.received, left_out: turn.left_out });
      if (!isPaused.current && turn.messages.length) setMessages((before) => [...turn.messages.reverse(), ...before].slice(0, KEPT));
    }, (state) => { if (!state) setConnected(false); }, setError);
  }, [followed]);

  const begin = (event) => { event.preventDefault(); if (!problem) { setError(""); setPaused(false); setFollowed(text); } };
  return html`<${Page} title="Live tail" about="Messages that match a filter, as they are published anywhere in the overlay." error=${error}>
    <form class="follow" onSubmit=${begin}><label for="filter">Filter</label>
      <input id="filter" class="code" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="empty for everything, or symbol = 'IBM' AND price > 100" spellcheck="false" autocomplete="off" aria-label="Filter" aria-invalid=${!!problem} aria-describedby="filter-problem" />
      <button disabled=${!!problem}>Follow</button>
      <button type="button" class="plain" disabled=${followed === null} aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      <div id="filter-problem" class="problem" aria-live="polite">${problem && pointAt(problem)}</div></form>
    ${followed === null
      ? html`<${Empty} title="Nothing is followed yet">Press <b>Follow</b> to see every message, or type a filter first:<pre>symbol = 'IBM' AND price > 100${"\n"}kind IN ('order', 'cancel') AND NOT test${"\n"}name LIKE 'A%'</pre>Mistakes are shown where they are, while you type.<//>`
      : html`<p class="faint" data-tail=${connected ? "connected" : "waiting"}>${connected ? (paused ? "Paused. " : "Following. ") : "Connecting… "}${count(counts.received)} received${counts.left_out ? `, ${count(counts.left_out)} not shown: more than a person can read` : ""}.</p>
        ${messages.length === 0 ? html`<${Empty} title="No message yet">Publish one that matches: <pre>${`echo '{"attributes": {"symbol": "IBM", "price": 99.5}, "payload": "hello"}' | postroad publish`}</pre><//>`
          : html`<ul class="messages">${messages.map((each) => html`<li key=${each.id}><details><summary><time>${clock(each.time_ms)}</time> <${Attributes} of=${each.attributes} /> <${Preview} of=${each.payload} /></summary>
          <div class="open"><code>${each.id}</code><${Attributes} of=${each.attributes} /><${Payload} of=${each.payload} /></div></details><a href=${`/message/${each.id}`} aria-label=${`Trace message ${each.id}`}>trace</a></li>`)}</ul>`}`}<//>`;
}

// A mark below the character where the mistake is, and what it is.
function pointAt({ error, position }) {
  if (position === null) return error;
  return position <= POINTED_MAX ? `${" ".repeat(position)}^ ${error}` : `at character ${position + 1}: ${error}`;
}

// The frame: the way in, the menu, and the page that the address names.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { askWho, enter, followPicture, leave, live, session } from "./api.js";
import { Dot, Name, Note, html } from "./parts.js";
import { listen, path } from "./router.js";
import { MapPage } from "./map.js";
import { MessagePage } from "./message.js";
import { TailPage } from "./tail.js";
import { PublishersPage, SubscriptionsPage } from "./lists.js";
import { QueuesPage } from "./queues.js";
import { AdmissionPage, BooksPage, TopicsPage } from "./more.js";

// address, title, page, icon; a text alone begins a group
const PAGES = [
  ["/", "Map", MapPage, "M5 7a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM15 12a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM6 17a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM7 6l6 3M8 14l5-3"],
  "Messages",
  ["/tail", "Live tail", TailPage, "M3 5h14M3 10h9M3 15h6M14 12v5M11.5 14.500l2.500 2.500 2.500-2.500"],
  ["/message", "Message", MessagePage, "M3 5h14v10H3ZM3 6l7 5 7-5"],
  ["/queues", "Queues", QueuesPage, "M3 4h14v3H3ZM3 8.500h14v3H3ZM3 13h14v3H3Z"],
  ["/topics", "Topics", TopicsPage, "M10 3v14M10 10l-6-4M10 10l6-4M10 14l-6-3M10 14l6-3"],
  "Who",
  ["/subscriptions", "Subscriptions", SubscriptionsPage, "M4 11v5h12v-5M10 3v9M7 9l3 3 3-3"],
  ["/publishers", "Publishers", PublishersPage, "M4 11v5h12v-5M10 12V3M7 6l3-3 3 3"],
  "Promises",
  ["/admission", "Admission", AdmissionPage, "M4 17V8M8 17V4M12 17v-7M16 17v-4"],
  ["/books", "Books", BooksPage, "M4 4h5a2 2 0 0 1 2 2v11a2 2 0 0 0-2-2H4ZM17 4h-4a2 2 0 0 0-2 2v11a2 2 0 0 1 2-2h4Z"],
];

function Frame() {
  useEffect(followPicture, []);
  const [open, setOpen] = useState(false);
  const parts = path.value.split("/");
  const here = `/${parts[1]}`;
  const [, title, Page] = PAGES.find(([at]) => at === here) || PAGES[0];
  useEffect(() => { document.title = `${title} · Postroad`; setOpen(false); }, [path.value]);
  return html`<a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>Skip to the content</a>
    <div class="frame"><header class="side ${open ? "open" : ""}"><a class="brand" href="/"><img src="/static/icon.svg" alt="" width="28" height="28" /> Postroad</a>
      <button class="menu" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Close" : `Menu · ${title}`}</button>
      <nav aria-label="Pages">${PAGES.map((each) => (typeof each === "string" ? html`<b>${each}</b>` : html`<a href=${each[0]} aria-current=${each[0] === here ? "page" : null}><svg viewBox="0 0 20 20" aria-hidden="true"><path d=${each[3]} /></svg>${each[1]}</a>`))}</nav>
      <div class="who"><span><${Dot} state=${live.value ? "up" : "down"} label=${live.value ? "live" : "not connected"} /> broker ${session.value.home}${session.value.identity ? html` as <${Name} of=${session.value.identity} most=${40} />` : ""}</span>
        <span class="buttons"><${Theme} /><button onClick=${leave}>Leave</button></span></div></header>
    <main id="content" tabindex="-1"><${Page} id=${parts[2] ? decodeURIComponent(parts[2]) : ""} /></main></div>`;
}

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const next = theme === "dark" ? "light" : "dark";
  return html`<button onClick=${() => { document.documentElement.dataset.theme = next; localStorage.setItem("theme", next); setTheme(next); }}>${next === "dark" ? "Dark" : "Light"}</button>`;
}

function Entrance() {
  const [key, setKey] = useState("");
  const [error, setError] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    try {
      await enter(key.trim());
    } catch (failure) {
      setError(failure.status === 401 ? "This key is not valid." : failure.message);
    }
  };
  return html`<main class="entrance"><img src="/static/icon.svg" alt="" width="56" height="56" /><h1>Postroad console</h1>
    <form onSubmit=${submit}><label for="key">Key</label><input id="key" type="password" value=${key} onInput=${(event) => setKey(event.target.value)} autocomplete="current-password" autofocus />
      <button>Enter</button></form>
    ${error && html`<${Note} kind="error">${error}<//>`}
    <p class="faint">The broker writes the key to the file <code>console.key</code> in its data directory. <code>postroad console</code> prints an address with the key in it. Where identities are configured, enter with a token.</p></main>`;
}

function App() {
  if (session.value === undefined) return html`<p class="loading">Loading…</p>`;
  return session.value === null ? html`<${Entrance} />` : html`<${Frame} />`;
}

async function begin() {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  listen();
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key) {
    history.replaceState(null, "", location.pathname + location.search); // the key does not stay in the address
    try {
      await enter(key);
    } catch {
      session.value = null;
    }
  } else {
    await askWho().catch(() => { session.value = null; });
  }
  document.getElementById("app").replaceChildren();
  render(html`<${App} />`, document.getElementById("app"));
}

begin();

// The frame: the way in, the menu, and the page that the address names.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { askWho, enter, followPicture, leave, live, session } from "./api.js";
import { Dot, Note, html } from "./parts.js";
import { listen, path } from "./router.js";
import { MapPage } from "./map.js";
import { MessagePage } from "./message.js";
import { TailPage } from "./tail.js";
import { PublishersPage, SubscriptionsPage } from "./lists.js";
import { QueuesPage } from "./queues.js";
import { AdmissionPage, BooksPage, TopicsPage } from "./more.js";

const PAGES = [
  ["/", "Map", MapPage], ["/tail", "Live tail", TailPage], ["/message", "Message", MessagePage], ["/subscriptions", "Subscriptions", SubscriptionsPage],
  ["/publishers", "Publishers", PublishersPage], ["/queues", "Queues", QueuesPage], ["/topics", "Topics", TopicsPage], ["/admission", "Admission", AdmissionPage], ["/books", "Books", BooksPage],
];

function Frame() {
  useEffect(followPicture, []);
  const parts = path.value.split("/");
  const [, title, Page] = PAGES.find(([at]) => at === `/${parts[1]}`) || PAGES[0];
  useEffect(() => { document.title = `${title} · Postroad`; }, [title]);
  return html`<a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>Skip to the content</a>
    <header><a class="brand" href="/"><img src="/static/icon.svg" alt="" width="26" height="26" /> Postroad</a>
      <nav aria-label="Pages">${PAGES.map(([at, text]) => html`<a href=${at} aria-current=${at === `/${parts[1]}` ? "page" : null}>${text}</a>`)}</nav>
      <div class="who"><span><${Dot} state=${live.value ? "up" : "down"} label=${live.value ? "live" : "not connected"} /> broker ${session.value.home}${session.value.identity ? ` as ${session.value.identity}` : ""}</span>
        <${Theme} /><button class="plain" onClick=${leave}>Leave</button></div></header>
    <main id="content" tabindex="-1"><${Page} id=${parts[2] ? decodeURIComponent(parts[2]) : ""} /></main>`;
}

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const next = theme === "dark" ? "light" : "dark";
  return html`<button class="plain" onClick=${() => { document.documentElement.dataset.theme = next; localStorage.setItem("theme", next); setTheme(next); }}>${next === "dark" ? "Dark" : "Light"}</button>`;
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

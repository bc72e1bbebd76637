// Which page is shown: the path of the address.
import { signal } from "@preact/signals";

export const path = signal(location.pathname);

export function go(to) {
  history.pushState(null, "", to);
  path.value = location.pathname;
  window.scrollTo(0, 0);
}

export function listen() {
  window.addEventListener("popstate", () => { path.value = location.pathname; });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link || link.origin !== location.origin || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}

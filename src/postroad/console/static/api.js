// Talks to the broker: requests, the session, and the live streams. State that pages share is in signals.
import { signal } from "@preact/signals";

export const session = signal(undefined); // undefined: not known yet; null: none
export const picture = signal(null); // the newest picture of the overlay
export const live = signal(false); // the stream of pictures is connected

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, { method = "GET", body } = {}) {
  const options = { method, credentials: "same-origin" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new ApiError(0, "The broker that serves this page does not answer.");
  }
  let answer = {};
  try {
    answer = await response.json();
  } catch {
    // an answer without a body
  }
  if (response.status === 401 && path !== "/api/session") session.value = null;
  if (!response.ok) throw new ApiError(response.status, answer.error || `The broker answered ${response.status}.`);
  return answer;
}

export async function enter(key) {
  await call("/api/session", { method: "POST", body: { key } });
  await askWho();
}

export async function askWho() {
  try {
    session.value = await call("/api/session");
  } catch (error) {
    if (error.status === 401) session.value = null;
    else throw error;
  }
}

export async function leave() {
  await call("/api/session", { method: "DELETE" });
  session.value = null;
}

// Follow a stream of events. Returns a function that ends it.
export function follow(path, onData, onState = () => {}, onFailed = () => {}) {
  const source = new EventSource(path);
  source.onopen = () => onState(true);
  source.onmessage = (event) => onData(JSON.parse(event.data));
  source.onerror = () => onState(false);
  source.addEventListener("failed", (event) => {
    onFailed(JSON.parse(event.data).error);
    source.close();
  });
  return () => source.close();
}

export function followPicture() {
  return follow("/api/events", (data) => { picture.value = data; live.value = true; }, (state) => { live.value = state; });
}

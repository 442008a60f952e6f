// API client. The API key, if one is required, is stored only in this tab.

import { byId } from "./dom.js";

const KEY = "callslip-key";
export const state = { indexes: [], index: null };

class ApiError extends Error {
  constructor(status, error) {
    super(error.message || `The server responded with status ${status}`);
    this.status = status;
    this.remedy = error.remedy || "";
    this.code = error.code;
  }
}

async function askForKey() {
  const dialog = byId("key-dialog");
  byId("key").value = "";
  if (!dialog.open) dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  const key = byId("key").value.trim();
  if (key) sessionStorage.setItem(KEY, key);
  return Boolean(key);
}

let asking = null;

export async function call(path, { body, signal, parameters } = {}) {
  const query = parameters ? `?${new URLSearchParams(Object.entries(parameters).filter(([, v]) => v !== undefined && v !== null))}` : "";
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path + query, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body), credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The server does not respond", remedy: "Is callslip serve still running?" });
  }
  if (answer.status === 401) {
    asking = asking || askForKey();
    const given = await asking;
    asking = null;
    if (given) return call(path, { body, signal, parameters });
  }
  const read = await answer.json().catch(() => ({ error: {} }));
  if (!answer.ok) throw new ApiError(answer.status, read.error || {});
  return read;
}

// "history: a, b" is a history of items, oldest first; anything else is text.
export function asked(query) {
  const found = /^\s*history:(.*)$/is.exec(query);
  return found ? { history: found[1].split(",").map((id) => id.trim()).filter(Boolean) } : { query };
}

// Indexes that are searched by text, and those that read histories of items.
export const texts = () => state.indexes.filter((one) => !one.reads_histories);
export const logs = () => state.indexes.filter((one) => one.reads_histories);

const given = (beam, filter) => ({ ...(beam ? { beam } : {}), ...(filter ? { filter } : {}) });
export const search = (index, question, k, beam, filter, signal) =>
  call("/v1/search", { signal, body: { index, ...question, k, explain: true, characters: 3000, ...given(beam, filter) } });
export const explain = (index, question, id, k, beam, filter, signal) =>
  call("/v1/explain", { signal, body: { index, ...question, doc_id: id, k, ...given(beam, filter) } });
export const codes = (index, prefix, limit) => call("/v1/codes", { parameters: { index, prefix, depth: 2, limit } });
export const items = (index, contains, limit) => call("/v1/documents", { parameters: { index, contains, limit } });
export const bucket = (index, prefix, offset) => call("/v1/codes/documents", { parameters: { index, prefix, offset, limit: 20 } });
export const document_ = (index, id) => call(`/v1/documents/${encodeURIComponent(id)}`, { parameters: { index } });
export const neighbours = (index, id) => call("/v1/neighbours", { parameters: { index, doc_id: id, limit: 10 } });
export const facets = (index) => call("/v1/facets", { parameters: { index } });
export const examples = (index) => call("/v1/examples", { parameters: { index } });
export const health = (index) => call("/v1/health", { parameters: { index } });
export const indexes = () => call("/v1/indexes");
export const textOf = (prefix) => prefix.map((token) => (token < 0 ? "end" : token)).join("-");

// The figures of the indexes change while the page is open; they are read again with a search, at most every 3 seconds.
// The objects stay, because the desks hold them.
let counted = Date.now();
export async function recount() {
  if (Date.now() - counted < 3000) return;
  counted = Date.now();
  const now = await indexes().catch(() => ({ indexes: [] }));
  for (const one of now.indexes) Object.assign(state.indexes.find((held) => held.name === one.name) || {}, one);
}

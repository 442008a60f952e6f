// The page: the current view, the current index, and global keyboard shortcuts.

import { indexes, logs, state, texts } from "./api.js";
import { byId, el, problem, replace } from "./dom.js";
import * as document_ from "./document.js";
import * as explorer from "./explorer.js";
import * as health from "./health.js";
import * as recommend from "./recommend.js";
import * as search from "./search.js";

const VIEWS = { search, recommend, codes: explorer, health, document: document_ };
const TITLES = { search: "Search", recommend: "Recommend", codes: "Codes", health: "Health", document: "Document" };

// The URL holds the whole state: #/codes?index=demo&prefix=3-1 can be bookmarked, shared and reached with Back.
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = new URLSearchParams(query || "");
  if (path === "recommend" ? !logs().length : path === "search" && !texts().length) return { view: home(), parameters };
  return { view: Object.hasOwn(VIEWS, path) ? path : home(), parameters };
}

// The first view: that of the first index.
const home = () => (state.indexes.length && state.indexes[0].reads_histories ? "recommend" : "search");

// A list is repeated: item=a&item=b.
export function address(view, parameters) {
  const kept = Object.entries(parameters).flatMap(([name, value]) => (Array.isArray(value) ? value.map((one) => [name, one]) : [[name, value]]))
    .filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(kept).toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

function show() {
  const { view, parameters } = place();
  const wanted = parameters.get("index");
  if (wanted && state.indexes.some((one) => one.name === wanted)) state.index = wanted;
  byId("index").value = state.index;
  byId("index").parentElement.hidden = state.indexes.length < 2 || !["codes", "health"].includes(view);
  for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[view]} · Callslip`;
  VIEWS[view].show(parameters);
}

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    const view = ["search", "recommend"].includes(place().view) ? place().view : home();
    if (place().view !== view) location.hash = document.querySelector(`nav a[data-view=${view}]`).getAttribute("href");
    const field = byId(view === "search" ? "query" : "item");
    byId(`view-${view}`).hidden = false; // what is hidden takes no focus
    field.focus();
    field.select();
  }
}

async function start() {
  addEventListener("keydown", keys);
  try {
    state.indexes = (await indexes()).indexes;
  } catch (error) {
    replace(byId("results"), problem(error));
    return;
  }
  state.index = state.indexes[0].name;
  const picker = byId("index");
  replace(picker, state.indexes.map((one) => el("option", { value: one.name }, one.name)));
  picker.addEventListener("change", () => { location.hash = address(place().view, { index: picker.value }); });
  for (const [view, possible] of [["search", texts().length], ["recommend", logs().length], ["codes", state.indexes.some((one) => one.has_codes)]]) {
    document.querySelector(`nav a[data-view=${view}]`).hidden = !possible;
  }
  document.querySelector(".brand").setAttribute("href", address(home(), {}));
  if (texts().length) search.start();
  if (logs().length) recommend.start();
  addEventListener("hashchange", show);
  show();
}

start();

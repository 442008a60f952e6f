// The page: the current view, the current index, and global keyboard shortcuts.

import { indexes, state } from "./api.js";
import { byId, el, problem, replace } from "./dom.js";
import * as explorer from "./explorer.js";
import * as health from "./health.js";
import * as search from "./search.js";

const VIEWS = { search, codes: explorer, health };

// The URL holds the whole state: #/codes?index=demo&prefix=3-1 can be bookmarked, shared and reached with Back.
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: VIEWS[path] ? path : "search", parameters: new URLSearchParams(query || "") };
}

export function address(view, parameters) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(kept).toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

function show() {
  const { view, parameters } = place();
  const wanted = parameters.get("index");
  if (wanted && state.indexes.some((one) => one.name === wanted)) state.index = wanted;
  byId("index").value = state.index;
  byId("index").parentElement.hidden = state.indexes.length < 2 || view === "search";
  for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${{ search: "Search", codes: "Codes", health: "Health" }[view]} · Callslip`;
  VIEWS[view].show(parameters);
}

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (place().view !== "search") location.hash = address("search", { q: byId("query").value });
    byId("query").focus();
    byId("query").select();
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
  search.start();
  addEventListener("hashchange", show);
  show();
}

start();

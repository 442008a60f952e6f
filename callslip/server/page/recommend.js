// Recommendations: pick items, see what comes next, and to which of the items each is due.

import { address, place } from "./app.js";
import { asked, document_, examples, items as listed, logs } from "./api.js";
import { desk } from "./desk.js";
import { byId, el, number, replace } from "./dom.js";

const MOST = 50;
const field = byId("item");
const list = byId("item-list");
const titles = new Map();
let own = null;
let picked = [];
let naming = null;

const title = (id) => titles.get(id) || id;
const short = (text) => (text.length > 40 ? `${text.slice(0, 39).trimEnd()}…` : text);
const keep = () => byId("keep").checked;
const parameters = (items) => ({ item: items, keep: keep() ? "1" : null, where: own ? own.where() : null });

export function start() {
  own = desk("recommend", "next-", {
    indexes: logs(),
    asked: () => (picked.length ? { history: picked, keep_history: keep() } : null),
    parameters: () => parameters(picked),
    take(given) {
      picked = given.getAll("item").filter((id) => id.trim()).slice(-MOST);
      byId("keep").checked = given.get("keep") === "1";
      draw();
      naming = name();
    },
    ready: () => naming,
    words: () => "",
    label: () => picked.map(title).join(", "),
    title,
    offer: (hit) => !picked.includes(hit.doc_id) && el("button", {
      class: "quiet", type: "button", "aria-label": `Add to the history: ${hit.title || hit.doc_id}`, onclick: () => go([...picked, hit.doc_id]),
    }, "Add"),
    met: (hits) => { for (const hit of hits) if (hit.title) titles.set(hit.doc_id, hit.title); },
    welcome,
    things: "items",
    hint: "Choose “Why this?” on a hit, or enter the id of an item that you expected to find.",
    first: "Pick an item first.",
  });
  byId("keep").addEventListener("change", () => go(picked));
  byId("item-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    if (field.value.trim() !== looked) await look(); // typed and entered at once
    choose();
  });
  field.addEventListener("input", (event) => { if (!event.isComposing) soon(120); });
  field.addEventListener("compositionend", () => soon(0));
  field.addEventListener("keydown", keys);
  field.addEventListener("focus", () => { if (field.value.trim()) soon(0); });
  field.addEventListener("blur", () => setTimeout(() => { if (document.activeElement !== field) close(); }, 150));
  byId("view-recommend").addEventListener("keydown", (event) => {
    if (event.target !== field) own.keys(event, field, () => {});
  });
  own.start();
}

export function show(given) {
  // A link to a search for "history: a, b", from before there was this view.
  const { history: old } = asked(given.get("q") || "");
  if (old && old.length) { location.replace(address("recommend", { item: old })); return; }
  own.show(given);
  if (matchMedia("(hover: hover)").matches && !given.has("why")) field.focus();
}

// Every change of the history is a place of its own, so that Back takes it back.
function go(items) {
  const current = place().parameters;
  location.hash = address("recommend", { ...parameters(items), k: current.get("k"), beam: current.get("beam") });
}

// The titles of items that a link brought; those that are not in the index are shown by their ids.
async function name() {
  const unknown = picked.filter((id) => !titles.has(id));
  await Promise.all(unknown.map(async (id) => {
    for (const index of logs()) {
      const found = await document_(index.name, id).catch(() => null);
      if (found) { titles.set(id, found.title || id); return; }
    }
    titles.set(id, `${id} (not in the index)`);
  }));
  if (unknown.length) draw();
}

function draw() {
  byId("picked-none").hidden = picked.length > 0;
  replace(byId("picked"), picked.map((id, number_) => el("li", { "data-id": id },
    el("span", { class: "name", dir: "auto", title: id }, title(id)),
    el("button", {
      class: "cross", type: "button", "aria-label": `Remove ${title(id)}`,
      onclick: () => { go(picked.filter((_, other) => other !== number_)); field.focus(); },
    }, "×"))));
  byId("picked-clear").hidden = picked.length < 2;
  byId("picked-clear").onclick = () => { go([]); field.focus(); };
}

// The list of items to choose from, as in the combobox pattern of ARIA: focus stays in the field.
let asking = 0;
let timer = null;
let choices = [];
let active = -1;
let looked = "";

function soon(wait) {
  clearTimeout(timer);
  timer = setTimeout(look, wait);
}

async function look() {
  const mine = ++asking;
  const wanted = field.value.trim();
  if (!wanted) { close(); return; }
  const told = await listed(logs()[0].name, wanted, 8).catch((error) => ({ documents: [], error }));
  if (mine !== asking || document.activeElement !== field) return;
  looked = wanted;
  choices = told.documents.filter((one) => !picked.includes(one.doc_id));
  for (const one of choices) if (one.title) titles.set(one.doc_id, one.title);
  active = choices.length ? 0 : -1;
  const more = told.total - told.documents.length;
  replace(list, choices.map((one, number_) => el("li", {
    role: "option", id: `choice-${number_}`, "data-id": one.doc_id, onmousedown: (event) => { event.preventDefault(); choose(number_); },
  }, el("span", { class: "name", dir: "auto" }, one.title || one.doc_id), one.title && el("small", {}, one.doc_id))),
  (more > 0 || !choices.length) && el("li", { class: "hint", role: "presentation" },
    told.error ? told.error.message : more > 0 ? `${number(more)} more: type on` : told.complete ? "No other item has this in its title or id." : "None of the first 20,000 items; enter the whole id of another."));
  list.hidden = false;
  field.setAttribute("aria-expanded", "true");
  mark();
}

function mark() {
  [...list.querySelectorAll("[role=option]")].forEach((one, number_) => {
    one.setAttribute("aria-selected", String(number_ === active));
    if (number_ === active) one.scrollIntoView({ block: "nearest" });
  });
  if (active >= 0) field.setAttribute("aria-activedescendant", `choice-${active}`);
  else field.removeAttribute("aria-activedescendant");
}

function close() {
  asking += 1;
  clearTimeout(timer);
  looked = "";
  choices = [];
  active = -1;
  list.hidden = true;
  field.setAttribute("aria-expanded", "false");
  field.removeAttribute("aria-activedescendant");
}

function choose(number_ = active) {
  const one = choices[number_];
  if (!one) return;
  field.value = "";
  close();
  go([...picked, one.doc_id].slice(-MOST));
}

function keys(event) {
  const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (move && choices.length) {
    active = (active + move + choices.length) % choices.length;
    mark();
  } else if (event.key === "Escape") {
    field.value = "";
    close();
  } else if (event.key === "Backspace" && !field.value && picked.length) go(picked.slice(0, -1));
  else if (event.key === "ArrowDown") { own.keys(event, field, () => {}); return; }
  else return;
  event.preventDefault();
}

function welcome() {
  const tries = el("div", { class: "tries" });
  suggest(tries);
  return el("div", { class: "welcome" },
    el("p", { class: "lead" }, "Pick items that somebody had; see what comes next."),
    el("p", {}, "Type a part of a title or id above. The last item counts as the most recent one."),
    el("ul", {}, logs().map((one) => el("li", {}, el("strong", {}, one.name), ` – ${number(one.documents)} items, ${one.method}`))), tries);
}

// Histories from the log, to be clicked.
let suggested = null;
async function suggest(where) {
  suggested = suggested || examples(logs()[0].name).then((told) => told.histories).catch(() => []);
  const histories = await suggested;
  for (const one of histories.flat()) if (one.title) titles.set(one.doc_id, one.title);
  if (histories.length) replace(where, el("p", {}, "Users of the log had, for example:"), el("ul", {}, histories.map((items) =>
    el("li", {}, el("a", { href: address("recommend", parameters(items.map((one) => one.doc_id))), dir: "auto" }, items.map((one) => short(title(one.doc_id))).join(" › "))))));
}

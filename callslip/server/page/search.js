// Search as you type; each hit is shown with its code and the model's probability of every token.

import { address } from "./app.js";
import { asked, examples, logs, texts } from "./api.js";
import { desk } from "./desk.js";
import { byId, el, number, replace } from "./dom.js";

const field = byId("query");
let own = null;
let first = true;

export function start() {
  own = desk("search", "", {
    indexes: texts(),
    asked: () => (field.value.trim() ? asked(field.value) : null),
    parameters: () => ({ q: field.value }),
    take(parameters) {
      // The user may have typed before the page was ready.
      if (parameters.has("q") || !first) field.value = parameters.get("q") || "";
      first = false;
    },
    words: () => field.value,
    label: () => field.value,
    title: (id) => id,
    welcome,
    things: "words",
    hint: "Choose “Why this?” on a hit, or enter the id of a document that you expected to find.",
    first: "Search for something first.",
  });
  field.addEventListener("input", (event) => { if (!event.isComposing) own.later(140); });
  field.addEventListener("compositionend", () => own.later(0));
  byId("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!recommended()) { own.settle(); own.later(0, true); }
  });
  byId("view-search").addEventListener("keydown", (event) => own.keys(event, field, () => { field.value = ""; own.later(0); }));
  own.start();
}

export function show(parameters) {
  own.show(parameters);
  if (parameters.has("q") && recommended()) return;
  if (matchMedia("(hover: hover)").matches && !parameters.has("why")) field.focus();
}

// "history: a, b" is a question for the other desk, if an index reads histories.
function recommended() {
  const { history: items } = asked(field.value);
  if (!items || !items.length || !logs().length) return false;
  location.replace(address("recommend", { item: items }));
  return true;
}

function welcome() {
  const indexes = texts();
  const tries = el("div", { class: "tries" });
  suggest(tries);
  const coded = indexes.some((one) => one.has_codes);
  return el("div", { class: "welcome" },
    el("p", { class: "lead" }, coded ? "Enter a query; the model writes the call slip." : "Enter a query."),
    coded && el("p", {}, "Every document has a short code. For a query, the model writes the matching codes, token by token, "
      + "and the documents with these codes are the hits."),
    el("ul", {}, indexes.map((one) => el("li", {}, el("strong", {}, one.name), ` – ${number(one.documents)} documents, ${one.method}`))), tries);
}

// Queries that the first index can answer, to be clicked.
let suggested = null;
async function suggest(place) {
  suggested = suggested || examples(texts()[0].name).then((told) => told.queries).catch(() => []);
  const queries = await suggested;
  if (queries.length) replace(place, el("p", {}, "For example:"), el("ul", {}, queries.map((query) =>
    el("li", {}, el("a", { href: address("search", { q: query, where: own.where() }), dir: "auto" }, query)))));
}

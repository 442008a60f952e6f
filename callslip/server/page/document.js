// One document: the whole text, its metadata, and the documents whose codes begin like its own.

import { address } from "./app.js";
import { document_, neighbours, state } from "./api.js";
import { last } from "./desk.js";
import { byId, el, excerpt, marked, number, patternOf, problem, replace } from "./dom.js";

const view = byId("view-document");
let now = 0;

export async function show(parameters) {
  const mine = ++now;
  const id = parameters.get("id") || "";
  const index = state.indexes.find((one) => one.name === state.index);
  replace(view, el("p", { class: "hint" }, "Loading …"));
  try {
    const [told, near] = await Promise.all([
      document_(index.name, id), index.has_codes ? neighbours(index.name, id) : null]);
    if (mine !== now) return;
    document.title = `${told.title || told.doc_id} · Callslip`;
    replace(view, head(index, told), facts(told.metadata), text(told), near && beside(index, near));
    scrollTo(0, 0);
  } catch (error) {
    if (mine === now) replace(view, back(), problem(error));
  }
}

export const link = (index, id) => address("document", { id, index: state.indexes.length > 1 ? index : null });

function back() {
  const label = last.label.trim();
  return el("p", { class: "took" }, el("a", { href: last.back }, label ? `‹ Hits for “${label.slice(0, 60)}${label.length > 60 ? "…" : ""}”` : "‹ Back"));
}

function head(index, told) {
  const why = last.why(index.name, told.doc_id);
  const tree = told.code && told.code.slice(0, index.tree ?? told.code.length);
  return el("div", { class: "explorer-head" }, back(),
    el("h1", { dir: "auto" }, told.title || told.doc_id),
    el("p", { class: "line foot" },
      tree && el("a", { class: "code", href: address("codes", { index: index.name, prefix: tree.join("-") }), title: "Show in the code explorer" }, el("span", { class: "token" }, told.code_text)),
      el("span", { class: "id", title: "doc_id" }, told.doc_id),
      index.reads_histories && el("a", { href: address("recommend", { item: told.doc_id }) }, "What comes next?"),
      why && el("a", { href: why }, "Why (not) found?")));
}

const plain = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
const said = (value) => (Array.isArray(value) ? value.map(plain).join(", ") : plain(value));

function facts(metadata) {
  const names = Object.keys(metadata);
  return names.length > 0 && el("dl", { class: "facts metadata" }, names.map((name) => [el("dt", {}, name), el("dd", { dir: "auto" }, said(metadata[name]))]));
}

const text = (told) => el("article", { class: "whole", dir: "auto" }, marked(told.text, patternOf(last.words)));

function beside(index, near) {
  if (!near.neighbours.length) return el("p", { class: "hint" }, "No other document has a code that begins with the same token.");
  return el("section", { class: "bucket" }, el("h2", {}, "Documents with similar codes"),
    el("ul", { class: "documents" }, near.neighbours.map((one) => el("li", { "data-id": one.doc_id },
      el("h3", { dir: "auto" }, el("a", { href: link(index.name, one.doc_id) }, one.title || one.doc_id)),
      el("p", { class: "text", dir: "auto" }, excerpt(one.text, null, 240)),
      el("p", { class: "line foot" }, el("span", { class: "token" }, one.code_text),
        el("span", { class: "id" }, one.shared === near.length ? "the same code" : `${number(one.shared)} of ${number(near.length)} tokens in common`))))));
}

// The code explorer: an icicle plot of the prefix tree. Children are drawn to the right, sized by number of documents.

import { address } from "./app.js";
import { bucket, codes, state, textOf } from "./api.js";
import { last } from "./desk.js";
import { link } from "./document.js";
import { byId, counted, el, excerpt, number, problem, replace, svg } from "./dom.js";

const view = byId("view-codes");
// The largest branches of a node, and as many as the server tells.
const FEW = 64;
const MOST = 256;
// The height of a branch that has a label; every branch has one, however few documents it has.
const LINE = 22;
let now = 0;

export async function show(parameters) {
  const index = state.indexes.find((one) => one.name === state.index);
  if (!index.has_codes) {
    replace(view, el("div", { class: "welcome" }, el("p", { class: "lead" }, "This index has no codes."),
      el("p", {}, `${index.method} finds documents without codes. `, el("a", { href: "#/search" }, "Search it"), " instead.")));
    return;
  }
  if (!index.documents) {
    replace(view, el("div", { class: "welcome" }, el("p", { class: "lead" }, "This index has no documents.")));
    return;
  }
  const mine = ++now;
  const all = parameters.get("all") === "1";
  const text = parameters.get("prefix") || "";
  const prefix = text ? text.split("-").map((part) => (part === "end" ? -1 : Number(part))) : [];
  if (!view.childElementCount) replace(view, el("p", { class: "hint" }, "Loading …"));
  try {
    const whole = prefix.length >= (index.tree ?? index.length) || prefix.at(-1) === -1;
    const node = whole ? null : await codes(index.name, text, all ? MOST : FEW);
    const documents = await bucket(index.name, text, 0);
    if (mine !== now) return;
    draw(index, prefix, node, documents);
  } catch (error) {
    if (mine === now) replace(view, crumbs(index, prefix), problem(error));
  }
}

const noun = (index) => (index.reads_histories ? "item" : "document");
const go = (index, prefix) => { location.hash = address("codes", { index: state.indexes.length > 1 ? index.name : null, prefix: textOf(prefix) }); };

function crumbs(index, prefix) {
  const parts = [el("a", { href: address("codes", { index: index.name }) }, "all")];
  prefix.forEach((token, level) => parts.push(" › ", el("a", {
    href: address("codes", { index: index.name, prefix: textOf(prefix.slice(0, level + 1)) }),
    "aria-current": level === prefix.length - 1 ? "true" : null,
  }, names(index, prefix)[level])));
  return el("nav", { class: "crumbs", "aria-label": "Prefix" }, parts);
}

const spoken = {};
function names(index, prefix) {
  return prefix.map((token, level) => (token < 0 ? "end" : spoken[`${index.name}:${textOf(prefix.slice(0, level + 1))}`] || String(token)));
}

function draw(index, prefix, node, documents) {
  if (node) for (const child of node.children) spoken[`${index.name}:${textOf([...prefix, child.token])}`] = child.name;
  const head = el("div", { class: "explorer-head" }, crumbs(index, prefix),
    el("p", { class: "took" }, counted(documents.total, noun(index)),
      node ? ` · level ${node.level + 1} of ${node.length}` : index.tree ? " · documents that share these tokens; the rest of their codes ranks them" : " · a bucket: documents that share this code",
      node && node.words.length ? ` · ${node.words.join(", ")}` : ""));
  const picture = node && el("div", { class: "picture" });
  replace(view, head, picture,
    node && node.left_out.nodes ? el("p", { class: "hint" }, `${number(node.left_out.nodes)} smaller branches with ${counted(node.left_out.documents, noun(index))} are not drawn. `,
      node.children.length < MOST && el("a", { href: address("codes", { index: index.name, prefix: textOf(prefix), all: "1" }) }, node.left_out.nodes + node.children.length <= MOST ? "Show all" : "Show more")) : null,
    listed(index, prefix, documents, node));
  view.dataset.prefix = textOf(prefix);
  if (node) picture.append(icicle(index, prefix, node, picture.clientWidth || 800));
}

function icicle(index, prefix, node, width) {
  const children = node.children;
  const height = Math.max(360, children.length * (LINE + 5));
  const least = Math.min(LINE, height / children.length);
  const shown = children.reduce((sum, child) => sum + child.documents, 0) || 1;
  const spare = height - least * children.length;
  const deep = children.some((child) => child.children && child.children.length);
  const own = Math.round(width * (deep ? 0.76 : 1));
  let y = 0;
  const groups = children.map((child, number_) => {
    const tall = least + (spare * child.documents) / shown;
    const told = `${child.name}, ${counted(child.documents, noun(index))}${child.words.length ? `: ${child.words.join(", ")}` : ""}`;
    const open = () => go(index, [...prefix, child.token]);
    const group = svg("g", {
      class: `node hue-${Math.abs(child.token) % 8}`, tabindex: number_ ? "-1" : "0", role: "button", "aria-label": told,
      onclick: open, onkeydown: (event) => keys(event, open, index, prefix),
    },
    svg("title", {}, told),
    svg("rect", { x: 1, y: y + 0.5, width: own - 2, height: Math.max(tall - 1, 1), rx: Math.min(4, tall / 3) }));
    group.append(label(child, y + tall / 2, own));
    let below = y;
    for (const one of child.children || []) {
      const part = (tall * one.documents) / child.documents;
      group.append(svg("rect", { class: "deep", x: own + 2, y: below + 0.3, width: width - own - 4, height: Math.max(part - 0.6, 0.4), rx: Math.min(2, part / 3) }));
      if (part >= 14) group.append(svg("text", { class: "deeper", x: own + 8, y: below + part / 2 + 4, "aria-hidden": "true" }, one.name));
      below += part;
    }
    y += tall;
    return group;
  });
  return svg("svg", { class: "icicle", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The prefix tree: arrows move, Enter opens, Backspace goes up" }, groups);
}

function label(child, middle, width) {
  const start = 14 + Math.max(34, 10 * child.name.length);
  const room = Math.floor((width - start - 20 - 8 * number(child.documents).length) / 7.2);
  const words = child.words.join(", ");
  return svg("g", { class: "label", "aria-hidden": "true" },
    svg("text", { class: "token", x: 12, y: middle + 4 }, child.name),
    svg("text", { class: "words", x: start, y: middle + 4 }, words.length > room ? `${words.slice(0, Math.max(0, room - 1))}…` : words),
    svg("text", { class: "count", x: width - 12, y: middle + 4 }, number(child.documents)));
}

function keys(event, open, index, prefix) {
  const nodes = [...view.querySelectorAll("g.node")];
  const at = nodes.indexOf(event.currentTarget);
  const move = { ArrowDown: 1, ArrowUp: -1, Home: -at, End: nodes.length - 1 - at }[event.key];
  if (move !== undefined) {
    const next = nodes[Math.min(Math.max(at + move, 0), nodes.length - 1)];
    nodes.forEach((one) => one.setAttribute("tabindex", one === next ? "0" : "-1"));
    next.focus();
  } else if (event.key === "Enter" || event.key === " " || event.key === "ArrowRight") open();
  else if ((event.key === "Backspace" || event.key === "ArrowLeft" || event.key === "Escape") && prefix.length) go(index, prefix.slice(0, -1));
  else return;
  event.preventDefault();
}

function listed(index, prefix, documents, node) {
  const list = el("ul", { class: "documents" });
  const add = (page) => list.append(...page.documents.map((one) => item(index, one)));
  add(documents);
  const more = documents.total > documents.documents.length && el("button", {
    class: "quiet", type: "button",
    onclick: async (event) => {
      const page = await bucket(index.name, textOf(prefix), list.childElementCount).catch(() => ({ documents: [] }));
      add(page);
      if (!page.documents.length || list.childElementCount >= documents.total) event.target?.remove();
    },
  }, "More");
  const title = node ? (prefix.length ? "Documents below this node" : "Documents, in order of code") : "Documents in this bucket";
  return el(node ? "details" : "div", { class: "bucket" }, node ? el("summary", {}, title) : el("h2", {}, title), list, more);
}

function item(index, one) {
  const why = last.why(index.name, one.doc_id);
  return el("li", {},
    el("h3", { dir: "auto" }, el("a", { href: link(index.name, one.doc_id) }, one.title || one.doc_id)),
    el("p", { class: "text", dir: "auto" }, excerpt(one.text, null, 240)),
    el("p", { class: "line foot" }, el("span", { class: "code" }, el("span", { class: "token" }, one.code_text)), el("span", { class: "id" }, one.doc_id),
      why && el("a", { href: why }, `Why (not) for “${last.label.slice(0, 40)}${last.label.length > 40 ? "…" : ""}”?`)));
}

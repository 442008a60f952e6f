// The state of an index: diagnosis, metrics, and plots drawn by the server.

import { health, state } from "./api.js";
import { byId, drawing, el, number, problem, replace } from "./dom.js";

const view = byId("view-health");
let now = 0;

export async function show() {
  const mine = ++now;
  replace(view, el("p", { class: "hint" }, "Measuring …"));
  try {
    const told = await health(state.index);
    if (mine === now) draw(told);
  } catch (error) {
    if (mine === now) replace(view, problem(error));
  }
}

function draw({ facts, verdict, findings, figures, plots, epochs }) {
  const tiles = [
    ["documents", number(facts.documents)],
    ["method", facts.method],
    figures && ["codes", number(figures.unique)],
    figures && ["share a code", `${(100 * figures.collision_rate).toFixed(1)} %`],
    figures && ["largest bucket", number(figures.bucket_max)],
    ["trained in", facts.fit_seconds >= 90 ? `${(facts.fit_seconds / 60).toFixed(1)} min` : `${facts.fit_seconds.toFixed(0)} s`],
    ["generation", `${facts.generation}, version ${facts.version}`],
  ].filter(Boolean);
  replace(view,
    el("div", { class: "explorer-head" },
      el("h1", {}, facts.name, verdict && el("span", { class: `badge ${verdict}` }, verdict)),
      el("p", { class: "took" }, facts.corpus ? `fitted on ${number(facts.trained_on)} documents of ${facts.corpus}` : "")),
    el("dl", { class: "tiles" }, tiles.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    !figures && el("p", { class: "hint" }, facts.has_codes ? "This index has no documents." : `${facts.method} does not use codes: there is nothing to examine.`),
    figures && findings.length === 0 && el("p", { class: "verdict good" }, "No problems found."),
    findings.length > 0 && el("ul", { class: "findings" }, findings.map((one) =>
      el("li", { class: one.severity }, el("strong", {}, one.problem), el("p", {}, one.remedy)))),
    el("div", { class: "plots" }, plots.map((plot) => el("figure", {}, el("figcaption", {}, plot.title), drawing(plot.svg)))),
    figures && levels(figures, facts.tree ?? figures.levels.length),
    epochs === 0 && el("p", { class: "hint after" }, "No training log was saved with this index."));
}

// As in `callslip inspect`: the levels that form the tree. On a phone, each row becomes a card.
function levels(figures, tree) {
  const columns = [["level", (l) => l.level + 1], ["tokens", (l) => number(l.width)], ["used", (l) => number(l.used)], ["dead", (l) => number(l.dead)],
    ["perplexity", (l) => l.perplexity.toFixed(1)], ["Gini", (l) => l.gini.toFixed(3)], ["diversity", (l) => l.diversity.toFixed(3)]];
  const rest = figures.levels.length - tree;
  return el("div", { class: "table" }, el("table", { class: "stacked" },
    el("caption", { class: rest > 0 ? null : "unseen" }, rest > 0 ? `Use of tokens. ${tree === 1 ? "Level 1 is the tree" : `Levels 1 to ${tree} are the tree`}; the other ${rest} rank inside.` : "Use of tokens by level"),
    el("thead", {}, el("tr", {}, columns.map(([name]) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, figures.levels.slice(0, tree).map((level) => el("tr", {}, columns.map(([name, value]) => el("td", { "data-name": name }, value(level))))))));
}

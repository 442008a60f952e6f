// Hits, and the explanation of one: drawn alike for searches and recommendations.

import { address } from "./app.js";
import { state } from "./api.js";
import { link } from "./document.js";
import { counted, el, excerpt, marked, number, percent, problem } from "./dom.js";

const UNSURE = "Nothing in this index seems to answer this. The nearest documents:";

// The hits of one index, or what went wrong. `about` has the words to mark, titles of items, and what a card offers.
export function column(index, answer, several, about) {
  const head = (several || answer instanceof Error) && el("h2", {}, index.name, el("small", {}, ` ${index.method}`));
  if (answer instanceof Error) return el("section", { class: "column" }, head, problem(answer));
  const { hits, unsure } = answer.results[0];
  const line = el("p", { class: "took" }, several ? `${index.method} · ` : `${index.name} · ${index.method} · `,
    `${counted(index.documents, index.reads_histories ? "item" : "document")} · ${Math.max(1, Math.round(1000 * answer.seconds))} ms`,
    hits.length > 1 && " · % of the first hit’s score");
  const list = hits.length
    ? el("ol", { class: "hits" }, hits.map((hit) => card(index, hit, relative(hit.score, hits[0].score), about)))
    : el("p", { class: "nothing" }, index.documents ? `Nothing found. ${about.advice}` : "This index has no documents.");
  return el("section", { class: "column", "aria-label": `Hits of ${index.name}` }, several && el("h2", {}, index.name), line,
    unsure === true && hits.length > 0 && el("p", { class: "unsure", role: "note" }, UNSURE), list);
}

// What a screen reader is told when hits arrive.
export function told(answer) {
  if (answer instanceof Error) return "The search failed";
  const { hits, unsure } = answer.results[0];
  return `${unsure === true && hits.length ? `${UNSURE} ` : ""}${counted(hits.length, "hit")}`;
}

// A score as a part of the first hit's. Scores below zero are log-probabilities.
function relative(score, best) {
  if (best > 0) return Math.max(0, score / best);
  return Math.exp(score - best);
}

function card(index, hit, part, about) {
  const title = hit.title || hit.doc_id;
  const score = `${percent(part)} of the first hit's score; score ${hit.score.toFixed(4)}`;
  return el("li", { class: "hit", tabindex: "0", "data-id": hit.doc_id, "data-index": index.name },
    el("div", { class: "line" },
      el("span", { class: "rank" }, hit.rank),
      el("h3", { dir: "auto" }, el("a", { href: link(index.name, hit.doc_id) }, marked(title, about.pattern))),
      el("span", { class: "score", role: "img", title: score, "aria-label": score },
        el("span", { class: "meter", "aria-hidden": "true" }, el("span", { vars: { width: `${Math.min(100, 100 * part)}%` } })), percent(part))),
    el("p", { class: "text", dir: "auto" }, marked(excerpt(hit.text, about.pattern), about.pattern)),
    reasons(hit.why, about),
    el("div", { class: "line foot" }, code(index, hit),
      el("span", { class: "id", title: "doc_id" }, hit.doc_id),
      el("span", { class: "acts" }, about.offer && about.offer(hit),
        el("button", { class: "quiet", type: "button", "aria-label": `Why this? ${title}`, onclick: () => about.why(index.name, hit.doc_id) }, "Why this?"))));
}

// The items of the history to which a recommendation is due, those with the largest part first.
function parts(why) {
  const found = Object.entries((why && why.because) || {}).sort((one, other) => other[1] - one[1]);
  const total = found.reduce((sum, [, part]) => sum + part, 0) || 1;
  return found.map(([id, part]) => [id, part / total]);
}

function reasons(why, about) {
  const all = parts(why);
  if (!all.length) return null;
  const named = all.slice(0, 3).map(([id]) => el("span", { class: "item", dir: "auto" }, about.title(id)));
  const rest = all.length - named.length;
  return el("p", { class: "because" }, "Because of ", named.map((one, at) => [at ? (at === named.length - 1 && !rest ? " and " : ", ") : "", one]),
    rest > 0 && ` and ${number(rest)} more`);
}

// A code as chips, each with a bar for the model's probability.
function code(index, hit) {
  if (!hit.code || !hit.code.length) return null;
  const names = index.words ? hit.code_text.split("-") : hit.code.map(String);
  const levels = (hit.why && hit.why.level_scores) || [];
  const tree = hit.code.slice(0, index.tree ?? hit.code.length);
  return el("a", { class: "code", href: address("codes", { index: index.name, prefix: tree.join("-") }), title: "Show in the code explorer", "aria-label": `Code ${hit.code_text}: show in the code explorer` },
    tree.slice(0, 16).map((token, level) => {
      const p = levels[level] === undefined ? null : Math.min(1, Math.exp(levels[level]));
      const said = `level ${level + 1}: ${names[level] ?? token}${p === null ? "" : `, probability ${percent(p)}`}`;
      return el("span", { class: "token", title: said }, names[level] ?? token,
        p !== null && el("span", { class: "sure", "aria-hidden": "true" }, el("span", { vars: { width: `${Math.max(3, 100 * p)}%` } })));
    }),
    tree.length < hit.code.length && el("span", { class: "token", title: `${hit.code.length - tree.length} more tokens rank inside` }, "…"));
}

const fixed = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));

export function explained(answer, query, about) {
  const known = state.indexes.find((one) => one.name === answer.index);
  const why = answer.why || {};
  const facts = [
    ["rank", answer.rank === null ? "–" : answer.rank],
    ["score", fixed(answer.score)],
    ["score of the last hit", fixed(answer.last_score)],
    ...shares(why),
    ["similarity", why.similarity !== undefined ? fixed(why.similarity) : null],
    ["similarity of the nearest segment", why.segment_similarity !== undefined ? fixed(why.segment_similarity) : null],
    ["words in common (BM25)", why.bm25 !== undefined ? fixed(why.bm25, 2) : null],
    ["found by this earlier question", why.earlier_query ? `${why.earlier_query} (similarity ${fixed(why.earlier_similarity)})` : null],
    ["rank of the code", why.beam_rank || null],
    ["occurs in the log", why.count ? `${number(why.count)} times` : null],
    ...Object.entries(why.ranks || {}).map(([part, rank]) => [`rank in ${part}`, rank]),
    ...Object.entries(why.shares || {}).map(([part, share]) => [`share of ${part}`, share.toFixed(4)]),
  ].filter(([, value]) => value !== null);
  const items = parts(why);
  return el("div", { class: "explained", "data-query": query, "data-id": answer.doc_id },
    el("h3", { dir: "auto" }, answer.title || answer.doc_id),
    el("p", { class: answer.found ? "verdict good" : "verdict bad" }, answer.verdict),
    el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    items.length > 0 && el("div", { class: "items" }, el("h4", {}, "Because of these items"), el("ol", { class: "levels" }, items.map(([id, part]) =>
      bar(el("span", { class: "name", dir: "auto" }, about.title(id)), part, el("small", {}, id))))),
    answer.levels.length > 0 && levels(answer),
    !answer.levels.length && !items.length && known && el("p", { class: "hint" }, known.has_codes ? "This search did not write the code level by level." : "This index has no codes."),
    Array.isArray(why.words) && el("table", { class: "words" },
      el("thead", {}, el("tr", {}, ["word", "query", "document"].map((one) => el("th", { scope: "col" }, one)))),
      el("tbody", {}, why.words.map((word) => el("tr", {}, [word.word, word.query.toFixed(2), word.document.toFixed(2)].map((one) => el("td", {}, one)))))));
}

// How much each source contributes to the score, where the method tells.
function shares(why) {
  const names = ["meaning", "codes", "words", "memory", "reranker"].filter((name) => typeof why[name] === "number");
  if (!names.includes("memory")) return [];
  const total = names.reduce((sum, name) => sum + Math.max(0, why[name]), 0) || 1;
  return names.map((name) => [`from ${name}`, `${why[name].toFixed(3)} (${percent(Math.max(0, why[name]) / total)})`]);
}

function bar(name, part, note, kind) {
  if (part === null) return el("li", { class: `plain ${kind}` }, name, note);
  return el("li", { class: kind }, name,
    el("span", { class: "track", "aria-hidden": "true" }, el("span", { vars: { width: `${Math.max(1, 100 * part)}%` } })),
    el("span", { class: "p" }, percent(part)), note);
}

function levels(answer) {
  return el("ol", { class: "levels" }, answer.levels.map((level) => {
    const gone = answer.fell_at !== null && level.level >= answer.fell_at;
    const kept = level.kept === null ? "" : level.kept ? `kept, rank ${level.place} of ${level.beams}` : `lost: ${level.beams} others scored higher`;
    const note = [(level.words || []).join(", "), kept].filter(Boolean).join(" · ");
    return bar(el("span", { class: "token" }, level.name), level.probability, note && el("small", {}, note), gone ? "lost" : "kept");
  }));
}

// Search as you type; each hit is shown with its code and the model's probability of every token.

import { address } from "./app.js";
import { explain, search, state } from "./api.js";
import { byId, el, excerpt, marked, number, patternOf, percent, problem, replace } from "./dom.js";

let running = null;
let timer = null;
let shown = "";

export function start() {
  const beams = [...new Set([...state.indexes.map((one) => one.beam).filter(Boolean)])];
  const choices = [1, 5, 10, 20, 50, 100];
  replace(byId("beam"), el("option", { value: "" }, beams.length ? `default (${beams.join(", ")})` : "default"),
    choices.map((beam) => el("option", { value: beam }, beam)));
  byId("beam-label").hidden = !beams.length || state.indexes.some((one) => !one.beam);
  byId("query").addEventListener("input", (event) => { if (!event.isComposing) later(140); });
  byId("query").addEventListener("compositionend", () => later(0));
  byId("search-form").addEventListener("submit", (event) => { event.preventDefault(); later(0); });
  byId("k").addEventListener("change", () => later(0, true));
  byId("beam").addEventListener("change", () => later(0, true));
  byId("why-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = byId("why-id").value;
    if (id.trim()) why(state.index, id);
  });
  byId("view-search").addEventListener("keydown", keys);
  if (!state.indexes.length) return;
  welcome();
}

export function show(parameters) {
  // Without a query in the URL, keep the text of the field: the user may have typed before the page was ready.
  if (parameters.has("q")) byId("query").value = parameters.get("q");
  const query = byId("query").value;
  if (query !== shown) later(0);
  const id = parameters.get("why");
  if (id) {
    byId("why-id").value = id;
    if (query.trim()) why(state.index, id);
  }
  if (matchMedia("(hover: hover)").matches) byId("query").focus();
}

function later(wait, again = false) {
  clearTimeout(timer);
  timer = setTimeout(() => run(again), wait);
}

function settings() {
  const beam = byId("beam-label").hidden ? "" : byId("beam").value;
  return [Number(byId("k").value), beam ? Number(beam) : null];
}

async function run(again) {
  const query = byId("query").value;
  if (query === shown && !again) return;
  shown = query;
  if (running) running.abort();
  history.replaceState(null, "", address("search", { q: query }));
  if (!query.trim()) { welcome(); return; }
  const mine = running = new AbortController();
  byId("busy").classList.add("on");
  const [k, beam] = settings();
  const lists = await Promise.all(state.indexes.map((index) =>
    search(index.name, query, k, beam, mine.signal).catch((error) => error)));
  if (mine.signal.aborted) return;
  byId("busy").classList.remove("on");
  const pattern = patternOf(query);
  byId("results").classList.toggle("several", lists.length > 1);
  document.querySelector(".desk").classList.toggle("several", lists.length > 1);
  replace(byId("results"), lists.map((answer, place) => column(state.indexes[place], answer, pattern, lists.length > 1)));
  byId("results").dataset.query = query;
  const first = lists[0];
  byId("status").textContent = first.results ? `${first.results[0].hits.length} hits` : "The search failed";
}

function welcome() {
  byId("busy").classList.remove("on");
  byId("results").classList.remove("several");
  const told = state.indexes.map((one) => el("li", {}, el("strong", {}, one.name), ` – ${number(one.documents)} documents, ${one.method}`));
  replace(byId("results"), el("div", { class: "welcome" },
    el("p", { class: "lead" }, "Enter a query; the model writes the call slip."),
    el("p", {}, "Every document has a short code. For a query, the model writes the matching codes, token by token, "
      + "and the documents with these codes are the hits."),
    el("ul", {}, told),
    state.indexes.some((one) => one.reads_histories) && el("p", { class: "hint" }, "An index on this server also reads histories: enter ",
      el("code", {}, "history: id, id, …"), ", oldest item first.")));
}

function column(index, answer, pattern, several) {
  const head = (several || answer instanceof Error) && el("h2", {}, index.name, el("small", {}, ` ${index.method}`));
  if (answer instanceof Error) return el("section", { class: "column" }, head, problem(answer));
  const { hits } = answer.results[0];
  const line = el("p", { class: "took" }, several ? `${index.method} · ` : `${index.name} · ${index.method} · `,
    `${number(index.documents)} documents · ${Math.max(1, Math.round(1000 * answer.seconds))} ms`);
  const list = hits.length
    ? el("ol", { class: "hits" }, hits.map((hit) => card(index, hit, pattern)))
    : el("p", { class: "nothing" }, "Nothing found. ", el("span", {}, "Try other words."));
  return el("section", { class: "column", "aria-label": `Hits of ${index.name}` }, several && el("h2", {}, index.name), line, list);
}

function card(index, hit, pattern) {
  const title = hit.title || hit.doc_id;
  return el("li", { class: "hit", tabindex: "0", "data-id": hit.doc_id, "data-index": index.name },
    el("div", { class: "line" },
      el("span", { class: "rank" }, hit.rank), el("h3", { dir: "auto" }, marked(title, pattern)),
      el("span", { class: "score", title: "score" }, hit.score.toFixed(2))),
    el("p", { class: "text", dir: "auto" }, marked(excerpt(hit.text, pattern), pattern)),
    el("div", { class: "line foot" }, code(index, hit),
      el("span", { class: "id", title: "doc_id" }, hit.doc_id),
      el("button", { class: "quiet", type: "button", onclick: () => why(index.name, hit.doc_id) }, "Why this?")));
}

// A code as chips, each with a bar for the model's probability.
function code(index, hit) {
  if (!hit.code || !hit.code.length) return el("span", { class: "code none" }, "no code");
  const names = index.words ? hit.code_text.split("-") : hit.code.map(String);
  const levels = (hit.why && hit.why.level_scores) || [];
  const tree = hit.code.slice(0, index.tree ?? hit.code.length);
  return el("a", { class: "code", href: address("codes", { index: index.name, prefix: tree.join("-") }), title: "Show in the code explorer" },
    tree.slice(0, 16).map((token, level) => {
      const p = levels[level] === undefined ? null : Math.min(1, Math.exp(levels[level]));
      const told = `level ${level + 1}: ${names[level] ?? token}${p === null ? "" : `, probability ${percent(p)}`}`;
      return el("span", { class: "token", title: told }, names[level] ?? token,
        p !== null && el("span", { class: "sure", "aria-hidden": "true" }, el("span", { vars: { width: `${Math.max(3, 100 * p)}%` } })));
    }),
    tree.length < hit.code.length && el("span", { class: "token", title: `${hit.code.length - tree.length} more tokens rank inside` }, "…"));
}

async function why(index, id) {
  const query = byId("query").value;
  byId("why-id").value = id;
  let place = byId("why-answer");
  for (const hit of document.querySelectorAll(".hit")) {
    const chosen = hit.dataset.id === id && hit.dataset.index === index;
    hit.classList.toggle("chosen", chosen);
    hit.querySelector(".here")?.remove();
    // Beside the list if there is room, otherwise inside the hit.
    if (chosen && getComputedStyle(byId("why")).position !== "sticky") hit.append(place = el("div", { class: "here" }));
  }
  if (!query.trim()) { replace(place, el("p", { class: "hint" }, "Search for something first.")); return; }
  replace(place, el("p", { class: "hint" }, "Running the model again …"));
  try {
    const [k, beam] = settings();
    replace(place, explained(await explain(index, query, id, k, beam)));
  } catch (error) {
    replace(place, problem(error));
  }
  const { top, bottom } = place.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) place.scrollIntoView({ behavior: "smooth", block: "nearest" });
}

function explained(told) {
  const known = state.indexes.find((one) => one.name === told.index);
  const facts = [
    ["rank", told.rank === null ? "–" : told.rank],
    ["score", told.score === null || told.score === undefined ? "–" : told.score.toFixed(3)],
    ["score of the last hit", told.last_score === null || told.last_score === undefined ? "–" : told.last_score.toFixed(3)],
    ...shares(told.why),
    ["similarity", told.why && told.why.similarity !== undefined ? told.why.similarity.toFixed(3) : null],
    ["words in common (BM25)", told.why && told.why.bm25 !== undefined ? told.why.bm25.toFixed(2) : null],
    ["found by this earlier question", told.why && told.why.earlier_query ? `${told.why.earlier_query} (similarity ${told.why.earlier_similarity.toFixed(3)})` : null],
    ["rank of the code", told.why && told.why.beam_rank ? told.why.beam_rank : null],
    ...Object.entries((told.why && told.why.ranks) || {}).map(([part, rank]) => [`rank in ${part}`, rank]),
    ...Object.entries((told.why && told.why.shares) || {}).map(([part, share]) => [`share of ${part}`, share.toFixed(4)]),
  ].filter(([, value]) => value !== null);
  return el("div", { class: "explained" },
    el("h3", { dir: "auto" }, told.title || told.doc_id),
    el("p", { class: told.found ? "verdict good" : "verdict bad" }, told.verdict),
    el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    told.levels.length ? levels(told) : el("p", { class: "hint" }, known && known.has_codes ? "This search did not write the code level by level." : "This index has no codes."),
    told.why && Array.isArray(told.why.words) && el("table", { class: "words" },
      el("thead", {}, el("tr", {}, ["word", "query", "document"].map((one) => el("th", { scope: "col" }, one)))),
      el("tbody", {}, told.why.words.map((word) => el("tr", {}, [word.word, word.query.toFixed(2), word.document.toFixed(2)].map((one) => el("td", {}, one)))))));
}

// How much meaning, words and memory contribute to the score, where the method tells.
function shares(why) {
  if (!why || why.memory === undefined) return [];
  const names = ["meaning", "words", "memory"];
  const total = names.reduce((sum, name) => sum + Math.max(0, why[name]), 0) || 1;
  return names.map((name) => [`from ${name}`, `${why[name].toFixed(3)} (${percent(Math.max(0, why[name]) / total)})`]);
}

function levels(told) {
  return el("ol", { class: "levels" }, told.levels.map((level) => {
    const gone = told.fell_at !== null && level.level >= told.fell_at;
    const kept = level.kept === null ? "" : level.kept ? `kept, rank ${level.place} of ${level.beams}` : `lost: ${level.beams} others scored higher`;
    return el("li", { class: gone ? "lost" : "kept" },
      el("span", { class: "token" }, level.name),
      el("span", { class: "track", "aria-hidden": "true" }, el("span", { vars: { width: `${level.probability === null ? 0 : Math.max(1, 100 * level.probability)}%` } })),
      el("span", { class: "p" }, level.probability === null ? "" : percent(level.probability)),
      el("small", {}, level.words && level.words.length ? `${level.words.join(", ")} · ` : "", kept));
  }));
}

function keys(event) {
  const hits = [...document.querySelectorAll(".hit")];
  const at = hits.indexOf(document.activeElement);
  const typing = event.target === byId("query");
  if (event.key === "ArrowDown" && (typing || at >= 0)) {
    event.preventDefault();
    hits[Math.min(at + 1, hits.length - 1)]?.focus();
  } else if (event.key === "ArrowUp" && at >= 0) {
    event.preventDefault();
    (at ? hits[at - 1] : byId("query")).focus();
  } else if (event.key === "Enter" && at >= 0) {
    event.preventDefault();
    why(hits[at].dataset.index, hits[at].dataset.id);
  } else if (event.key === "Escape") {
    event.preventDefault();
    if (typing) { byId("query").value = ""; later(0); } else byId("query").focus();
  }
}

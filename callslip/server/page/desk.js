// A desk: what is asked, its filters, the hits, and the explanation of one of them. Search and recommendations each
// have one. The URL holds all of it, so that a reload, a link and the Back button lead to the same hits.

import { address, place } from "./app.js";
import { explain, recount, search, state } from "./api.js";
import { byId, el, patternOf, problem, replace } from "./dom.js";
import { filters } from "./facets.js";
import { column, explained, told } from "./hits.js";

const HITS = "10";

// The desk that was used last, for links back to it from other views.
export const last = { label: "", words: "", back: "#/search", why: () => null };

// `own` says what is asked: `asked()` is the body of the request or null, `take(parameters)` and `parameters()` read
// and write the URL, `words()` are to be marked in texts, `title(id)` names an item once `ready()` is, `offer(hit)` is
// what else a card offers, `welcome()` fills an empty desk.
export function desk(view, prefix, own) {
  const at = (id) => byId(prefix + id);
  const indexes = own.indexes;
  const hint = () => replace(at("why-answer"), el("p", { class: "hint" }, own.hint));
  let running = null;
  let timer = null;
  let shown = null;
  // The document that the panel explains; it stays when the query changes.
  let chosen = null;
  let telling = 0;
  // Whether the query in the URL was worth keeping: then the next one is a new entry of the browser's history.
  let settled = false;
  const chosenFilters = filters(at("facets"), at("active"), indexes, () => { settled = true; later(0); });

  function start() {
    const beams = [...new Set(indexes.map((one) => one.beam).filter(Boolean))];
    replace(at("beam"), el("option", { value: "" }, beams.length ? `default (${beams.join(", ")})` : "default"),
      [1, 5, 10, 20, 50, 100].map((beam) => el("option", { value: beam }, beam)));
    at("beam-label").hidden = !beams.length || indexes.some((one) => !one.beam);
    at("k").addEventListener("change", () => later(0));
    at("beam").addEventListener("change", () => later(0));
    at("why-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const id = at("why-id").value;
      if (id.trim()) why(chosen && chosen.id === id ? chosen.index : home(), id);
    });
    hint();
    chosenFilters.start();
  }

  const home = () => (indexes.some((one) => one.name === state.index) ? state.index : indexes[0].name);

  function settings() {
    const beam = at("beam-label").hidden ? "" : at("beam").value;
    return [Number(at("k").value), beam ? Number(beam) : null];
  }

  const key = () => JSON.stringify([own.asked(), ...settings(), chosenFilters.filter()]);

  function parameters() {
    const [k, beam] = settings();
    return {
      ...own.parameters(), where: chosenFilters.text(), k: String(k) === HITS ? null : k, beam,
      why: chosen && chosen.id, index: chosen && indexes.length > 1 ? chosen.index : null,
    };
  }

  function write() {
    const held = parameters();
    const to = address(view, held);
    if (place().view === view && to !== location.hash) {
      history[settled ? "pushState" : "replaceState"](null, "", to);
      settled = false;
    }
    document.querySelector(`nav a[data-view=${view}]`).setAttribute("href", to);
    Object.assign(last, {
      label: own.label(), words: own.words(), back: to,
      why: (index, id) => (own.asked() && indexes.some((one) => one.name === index) ? address(view, { ...held, why: id, index }) : null),
    });
  }

  function select(id, value, otherwise) {
    const known = [...at(id).options].some((option) => option.value === value);
    at(id).value = known ? value : otherwise;
  }

  function show(given) {
    own.take(given);
    chosenFilters.take(given.get("where"));
    select("k", given.get("k"), HITS);
    select("beam", given.get("beam"), "");
    const id = given.get("why");
    const index = indexes.some((one) => one.name === given.get("index")) ? given.get("index") : home();
    const other = id ? !chosen || chosen.id !== id || chosen.index !== index : chosen !== null;
    if (other) forget();
    if (id) at("why-id").value = id;
    if (own.asked() && id && other) why(index, id);
    if (key() !== shown) later(0);
    else write();
  }

  function later(wait, force = false) {
    clearTimeout(timer);
    timer = setTimeout(() => run(force), wait);
  }

  async function run(force) {
    const now = key();
    if (now === shown && !force) return;
    shown = now;
    if (running) running.abort();
    const body = own.asked();
    const mine = running = new AbortController();
    // What the panel says is about the query before this one.
    telling += 1;
    if (!body) forget();
    if (chosen) replace(at("why-answer"), el("p", { class: "hint" }, "…"));
    write();
    at("busy").classList.toggle("on", Boolean(body));
    if (!body) { welcome(); return; }
    const [k, beam] = settings();
    const lists = await Promise.all(indexes.map((index) =>
      search(index.name, body, k, beam, chosenFilters.filter(), mine.signal).catch((error) => error)));
    await Promise.all([recount(), own.ready?.()]); // after the search, which sees the changes of other processes
    if (mine.signal.aborted) return;
    at("busy").classList.remove("on");
    several(lists.length > 1);
    const about = { pattern: patternOf(own.words()), title: own.title, offer: own.offer, why, advice: `Try other ${own.things}${chosenFilters.filter() ? ", or fewer filters" : ""}.` };
    for (const list of lists) if (list.results) own.met?.(list.results[0].hits);
    replace(at("results"), lists.map((answer, number_) => column(indexes[number_], answer, lists.length > 1, about)));
    at("results").dataset.query = own.label();
    at("status").textContent = lists.map((answer, number_) => `${lists.length > 1 ? `${indexes[number_].name}: ` : ""}${told(answer)}`).join(". ");
    if (chosen) why(chosen.index, chosen.id, mine.signal);
  }

  function several(whether) {
    at("results").classList.toggle("several", whether);
    at("results").parentElement.classList.toggle("several", whether);
  }

  function welcome() {
    several(false);
    delete at("results").dataset.query;
    at("status").textContent = "";
    replace(at("results"), own.welcome());
  }

  function forget() {
    telling += 1;
    chosen = null;
    at("why-id").value = "";
    for (const hit of at("results").querySelectorAll(".hit")) {
      hit.classList.remove("chosen");
      hit.querySelector(".here")?.remove();
    }
    hint();
  }

  // With a signal, this follows a search of its own: nothing is scrolled to, since nobody asked for it just now.
  async function why(index, id, signal) {
    const mine = ++telling;
    chosen = { index, id };
    at("why-id").value = id;
    let where = at("why-answer");
    hint();
    for (const hit of at("results").querySelectorAll(".hit")) {
      const mineToo = hit.dataset.id === id && hit.dataset.index === index;
      hit.classList.toggle("chosen", mineToo);
      hit.querySelector(".here")?.remove();
      // Beside the list if there is room, otherwise inside the hit.
      if (mineToo && getComputedStyle(at("why")).position !== "sticky") hit.append(where = el("div", { class: "here", "aria-live": "polite" }));
    }
    const body = own.asked();
    if (!body) { replace(where, el("p", { class: "hint" }, own.first)); return; }
    if (!signal) write();
    settled = true;
    const query = own.label();
    replace(where, el("p", { class: "hint" }, "Running the model again …"));
    try {
      const [k, beam] = settings();
      const answer = await explain(index, body, id, k, beam, chosenFilters.filter(), signal);
      if (mine === telling) replace(where, explained(answer, query, { title: own.title }));
    } catch (error) {
      if (mine !== telling || error.name === "AbortError") return;
      replace(where, problem(error));
    }
    if (signal || mine !== telling) return;
    const { top } = where.getBoundingClientRect();
    if (top < 0 || top > innerHeight - 120) where.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  // Arrows move through the hits, Enter explains; `field` is what one types into.
  function keys(event, field, clear) {
    const hits = [...at("results").querySelectorAll(".hit")];
    const number_ = hits.indexOf(document.activeElement);
    const typing = event.target === field;
    if (event.key === "ArrowDown" && (typing || number_ >= 0)) hits[Math.min(number_ + 1, hits.length - 1)]?.focus();
    else if (event.key === "ArrowUp" && number_ >= 0) (number_ ? hits[number_ - 1] : field).focus();
    else if (event.key === "Enter" && number_ >= 0) why(hits[number_].dataset.index, hits[number_].dataset.id);
    else if (event.key === "Escape") { if (typing) clear(); else field.focus(); }
    else return;
    event.preventDefault();
  }

  return { start, show, later, keys, settle: () => { settled = true; }, where: chosenFilters.text };
}

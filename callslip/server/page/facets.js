// Filters: metadata fields with few values, as buttons with counts. Values of one field are alternatives. The chosen
// ones stand beside them as buttons of their own, in sight and to be taken away, whether the list is open or not.

import { facets } from "./api.js";
import { el, number, replace } from "./dom.js";

// With several indexes, the counts of a value are added up.
function merged(all) {
  const fields = new Map();
  for (const { field, values } of all) {
    const held = fields.get(field) || fields.set(field, new Map()).get(field);
    for (const { value, documents } of values) held.set(JSON.stringify(value), (held.get(JSON.stringify(value)) || 0) + documents);
  }
  return [...fields].map(([field, values]) => ({ field, values: [...values].map(([value, documents]) => ({ value: JSON.parse(value), documents })) }));
}

// The filters of one view: `place` holds the values to choose from, `active` those that were chosen.
export function filters(place, active, indexes, changed) {
  let known = [];
  let chosen = {};

  async function start() {
    const lists = await Promise.all(indexes.map((one) => facets(one.name).catch(() => ({ facets: [] }))));
    known = merged(lists.flatMap((list) => list.facets));
    draw();
  }

  const filter = () => (Object.keys(chosen).length ? { where: chosen } : null);
  const text = () => (Object.keys(chosen).length ? JSON.stringify(chosen) : "");
  const pressed = (field, value) => Object.hasOwn(chosen, field) && chosen[field].includes(value);

  // From the URL, which anybody may have written: only lists of plain values are taken.
  function take(given) {
    let read = {};
    try { read = JSON.parse(given || "{}"); } catch { /* a broken link has no filters */ }
    const plain = (value) => ["string", "number", "boolean"].includes(typeof value);
    const kept = Object.entries(Object(read)).filter(([, values]) => Array.isArray(values) && values.length && values.every(plain));
    chosen = Object.fromEntries(kept);
    draw();
  }

  function toggle(field, value) {
    const held = Object.hasOwn(chosen, field) ? chosen[field] : [];
    const next = held.includes(value) ? held.filter((one) => one !== value) : [...held, value];
    chosen = Object.fromEntries([...Object.entries(chosen).filter(([name]) => name !== field), ...(next.length ? [[field, next]] : [])]);
    draw();
    changed();
  }

  function clear() {
    chosen = {};
    draw();
    place.querySelector("summary")?.focus();
    changed();
  }

  function draw() {
    place.hidden = !known.length;
    const focused = document.activeElement?.dataset?.facet;
    replace(place, el("summary", {}, `Filter by ${known.map((one) => one.field).join(", ")}`),
      known.map(({ field, values }) => el("div", { class: "facet", role: "group", "aria-label": field }, el("span", { class: "field" }, field),
        values.map(({ value, documents }) => el("button", {
          class: "value", type: "button", "data-facet": JSON.stringify([field, value]),
          "aria-pressed": String(pressed(field, value)), onclick: () => toggle(field, value),
        }, String(value), el("small", {}, number(documents)))))));
    // Also those of a link on fields that are no facets.
    const all = Object.entries(chosen).flatMap(([field, values]) => values.map((value) => [field, value]));
    active.hidden = !all.length;
    replace(active, el("span", { class: "field" }, "Only"),
      all.map(([field, value]) => el("button", {
        class: "value on", type: "button", "data-facet": JSON.stringify([field, value, "active"]), "aria-label": `Remove the filter ${field}: ${value}`, onclick: () => toggle(field, value),
      }, `${field}: ${value}`, el("span", { class: "cross", "aria-hidden": "true" }, "×"))),
      all.length > 1 && el("button", { class: "quiet", type: "button", onclick: clear }, "Clear all"));
    if (!focused) return;
    const next = [...place.querySelectorAll("button"), ...active.querySelectorAll("button")].find((one) => one.dataset.facet === focused);
    (next || place.querySelector("summary"))?.focus();
  }

  return { start, take, filter, text };
}

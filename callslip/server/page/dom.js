// Elements are built from text, never from markup, so that documents are shown literally.

const SVG = "http://www.w3.org/2000/svg";
// Bidirectional control characters could make one name look like another: they are shown as boxes.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

export const visible = (text) => String(text).replace(TURNING, "\u25a1");

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);
export const replace = (node, ...children) => { node.replaceChildren(...children.flat(3).filter(Boolean)); };

// A plot drawn by our server, parsed as XML; only its elements are imported.
export function drawing(text) {
  const parsed = new DOMParser().parseFromString(text.replace("<svg ", `<svg xmlns="${SVG}" `), "image/svg+xml");
  const root = parsed.documentElement;
  if (root.nodeName !== "svg" || parsed.querySelector("script, foreignObject, parsererror")) return el("p", {}, "–");
  return document.importNode(root, true);
}

export const number = (value) => Number(value).toLocaleString("en");
export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
export const percent = (p) => (p >= 0.995 ? "100 %" : p >= 0.01 ? `${Math.round(100 * p)} %` : p > 0 ? "< 1 %" : "0 %");

export function problem(error) {
  return el("div", { class: "problem", role: "alert" },
    el("strong", {}, error.message || "Something went wrong"), error.remedy && el("p", {}, error.remedy));
}

const STOP = new Set(("the a an of in on at to for and or is are was be by with from as it its this that which what how do does i "
  + "we you my can where when who why not no").split(" "));

// Scripts that are written without spaces: there, a query's word may be anywhere in a run of letters.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;
const WORDS = /[\p{L}\p{N}\p{M}]+/gu;

// A word without its ending, so that "flutes" matches "flute" and "cat" does not match "category".
function stem(word) {
  let found = word.toLowerCase();
  if (found.length > 4) found = found.replace(/(ies|ied)$/, "y");
  if (found.length > 3) found = found.replace(/([^s])s$/, "$1");
  const short = found.replace(/(ing|ed)$/, "");
  if (short !== found && short.length > 2 && /[aeiouy]/.test(short)) found = short.replace(/([^aeioulsz])\1$/, "$1");
  return found.length > 3 ? found.replace(/e$/, "") : found;
}

// What to look for in a text: stems of the query's words, and words of scripts without spaces as they are.
export function patternOf(query) {
  const words = (query.toLowerCase().match(WORDS) || []).filter((word) => (word.length > 1 || UNSPACED.test(word)) && !STOP.has(word)).slice(0, 24);
  const stems = new Set(words.filter((word) => !UNSPACED.test(word)).map(stem));
  const runs = words.filter((word) => UNSPACED.test(word));
  return words.length ? { stems, runs } : null;
}

// Start and end of every match, in order.
function places(text, pattern) {
  const found = [];
  for (const match of text.matchAll(WORDS)) {
    const at = match.index;
    if (pattern.stems.has(stem(match[0]))) found.push([at, at + match[0].length]);
    else {
      const run = pattern.runs.find((one) => match[0].includes(one));
      if (run) found.push([at + match[0].indexOf(run), at + match[0].indexOf(run) + run.length]);
    }
  }
  return found;
}

export function marked(text, pattern) {
  if (!pattern) return [text];
  const parts = [];
  let done = 0;
  for (const [start, end] of places(text, pattern)) {
    parts.push(text.slice(done, start), el("mark", {}, text.slice(start, end)));
    done = end;
  }
  return [...parts, text.slice(done)];
}

// The passage of a text with the most matching words.
export function excerpt(text, pattern, size = 300) {
  const clean = text.replace(/\s+/g, " ").trim();
  if (clean.length <= size) return clean;
  let best = 0;
  const starts = pattern ? places(clean, pattern).map(([start]) => start) : [];
  let most = 0;
  for (const start of starts) {
    const inside = starts.filter((at) => at >= start && at < start + size * 0.8).length;
    if (inside > most) [most, best] = [inside, start];
  }
  let from = Math.max(0, best - 60);
  if (from > 0) from = clean.indexOf(" ", from) + 1;
  const cut = clean.slice(from, from + size);
  const to = from + size < clean.length ? cut.lastIndexOf(" ") : cut.length;
  return `${from > 0 ? "… " : ""}${cut.slice(0, to > 0 ? to : undefined)}${from + size < clean.length ? " …" : ""}`;
}

"use strict";
// What a person sees and does: picks, recommendations with their reasons, search, maps. It asks nothing of any network.

// ------------------------------------------------------------------------------------------ what is shown

const REASONS = 3, MATCHES = 12, STEP = 10;
const at = (id) => document.getElementById(id);
const picks = []; // in the order in which they were picked
let shown = STEP;

function element(tag, text = "", attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(text, ...children);
  return made;
}

function button(text, label, act) {
  const made = element("button", text, { type: "button", "aria-label": label });
  made.addEventListener("click", act);
  return made;
}

/** A number that is short enough to compare at a glance. */
function short(number) {
  const size = Math.abs(number);
  return number.toFixed(size >= 100 ? 0 : size >= 1 ? 2 : 4).replace("-", "−");
}

function reason({ pick, part }, most) {
  const inside = element("span");
  inside.style.width = `${(100 * part) / most}%`;
  const track = element("span", "", { class: "track", "aria-hidden": "true" }, inside);
  const number = element("span", short(part), { class: "part" });
  return element("li", "", {}, element("span", items.title(pick)), track, number);
}

/** One line for several picks. */
function sum(words, several) {
  const number = short(several.reduce((total, { part }) => total + part, 0));
  return element("li", "", {}, element("span", words), element("span"), element("span", number, { class: "part" }));
}

function recommendation({ item, score, because }, rank, most) {
  const title = items.title(item), reasons = because.filter(({ part }) => part > 0);
  const against = because.slice(reasons.length);
  const named = reasons.length <= REASONS + 1 ? reasons.length : REASONS; // nobody reads "and 1 more"
  const parts = reasons.slice(0, named).map((one) => reason(one, most));
  if (reasons.length > named) parts.push(sum(`and ${reasons.length - named} more`, reasons.slice(named)));
  const speak = against.length === 1 ? "1 pick speaks" : `${against.length} picks speak`;
  if (against.length) parts.push(sum(`${speak} against it`, against));
  const heading = reasons.length ? "because you picked" : "";
  const add = button("+", `Pick ${title} too`, () => pick(item));
  add.className = "add";
  return element(
    "li", "", { "data-item": item, "data-score": score },
    element("span", String(rank), { class: "rank" }), element("span", title, { class: "title" }),
    element("span", short(score), { class: "score" }), add,
    element("div", heading, { class: "because" }, element("ul", "", {}, ...parts)),
  );
}

function show() {
  const best = ranked(picks, shown);
  const most = Math.max(Number.MIN_VALUE, ...best.map(({ because }) => because[0].part));
  const chip = (item) => button(items.title(item), `Remove ${items.title(item)}`, () => drop(item));
  at("picked").replaceChildren(...picks.map((item) => element("li", "", {}, chip(item))));
  at("recommended").replaceChildren(...best.map((one, place) => recommendation(one, place + 1, most)));
  at("clear").hidden = !picks.length;
  at("more").hidden = best.length < shown;
  const last = items.tables.some(({ recency }) => recency < 1) && picks.length > 1 ? "; the last one counts most" : "";
  const few = picks.length ? "Nothing is left to recommend." : "Pick an item, and recommendations appear here.";
  const count = picks.length === 1 ? "your pick" : `your ${picks.length} picks`;
  at("status").textContent = best.length ? `${best.length} recommendations from ${count}, the best first${last}` : few;
  draw(best.map(({ item }) => item));
}

function pick(item) {
  if (!picks.includes(item)) picks.push(item);
  shown = STEP;
  show();
}

function drop(item) {
  picks.splice(picks.indexOf(item), 1);
  kept.delete(item);
  show();
  at("search").focus();
}

// ------------------------------------------------------------------------------------------------- search

const plain = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
let names = null, matches = [], active = -1;

/** Items whose title has all the words; first those whose title begins so, then those where a word does. */
function found(text) {
  names ??= Array.from({ length: items.count }, (_, item) => plain(items.title(item)));
  const whole = plain(text).trim(), words = whole.split(/\s+/), ranks = [[], [], []];
  if (!whole) return [];
  names.forEach((name, item) => {
    if (!picks.includes(item) && words.every((word) => name.includes(word))) {
      ranks[name.startsWith(whole) ? 0 : ` ${name}`.includes(` ${words[0]}`) ? 1 : 2].push(item);
    }
  });
  return ranks.flat();
}

function offer() {
  const text = at("search").value, all = found(text);
  matches = all.slice(0, MATCHES);
  active = matches.length ? 0 : -1;
  const options = matches.map((item, place) => {
    const option = element("li", items.title(item), { role: "option", id: `match-${place}` });
    option.addEventListener("mousedown", (event) => { event.preventDefault(); choose(place); });
    return option;
  });
  const left = all.length - matches.length;
  let words = left ? `and ${left.toLocaleString("en")} more: type on` : "";
  if (text.trim() && !all.length) words = "No item has this name.";
  if (words) options.push(element("li", words, { class: "none", role: "presentation" }));
  at("matches").replaceChildren(...options);
  at("matches").hidden = !options.length;
  point(active);
}

/** Mark a match as the one that Enter picks. */
function point(place) {
  const box = at("search");
  active = place;
  matches.forEach((_, n) => at(`match-${n}`).setAttribute("aria-selected", n === place));
  box.setAttribute("aria-expanded", !at("matches").hidden);
  if (place < 0) return box.removeAttribute("aria-activedescendant");
  box.setAttribute("aria-activedescendant", `match-${place}`);
  at(`match-${place}`).scrollIntoView({ block: "nearest" });
}

function choose(place) {
  const item = matches[place];
  close();
  at("search").value = "";
  pick(item);
}

function close() {
  matches = [];
  at("matches").hidden = true;
  point(-1);
}

function pressed(event) {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps && at("matches").hidden) offer();
  else if (event.key in steps && matches.length) point((active + steps[event.key] + matches.length) % matches.length);
  else if (event.key === "Enter" && active >= 0) choose(active);
  else if (event.key === "Escape") close();
  else return;
  event.preventDefault();
}

// --------------------------------------------------------------------------------------------------- maps

const drawn = { whole: null, near: null }; // the part of the plane that each canvas shows
let onMap = []; // the recommended items

const x = (item) => items.places[2 * item], y = (item) => items.places[2 * item + 1];
const placed = (item) => !Number.isNaN(x(item));

/** A square around the items, with a margin. */
function square(some) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const item of some) {
    [left, right] = [Math.min(left, x(item)), Math.max(right, x(item))];
    [low, high] = [Math.min(low, y(item)), Math.max(high, y(item))];
  }
  const reach = 0.56 * Math.max(right - left, high - low, 1e-9);
  return { x: (left + right) / 2 - reach, y: (low + high) / 2 - reach, side: 2 * reach };
}

/** The marked items within a tenth of the map of that pick that has the most of them around it. */
function company(marked, side) {
  const around = (centre) => marked.filter((item) => Math.hypot(x(item) - x(centre), y(item) - y(centre)) <= side / 10);
  const groups = picks.filter(placed).map(around);
  return groups.reduce((best, group) => (group.length > best.length ? group : best), []);
}

function draw(best) {
  if (!items.places) return;
  onMap = best;
  const everything = (drawn.everything ??= Array.from({ length: items.count }, (_, item) => item).filter(placed));
  const marked = [...picks, ...best].filter(placed);
  drawn.whole = square(everything);
  const group = company(marked, drawn.whole.side);
  drawn.near = group.length ? square(group) : drawn.whole;
  drawn.near.side = Math.max(drawn.near.side, drawn.whole.side / 200);
  paint("whole", everything, drawn.near === drawn.whole ? null : drawn.near);
  paint("near", everything, null);
  const words = `${group.length} of ${marked.length} picked and recommended items`;
  at("near").setAttribute("aria-label", `Map around your picks: ${words}`);
}

function paint(name, everything, frame) {
  const canvas = at(name), view = drawn[name], pixels = devicePixelRatio || 1, size = canvas.clientWidth;
  canvas.width = canvas.height = size * pixels;
  const pen = canvas.getContext("2d"), colours = getComputedStyle(canvas), scale = size / view.side;
  const colour = (word) => colours.getPropertyValue(word).trim();
  const across = (item) => (x(item) - view.x) * scale, down = (item) => size - (y(item) - view.y) * scale;
  pen.scale(pixels, pixels);
  const dot = (item, radius, fill, edge = "") => {
    pen.beginPath();
    pen.arc(across(item), down(item), radius, 0, 7);
    pen.fillStyle = fill;
    pen.fill();
    if (edge) { pen.strokeStyle = edge; pen.lineWidth = 1.2; pen.stroke(); }
  };
  const small = name === "whole";
  pen.globalAlpha = 0.6;
  for (const item of everything) dot(item, small ? 1.1 : 2.2, colour("--item"));
  pen.globalAlpha = 1;
  if (frame) {
    pen.strokeStyle = colour("--ink");
    const top = size - (frame.y + frame.side - view.y) * scale, side = frame.side * scale;
    pen.strokeRect((frame.x - view.x) * scale, top, side, side);
  }
  for (const item of [...onMap].reverse().filter(placed)) {
    dot(item, small ? 3 : 8.5, colour("--recommended"), colour("--card"));
    if (small) continue;
    pen.fillStyle = colour("--on-mark");
    pen.font = "bold 10px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(String(onMap.indexOf(item) + 1), across(item), down(item) + 0.5);
  }
  for (const item of picks.filter(placed)) dot(item, small ? 3.4 : 6, colour("--picked"), colour("--card"));
}

/** The item under the pointer, or none within twelve pixels. */
function under(event) {
  const view = drawn[event.target.id], scale = event.target.clientWidth / view.side;
  let nearest = null, least = 12;
  for (const item of drawn.everything) {
    const across = (x(item) - view.x) * scale, down = (view.y + view.side - y(item)) * scale;
    const away = Math.hypot(across - event.offsetX, down - event.offsetY);
    if (away < least) [nearest, least] = [item, away];
  }
  return nearest;
}

// -------------------------------------------------------------------------------------------------- start

/** Items that the address names, as in index.html#items=12,book-3; an id with a comma has %2C for it. */
function named() {
  const [, list = ""] = /^#items=(.+)/.exec(location.hash) ?? [];
  const decoded = (word) => { try { return decodeURIComponent(word); } catch { return word; } };
  const wanted = new Map(list.split(",").map((word, place) => [decoded(word), place]));
  const place = (item) => wanted.get(items.id(item));
  for (let item = 0; list && item < items.count; item++) if (place(item) !== undefined) picks.push(item);
  picks.sort((a, b) => place(a) - place(b));
}

function start() {
  at("search").addEventListener("input", offer);
  at("search").addEventListener("keydown", pressed);
  at("search").addEventListener("blur", close);
  at("any").addEventListener("click", () => pick(Math.floor(Math.random() * items.count)));
  at("clear").addEventListener("click", () => { picks.length = 0; kept.clear(); show(); at("search").focus(); });
  at("more").addEventListener("click", () => { shown += STEP; show(); });
  addEventListener("hashchange", () => { picks.length = 0; named(); show(); });
  at("map").hidden = !items.places;
  for (const name of items.places ? ["whole", "near"] : []) {
    at(name).addEventListener("mousemove", (event) => {
      const item = under(event);
      at("pointed").textContent = item === null ? "" : items.title(item);
    });
    at(name).addEventListener("click", (event) => {
      const item = under(event);
      if (item !== null) pick(item);
    });
  }
  addEventListener("resize", () => draw(onMap));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(onMap));
  named();
  show();
}

if (items) start();
else at("status").textContent = "The file items.js is missing beside this page: copy the whole folder.";

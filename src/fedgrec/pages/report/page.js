"use strict";
// Three things: charts say their values, tables sort, and one can look at one person after the other.

// ------------------------------------------------------------------------------------------------- charts

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);

function showTip(event) {
  const target = event.target.closest?.(".tip");
  tip.hidden = !target;
  if (!target) return;
  tip.textContent = target.getAttribute("aria-label");
  const box = target.getBoundingClientRect();
  const x = event.clientX ?? box.left + box.width / 2;  // a keyboard has no pointer
  tip.style.left = `${Math.max(4, Math.min(x + 12, document.documentElement.clientWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${Math.max(4, (event.clientY ?? box.top) - tip.offsetHeight - 12)}px`;
}

for (const kind of ["pointermove", "pointerdown", "focusin"]) document.addEventListener(kind, showTip);
document.addEventListener("focusout", () => { tip.hidden = true; });

document.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const svg = event.target.closest?.(".tip")?.ownerSVGElement;
  if (event.key === "Escape") tip.hidden = true;
  if (!step || !svg) return;
  const places = [...svg.querySelectorAll(".tip")];
  places[places.indexOf(event.target) + step]?.focus();
  event.preventDefault();
});

// ------------------------------------------------------------------------------------------------- tables

function sortKey(row, column) {
  const cell = row.cells[column], text = cell.textContent.trim();
  const plain = text.replace(/,/g, "");
  return Number(cell.dataset.value ?? (plain && !isNaN(plain) ? plain : NaN));
}

// Numbers before words before nothing; of equals the order stays. First the largest number, or the first word.
function sortTable(header) {
  const column = header.cellIndex, body = header.closest("table").tBodies[0], rows = [...body.rows];
  const text = (row) => row.cells[column].textContent.trim(), key = (row) => sortKey(row, column);
  const rank = (row) => (!isNaN(key(row)) ? 0 : ["–", ""].includes(text(row)) ? 2 : 1);
  const ways = rows.some((row) => !rank(row)) ? ["descending", "ascending"] : ["ascending", "descending"];
  const way = ways[Number(header.getAttribute("aria-sort") === ways[0])], sign = way === "ascending" ? 1 : -1;
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", way);
  body.append(...rows.sort((a, b) =>
    rank(a) - rank(b) || sign * (rank(a) ? text(a).localeCompare(text(b)) : key(a) - key(b))));
}

document.addEventListener("click", (event) => {
  const header = event.target.closest?.(".sortable th[scope=col]");
  if (header) sortTable(header);
});

// ------------------------------------------------------------------------------------------------- people

const data = JSON.parse(document.getElementById("data")?.textContent ?? "null");
if (data) pickPeople(data);

function pickPeople({ people, items, first, map }) {
  const input = document.getElementById("who"), byId = new Map(people.map((person) => [person.id, person]));
  const at = (id) => document.getElementById(id);
  const ids = at("ids");
  for (const { id } of people) ids.append(new Option(id));

  function list(place, words) {
    at(place).replaceChildren(...words.map(([text, kind]) => {
      const line = document.createElement("li");
      line.textContent = text;
      line.className = kind;
      return line;
    }));
  }

  function show(person) {
    const hidden = new Set(person.hidden), gets = new Set(person.gets), name = (i) => items[i][0];
    input.value = person.id;
    at("nobody").textContent = "";
    const found = person.gets.filter((i) => hidden.has(i)).length;
    at("about").textContent = `User ${person.id} has ${person.has.length + person.more} items.`
      + (hidden.size ? ` Hidden from the model: ${hidden.size}, of which ${found} are among the first ${gets.size}.` : "");
    at("why").hidden = person.id !== people[first].id;
    list("has", person.has.map((i) => [name(i), ""]));
    at("more").textContent = person.more ? `and ${person.more} more` : "";
    list("hidden", person.hidden.map((i) => [name(i), gets.has(i) ? "hit" : "missed"]));
    at("gets").replaceChildren(...person.gets.map((i, n) => {
      const row = document.createElement("tr");
      const cells = [String(n + 1), name(i), items[i][1].toLocaleString("en"), hidden.has(i) ? "hit" : ""];
      row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
      row.className = hidden.has(i) ? "hit" : "";
      return row;
    }));
    if (map) drawMaps(person, items, map);
  }

  function choose(id) {
    const person = byId.get(id);
    if (person) show(person);
    else at("nobody").textContent = `${id} is not among the ${people.length} people on this page.`;
    return Boolean(person);
  }

  const step = (by) => {
    const now = people.findIndex(({ id }) => id === input.value);
    show(people[(now + by + people.length) % people.length]);
  };
  input.addEventListener("change", () => choose(input.value.trim()));
  input.addEventListener("focus", () => input.select());
  at("before").addEventListener("click", () => step(-1));
  at("after").addEventListener("click", () => step(1));
  const asked = () => decodeURIComponent(location.hash.match(/^#user=(.*)$/)?.[1] ?? "");
  addEventListener("hashchange", () => asked() && choose(asked()));
  show(people[first]);
  if (asked()) choose(asked());
}

// --------------------------------------------------------------------------------------------------- maps

function drawMaps(person, items, map) {
  const placed = (i) => items[i].length > 2, place = (i) => items[i].slice(2, 4);
  const has = person.has.filter(placed), missed = person.hidden.filter((i) => placed(i) && !person.gets.includes(i));
  const gets = person.gets.map((i, n) => [i, n + 1]).filter(([i]) => placed(i)), town = map.towns[person.town];
  const mine = [...has, ...gets.map(([i]) => i), ...missed], home = person.home ? [person.home] : [];
  const inTown = mine.filter((i) => items[i][4] === person.town).map(place);
  const local = home.length ? inTown : company(mine.map(place), map.side / 10);
  const near = home.length || local.length ? [...home, ...local] : [[0, 0], [map.side, map.side]];
  const side = (axis) => [Math.min(...near.map((p) => p[axis])), Math.max(...near.map((p) => p[axis]))];
  const [[left, right], [top, bottom]] = [side(0), side(1)];
  const reach = 0.58 * Math.max(right - left, bottom - top) + map.side / 80;
  const box = [(left + right) / 2 - reach, (top + bottom) / 2 - reach, 2 * reach];
  const where = town ? `${town}, around the person's home` : "Around the person's items";
  document.getElementById("near-title").textContent = where;
  for (const label of document.querySelectorAll("#country .town")) {
    label.classList.toggle("home", label.textContent === town);
  }
  const draw = (id, [x, y, size], numbered) => {
    const svg = document.getElementById(id), unit = size / 400, group = svg.querySelector(".mine");
    svg.setAttribute("viewBox", `${x} ${y} ${size} ${size}`);
    group.replaceChildren();
    const add = (tag, attributes, text = "") => {
      const element = document.createElementNS(svg.namespaceURI, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      element.textContent = text;
      group.append(element);
    };
    const mark = ([px, py], shape, kind, label) => add("path", {
      class: `${kind}${numbered ? " tip" : ""}`, d: map.shapes[shape], "aria-label": label, role: "img",
      tabindex: numbered && !group.querySelector(".tip") ? 0 : -1,
      transform: `translate(${px} ${py}) scale(${unit * (numbered ? 1 : 0.6)})`,
    });
    for (const i of has) mark(place(i), "dot", "c0", `${items[i][0]}\nknown to the model`);
    for (const i of missed) mark(place(i), "diamond", "c4 hollow", `${items[i][0]}\nhidden, not found`);
    const spots = [...gets.map(([i]) => place(i)), ...home], drawn = numbered ? apart(spots, 21 * unit) : spots;
    drawn.forEach(([px, py], n) => add("path", { class: "lead", d: `M${px} ${py}L${spots[n][0]} ${spots[n][1]}` }));
    gets.forEach(([i, rank], n) => {
      const hit = person.hidden.includes(i), [px, py] = drawn[n];
      mark([px, py], "spot", hit ? "c2" : "c1", `${rank}. ${items[i][0]}\n${hit ? "a hit" : "recommended"}`);
      if (numbered) add("text", { class: "rank", x: px, y: py + 4.2 * unit, "font-size": 12 * unit }, rank);
    });
    if (home.length) mark(drawn.at(-1), "star", "c4", "home");
    if (!numbered) add("rect", { class: "frame", x: box[0], y: box[1], width: box[2], height: box[2] });
  };
  draw("country", [0, 0, map.side], false);
  draw("near", box, true);
}

// The points within reach of the one that has the most others around it.
function company(points, reach) {
  const around = ([x, y]) => points.filter(([ox, oy]) => Math.hypot(x - ox, y - oy) <= reach);
  return points.map(around).reduce((best, group) => (group.length > best.length ? group : best), []);
}

// Points moved until none is nearer than `gap` to another: marks shall not hide each other.
function apart(points, gap) {
  const moved = points.map(([x, y], n) => [x + n * gap * 1e-5, y - n * gap * 1e-5]);  // equals need a direction
  for (let turn = 0; turn < 200; turn++) {
    const pushes = moved.map(([x, y]) => moved.reduce(([px, py], [ox, oy]) => {
      const distance = Math.hypot(x - ox, y - oy);
      const push = distance && distance < gap ? (gap - distance) / distance / 2 : 0;
      return [px + push * (x - ox), py + push * (y - oy)];
    }, [0, 0]));
    moved.forEach((point, n) => { point[0] += pushes[n][0]; point[1] += pushes[n][1]; });
  }
  return moved;
}

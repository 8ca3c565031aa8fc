"use strict";
// What the page recommends, computed from the item table in items.js: the twin of export/table.py, with the same
// products and sums in the same order.

function bytes(base64) {
  const text = atob(base64), found = new Uint8Array(text.length);
  for (let i = 0; i < found.length; i++) found[i] = text.charCodeAt(i);
  return found.buffer;
}

function table(packed) {
  const ranks = new Int8Array(bytes(packed.ranks));
  return {
    weight: packed.weight, // of a standardised part; 0: the whole score
    recency: packed.recency, // how much less a pick counts with every later one
    width: packed.width,
    ranks,
    gives: packed.gives === null ? ranks : new Int8Array(bytes(packed.gives)),
    ranksScales: new Float32Array(bytes(packed.ranksScales)),
    givesScales: new Float32Array(bytes(packed.givesScales)),
  };
}

function opened(packed) {
  return {
    count: packed.count,
    tables: packed.tables.map(table),
    share: { sum: () => 1, root: (n) => 1 / Math.sqrt(n), mean: (n) => 1 / n }[packed.share],
    closed: new Set(packed.closed),
    places: packed.places ? new Float32Array(bytes(packed.places)) : null, // x and y of item after item
    id: (item) => (packed.ids === null ? String(item) : packed.ids[item]),
    title: (item) => (packed.titles && packed.titles[item]) || items.id(item),
  };
}

const kept = new Map(); // picked item → by table, what it adds to the score of every item

function terms(picked) {
  if (!kept.has(picked)) kept.set(picked, items.tables.map((table) => added(table, picked)));
  return kept.get(picked);
}

function added({ width, ranks, gives, ranksScales, givesScales }, picked) {
  const own = gives.subarray(picked * width, (picked + 1) * width), found = new Float64Array(items.count);
  for (let item = 0, at = 0; item < items.count; item++) {
    let dot = 0; // of whole numbers, so it is exact
    for (let d = 0; d < width; d++, at++) dot += own[d] * ranks[at];
    found[item] = (givesScales[picked] * ranksScales[item]) * dot;
  }
  return found;
}

const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

/** A table's scores of all items, and by item what each pick adds to them; `age`: how many were picked after it. */
function scored(table, place, picks, age) {
  const later = [1];
  for (const _ of picks) later.push(later[later.length - 1] * table.recency);
  const counts = age.map((k) => later[k]);
  const by = (part, k) => (counts[k] === 1 ? part : part.map((term) => counts[k] * term));
  const parts = picks.map((pick) => terms(pick)[place]).map(by), scores = new Float64Array(items.count);
  for (const part of parts) for (let item = 0; item < scores.length; item++) scores[item] += part[item];
  if (!table.weight) return { scores, by: (item) => parts.map((part) => part[item]) };
  const middle = mean(scores), means = parts.map(mean);
  for (let item = 0; item < scores.length; item++) scores[item] -= middle;
  const deviation = Math.sqrt(mean(scores.map((score) => score * score)));
  const factor = deviation ? table.weight / deviation : 0;
  for (let item = 0; item < scores.length; item++) scores[item] *= factor;
  return { scores, by: (item) => parts.map((part, k) => (part[item] - means[k]) * factor) };
}

/** The best items that were not picked, with their scores and what each pick adds; ties to the lower number. */
function ranked(picks, n) {
  if (!picks.length) return [];
  const sorted = [...picks].sort((a, b) => a - b), age = sorted.map((pick) => picks.length - 1 - picks.indexOf(pick));
  const tables = items.tables.map((table, place) => scored(table, place, sorted, age));
  const scores = tables[0].scores;
  for (const more of tables.slice(1)) for (let item = 0; item < scores.length; item++) scores[item] += more.scores[item];
  const chosen = new Set(picks), left = [];
  for (let item = 0; item < scores.length; item++) if (!chosen.has(item) && !items.closed.has(item)) left.push(item);
  left.sort((a, b) => scores[b] - scores[a] || a - b);
  const share = items.share(picks.length);
  return left.slice(0, n).map((item) => {
    const parts = tables.map((table) => table.by(item));
    const because = sorted.map((pick, k) => ({ pick, part: parts.reduce((sum, part) => sum + part[k], 0) * share }));
    return { item, score: scores[item] * share, because: because.sort((a, b) => b.part - a.part) };
  });
}

const items = typeof FEDGREC_ITEMS === "undefined" ? null : opened(FEDGREC_ITEMS);

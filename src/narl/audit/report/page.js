"use strict";
// The report: everything that comes from data goes in as text.

const SMALL = 96;
const pageSize = () => NARROW() ? 12 : 24;
const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
const state = { step: data.scores.start, page: 0 };
const steps = data.scores.flagged.length - 1;
const threshold = () => state.step / steps;

function make(kind, text, name) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

const isolated = (text) => make("bdi", text);
const className = (number) => data.classes[number] ?? `class ${number}`;

function table(id, heads, rows) {
  const head = make("thead"), body = make("tbody"), top = make("tr");
  for (const [name, kind] of heads) {
    const cell = make("th", name, kind);
    cell.scope = "col";
    top.append(cell);
  }
  head.append(top);
  for (const values of rows) {
    const row = make("tr");
    values.forEach((value, place) => {
      const cell = make("td", undefined, heads[place][1]);
      cell.append(value instanceof Node ? value : isolated(String(value)));
      row.append(cell);
    });
    body.append(row);
  }
  at(id).replaceChildren(head, body);
}

function figures(values) {
  at("figures").replaceChildren(...values.filter(([, value]) => value !== null).map(([name, value]) => {
    const group = make("div");
    group.append(make("dt", name), make("dd", value));
    return group;
  }));
}

function overview() {
  const { noise, quality, samples, flagged } = data;
  at("title").textContent = data.title;
  at("notes").replaceChildren(...data.notes.map((note) => make("p", note, "note")));
  at("headline").textContent =
    `About ${count(noise.rate * samples)} of ${count(samples)} labels are wrong: ${percent(noise.rate)}, ` +
    `or ${percent(noise.low)} to ${percent(noise.high)} with doubtful labels counted as right or as wrong.` +
    (noise.actual === null ? "" : ` In truth it is ${percent(noise.actual)}.`);
  figures([
    ["samples", count(samples)],
    [`labels flagged, ${percent(flagged / samples)} of all`, count(flagged)],
    ["of the flagged are wrong in truth", quality && percent(quality.precision)],
    ["of the wrong are flagged", quality && percent(quality.recall)],
    ["of the wrong: suggestion is right", quality && percent(quality.suggestions)],
    ["AUROC of the score", quality && (quality.auroc === null ? "–" : quality.auroc.toFixed(3))],
  ]);
  at("footer").textContent = `Made by narl ${data.narl}. All labels are in labels.csv beside this page.`;
}

function where() {
  const truth = data.noise.actual !== null, many = data.classes.length;
  at("by-class-says").textContent =
    "Of the samples that belong to a class, the share that carries another label" +
    (many > 30 ? `; the 30 worst of ${many} classes. ` : ". ") + "Doubtful labels make the ranges wide.";
  const worst = data.by_class.map((entry, number) => ({ ...entry, number })).sort((a, b) => b.rate - a.rate);
  table("by-class-table", [
    ["class"], ["wrong", "number"], ["range", "number"], ...(truth ? [["in truth", "number"]] : []),
    ["labels given", "number"], ["of them flagged", "number"],
  ], worst.map((entry) => [
    className(entry.number), percent(entry.rate), `${percent(entry.low)} to ${percent(entry.high)}`,
    ...(truth ? [percent(entry.actual)] : []), count(entry.labels), count(entry.flagged),
  ]));
  const { shown, pairs, left_out: left } = data.confusion;
  at("confusion-says").textContent =
    "How often samples of a class are given another label. Click a cell to see such samples." +
    (shown.length < many ? ` The ${shown.length} of ${many} classes that are confused most.` : "");
  at("confusion-left-out").textContent = left ? `${count(left)} rarer confusions are left out.` : "";
  table("confusion-table", [
    ["true class"], ["given label"], ["share of the class", "number"], ["range", "number"], ["flagged", "number"], ["samples"],
  ], pairs.map(([trueClass, given, share, low, high, flagged]) => {
    const button = make("button", "show");
    button.type = "button";
    button.setAttribute("aria-label", `show ${className(trueClass)} labelled ${className(given)}`);
    button.addEventListener("click", () => showConfusion(trueClass, given));
    return [className(trueClass), className(given), percent(share), `${percent(low)} to ${percent(high)}`, count(flagged), button];
  }));
}

function showConfusion(trueClass, given) {
  for (const [id, number] of [["filter-given", given], ["filter-suggested", trueClass]]) {
    const select = at(id);
    if (![...select.options].some((option) => option.value === String(number))) select.append(choice(number, 0));
    select.value = String(number);
  }
  at("filter-below").checked = false;
  state.page = 0;
  showCards();
  at("gallery-title").focus();
}

function thresholds() {
  const slider = at("slider"), { measured, hits, total } = data.scores;
  slider.max = steps;
  slider.value = state.step;
  at("histogram-says").textContent = "The dotted line is the threshold." + (measured ? " True labels are known here." : "");
  at("quality-figure").hidden = !hits || !total;
  at("quality-says").textContent = measured
    ? "Measured with the true labels that the data holds."
    : "Expected, by probabilities that were calibrated on the clean set.";
  slider.addEventListener("input", () => moved(Number(slider.value)));
  at("slider-reset").addEventListener("click", () => {
    slider.value = data.scores.start;
    moved(data.scores.start);
  });
  sayThreshold();
}

let waiting = false;
function moved(step) {
  state.step = step;
  sayThreshold();
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const id of ["histogram", "quality"]) if (drawn.has(id)) moveThreshold(id, threshold());
    if (at("filter-below").checked) {
      state.page = 0;
      showCards();
    }
  });
}

function sayThreshold() {
  const { flagged, hits, total, measured, start } = data.scores, now = flagged[state.step];
  const about = measured ? "" : "about ";
  const found = hits && total
    ? ` Of them ${about}${count(hits[state.step])} are wrong (precision ${now ? percent(hits[state.step] / now) : "–"}), ` +
      `which is ${about}${percent(hits[state.step] / total)} of all wrong labels (recall).`
    : "";
  const value = threshold().toFixed(3);
  at("slider-value").textContent = value;
  const says = `${count(now)} of ${count(data.samples)} labels (${percent(now / data.samples)}) would be flagged.${found}`;
  at("slider-says").textContent = says;
  at("slider").setAttribute("aria-valuetext", `${value}: ${count(now)} labels flagged`);
  at("slider-reset").disabled = state.step === start;
}

function choice(number, samples) {
  const option = make("option", `${cutName(className(number), 40)} (${samples})`);
  option.value = String(number);
  return option;
}

function filters() {
  for (const field of ["given", "suggested"]) {
    const counts = new Map();
    for (const sample of data.gallery.samples) counts.set(sample[field], (counts.get(sample[field]) ?? 0) + 1);
    const all = make("option", "any");
    all.value = "";
    const known = [...counts].sort((a, b) => a[0] - b[0]);
    at(`filter-${field}`).replaceChildren(all, ...known.map(([number, samples]) => choice(number, samples)));
  }
  at("filters").addEventListener("change", () => { state.page = 0; showCards(); });
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("filters").addEventListener("reset", () => requestAnimationFrame(() => { state.page = 0; showCards(); }));
  at("previous").addEventListener("click", () => turn(-1));
  at("next").addEventListener("click", () => turn(1));
  const { samples, chosen } = data.gallery;
  at("gallery-says").textContent =
    `The most suspicious ${count(samples.length)} of ${count(data.samples)} samples, some of every confusion among them, the worst first.` +
    (samples.length < chosen ? ` ${count(chosen - samples.length)} more would have made this page too large.` : "");
  at("cards").classList.toggle("wide", data.kind === "text" || data.kind === "table");
}

function turn(by) {
  state.page += by;
  showCards();
  at("gallery-title").focus();
}

function matching() {
  const given = at("filter-given").value, suggested = at("filter-suggested").value, below = at("filter-below").checked;
  return data.gallery.samples.filter((sample) =>
    (given === "" || sample.given === Number(given)) &&
    (suggested === "" || sample.suggested === Number(suggested)) &&
    (!below || sample.score < threshold()));
}

function showCards() {
  const found = matching(), pages = Math.max(1, Math.ceil(found.length / pageSize()));
  state.page = Math.min(Math.max(0, state.page), pages - 1);
  const first = state.page * pageSize(), shown = found.slice(first, first + pageSize());
  at("cards").replaceChildren(...shown.map(card));
  at("found").textContent = found.length
    ? `${first + 1} to ${first + shown.length} of ${found.length} samples`
    : "No sample on this page is like that; labels.csv has all of them.";
  at("page").textContent = `page ${state.page + 1} of ${pages}`;
  at("previous").disabled = state.page === 0;
  at("next").disabled = state.page === pages - 1;
}

function card(sample) {
  const item = make("li"), labels = make("dl", undefined, "labels");
  const pairs = [["given", className(sample.given)], ["suggested", className(sample.suggested)]];
  if (sample.true !== null) pairs.push(["in truth", className(sample.true)]);
  for (const [name, value] of pairs) {
    const pair = make("div"), text = make("dd");
    text.append(isolated(value));
    pair.append(make("dt", name), text);
    labels.append(pair);
  }
  const parts = [`score ${fixed(sample.score, 3)}`, `margin ${fixed(sample.margin, 1)}`];
  if (sample.probability !== null) parts.unshift(`${chance(sample.probability)} likely wrong`);
  if (sample.suggested !== sample.given) parts.push(`suggestion ${chance(sample.confidence)} sure`);
  const id = make("p", undefined, "quiet id");
  id.append(isolated(sample.id));
  item.append(
    content(sample), labels,
    make("span", sample.wrong ? "flagged" : "not flagged", sample.wrong ? "mark" : "mark kept"),
    make("p", parts.join(" · "), "quiet"),
    id,
  );
  return item;
}

function content(sample) {
  if (sample.image) {
    const image = make("img");
    image.alt = `Sample ${sample.id}`;
    image.addEventListener("load", () =>
      image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) <= SMALL));
    image.src = sample.image;
    return image;
  }
  if (sample.unreadable) return make("p", "The image cannot be read.", "quiet");
  if (sample.text !== undefined) {
    const text = make("div", undefined, "text");
    text.dir = "auto";
    text.textContent = sample.text + (sample.left_out ? `… (${count(sample.left_out)} more characters)` : "");
    return reachable(text, sample);
  }
  if (sample.cells) {
    const box = make("div", undefined, "cells"), cells = make("table");
    for (const [name, value] of sample.cells) {
      const row = make("tr"), head = make("th"), cell = make("td");
      head.scope = "row";
      head.append(isolated(name));
      cell.append(isolated(value));
      row.append(head, cell);
      cells.append(row);
    }
    box.append(cells);
    if (sample.left_out) box.append(make("p", `${count(sample.left_out)} more columns`, "quiet"));
    return reachable(box, sample);
  }
  return make("span");
}

// What scrolls must be reachable by keys.
function reachable(box, sample) {
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", `Sample ${sample.id}`);
  return box;
}

function figure(id, title, says) {
  const made = make("figure"), head = make("h3", title), text = make("p", says, "quiet"), chart = make("div", undefined, "chart");
  head.id = `${id}-title`;
  text.id = `${id}-says`;
  chart.id = id;
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-labelledby", `${head.id} ${text.id}`);
  made.append(head, text, chart);
  at("training-charts").append(made);
}

function training() {
  const { curves, hyperparameters, settings } = data;
  at("training").hidden = !curves && !hyperparameters.length;
  if (curves && Object.keys(curves.shares).length) {
    figure("shares", "Accuracy", "Agreement with the given labels that rises late means that wrong ones are learned by heart.");
  }
  if (curves && Object.keys(curves.losses).length) figure("losses", "Loss", "Mean over an epoch.");
  hyperparameters.forEach((entry, place) => figure(`hyper-${place}`, `Hyperparameter ${entry.name} by margin`,
    "What the loss was set to in the last epoch. A margin below 0: the classifier contradicts the label. " +
    "Lines are medians, bands hold eight samples in ten."));
  at("settings").hidden = !settings.length;
  table("settings-table", [["part"], ["setting"], ["value"]], settings);
}

const charts = new Map([
  ["by-class", () => drawByClass(data)],
  ["confusion", () => drawConfusion(data, showConfusion)],
  ["histogram", () => drawHistogram(data, threshold())],
  ["quality", () => drawQuality(data, threshold())],
  ["shares", () => drawCurves(data, "shares", "shares", "share (%)", 100)],
  ["losses", () => drawCurves(data, "losses", "losses", "loss", 1)],
  ...data.hyperparameters.map((entry, place) => [`hyper-${place}`, () => drawHyperparameter(`hyper-${place}`, entry)]),
]);
const drawn = new Set();

function drawOnce(id) {
  if (drawn.has(id) || !charts.has(id) || at(id).closest("[hidden]")) return;
  drawn.add(id);
  charts.get(id)();
}

// Charts are drawn when they come near the window: the page opens at once.
function drawWhenSeen() {
  const watching = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) drawOnce(target.id);
  }, { rootMargin: "300px" });
  for (const id of charts.keys()) if (at(id)) watching.observe(at(id));
  window.addEventListener("beforeprint", () => [...charts.keys()].filter(at).forEach(drawOnce));
  for (const query of ["(prefers-color-scheme: dark)", "(max-width: 40rem)"])
    window.matchMedia(query).addEventListener("change", () => {
      drawn.forEach((id) => charts.get(id)());
      showCards();
    });
}

overview();
where();
thresholds();
filters();
showCards();
training();
document.body.dataset.ready = "true";
document.addEventListener("DOMContentLoaded", drawWhenSeen); // plotly comes last: all but the charts is there before

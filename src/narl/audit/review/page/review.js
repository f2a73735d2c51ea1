"use strict";
// Everything that comes from the data is shown by textContent: a label or a text is never markup.

const TOKEN = "narl-token", TAB = "narl-tab", NAME = "narl-labeller";
const MOST_SHOWN = 60; // classes at a time; the filter finds the others
const DIGITS = "1234567890";
const SEEN = 384; // pixels: smaller images are enlarged to about this side, each of their pixels a square
const at = (id) => document.getElementById(id);

const state = { about: null, labeller: "", sample: null, busy: true, chosen: 0, picture: null };

function takeToken() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(TOKEN, found[1]);
    history.replaceState(null, "", "/"); // not in the history, not in a screenshot
  }
  return sessionStorage.getItem(TOKEN) || "";
}

function tab() {
  if (!sessionStorage.getItem(TAB)) {
    const bytes = crypto.getRandomValues(new Uint8Array(12));
    sessionStorage.setItem(TAB, Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(""));
  }
  return sessionStorage.getItem(TAB);
}

async function ask(path, body) {
  const headers = { "X-Narl-Token": takeToken() };
  const request = { headers, credentials: "omit", cache: "no-store" };
  if (body) {
    request.method = "POST";
    headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let reply;
  try {
    reply = await fetch(path, request);
  } catch {
    throw new Error("The server does not answer. Is narl review still running? What was saved before is safe. Try again.");
  }
  if (!reply.ok) {
    let reason = reply.statusText;
    try { reason = (await reply.json()).error || reason; } catch { /* no JSON: the status says it */ }
    throw new Error(reason);
  }
  return reply;
}

const post = async (path, more = {}) =>
  (await ask(path, { labeller: state.labeller, tab: tab(), ...more })).json();

async function during(work, before = "") {
  if (state.busy) return;
  state.busy = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
    at("trouble").hidden = true;
  } catch (error) {
    at("trouble").textContent = before + error.message;
    at("trouble").hidden = false;
  } finally {
    state.busy = false;
    document.body.removeAttribute("aria-busy");
  }
}

const className = (number) => state.about.classes[number];
const short = (text) => (text.length > 60 ? `${text.slice(0, 60)}…` : text);
const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

function answer(verdict, label = null) {
  const sample = state.sample;
  if (!sample || state.busy) return;
  during(async () => {
    const found = await post("/api/answer", { sample: sample.number, verdict, label });
    const said = verdict === "keep" ? `kept “${short(className(sample.given))}”`
      : verdict === "relabel" ? `“${short(className(sample.given))}” is “${short(className(label))}”` : verdict;
    await show(found, `Saved: ${said}. z takes it back.`);
  }, "Not saved: ");
}

function choose(label) {
  if (!state.sample) return;
  if (label === state.sample.given) answer("keep");
  else answer("relabel", label);
}

function acceptSuggestion() {
  if (state.sample && state.sample.suggested !== state.sample.given) choose(state.sample.suggested);
}

function undo() {
  during(async () => {
    const found = await post("/api/undo");
    await show(found, found.undone ? `Taken back: ${found.undone}.` : "There is nothing to take back.");
  });
}

async function show(found, status) {
  state.sample = found.sample;
  at("status").textContent = status;
  at("work").hidden = !found.sample;
  at("done").hidden = Boolean(found.sample);
  showProgress(found.progress);
  if (found.sample) await showSample(found.sample);
}

function showProgress(far) {
  at("bar").max = Math.max(1, far.goal);
  at("bar").value = far.reached;
  at("reached").textContent = `${far.reached} of ${far.goal} for a clean set`;
  const without = far.uncovered ? ` · ${far.uncovered} ${far.uncovered === 1 ? "class" : "classes"} without any` : "";
  at("counts").textContent =
    `${far.keep} kept · ${far.relabel} relabelled · ${far.unsure} unsure · ${far.skip} skipped${without}`;
}

async function showSample(sample) {
  const content = sample.content, differs = sample.suggested !== sample.given;
  at("id").textContent = sample.id;
  at("given").textContent = className(sample.given);
  at("suggestion").textContent = differs ? "It is " : "Nothing else is suggested";
  at("suggested").textContent = differs ? className(sample.suggested) : "";
  at("accept").disabled = !differs;
  at("doubt").textContent = doubtOf(sample, differs);
  at("text").hidden = content.kind !== "text";
  at("table").hidden = content.kind !== "table";
  at("image").hidden = content.kind !== "image";
  at("image").classList.add("waiting"); // never the last image beside this label
  at("note").hidden = !content.left_out;
  if (content.kind === "text") {
    at("text").textContent = content.text;
    at("text").scrollTop = 0;
    at("note").textContent = `${content.left_out} more characters are not shown.`;
  } else if (content.kind === "table") {
    at("cells").replaceChildren(...content.cells.map(row));
    at("table").scrollTop = 0;
    at("note").textContent = `${content.left_out} more columns are not shown.`;
  }
  at("filter").value = "";
  showClasses();
  if (document.activeElement === at("filter")) at("filter").blur();
  if (content.kind === "image") await showImage(sample.number); // nobody answers before it is seen
}

function doubtOf(sample, differs) {
  const parts = [];
  if (sample.probability !== null) parts.push(`wrong with probability ${percent(sample.probability)}`);
  else if (sample.score !== null) parts.push(`score ${sample.score.toFixed(2)} (0: wrong, 1: right)`);
  if (differs && sample.confidence !== null) parts.push(`suggestion ${percent(sample.confidence)} sure`);
  return parts.join(" · ");
}

function row([name, value]) {
  const line = document.createElement("tr");
  for (const [kind, text] of [["th", name], ["td", value]]) {
    const cell = document.createElement(kind), inside = document.createElement("bdi");
    inside.textContent = text;
    if (kind === "th") cell.scope = "row";
    cell.append(inside);
    line.append(cell);
  }
  return line;
}

async function showImage(number) {
  const image = at("image");
  try {
    const url = URL.createObjectURL(await (await ask(`/api/image/${number}`)).blob());
    if (state.picture) URL.revokeObjectURL(state.picture);
    state.picture = image.src = url;
    await image.decode();
    const times = Math.max(1, Math.floor(SEEN / Math.max(image.naturalWidth, image.naturalHeight)));
    image.width = times * image.naturalWidth;
    image.classList.toggle("small", times > 1);
    image.classList.remove("waiting");
  } catch (error) {
    image.hidden = true;
    at("note").textContent = `The image cannot be shown: ${error.message}`;
    at("note").hidden = false;
  }
}

function matching() {
  const wanted = at("filter").value.trim().toLowerCase();
  const found = [];
  state.about.classes.forEach((name, number) => {
    if (!wanted || name.toLowerCase().includes(wanted)) found.push(number);
  });
  return found;
}

// The keys of few classes, in order. Classes that are called by digits have their own.
function digits() {
  const names = state.about ? state.about.classes : [];
  return names.every((name) => /^[0-9]$/.test(name)) ? names : [...DIGITS];
}

function showClasses() {
  const few = state.about.classes.length <= DIGITS.length, found = matching();
  state.chosen = Math.min(state.chosen, Math.max(0, found.length - 1));
  if (!at("filter").value) state.chosen = 0;
  at("classes").replaceChildren(...found.slice(0, MOST_SHOWN).map((number, place) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const name = document.createElement("bdi");
    name.textContent = className(number);
    button.type = "button";
    button.append(name);
    if (few) {
      const key = document.createElement("kbd");
      key.textContent = digits()[number];
      button.append(key);
    }
    button.disabled = number === state.sample.given;
    if (!few && at("filter").value && place === state.chosen) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => choose(number));
    item.append(button);
    return item;
  }));
  at("more").hidden = found.length > 0 && found.length <= MOST_SHOWN;
  at("more").textContent = found.length ? `${found.length - MOST_SHOWN} more: type to find them.` : "No class is called so.";
}

function inFilter(event) {
  const found = matching().slice(0, MOST_SHOWN);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") {
    at("filter").value = "";
    at("filter").blur();
  } else if (step && found.length) {
    state.chosen = (state.chosen + step + found.length) % found.length;
  } else if (event.key === "Enter" && at("filter").value.trim() && found.length) {
    choose(found[state.chosen]);
  } else {
    return;
  }
  event.preventDefault();
  showClasses();
  at("classes").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function openName() {
  at("name-field").value = state.labeller;
  at("name-trouble").textContent = "";
  at("name").showModal();
  at("name-field").select();
}

function saveName() {
  const before = state.labeller, name = at("name-field").value.trim();
  if (state.busy) return;
  during(async () => {
    state.labeller = name;
    try {
      const found = await post("/api/next");
      sessionStorage.setItem(NAME, name);
      at("labeller").textContent = name;
      at("name").close();
      await show(found, "");
    } catch (error) {
      state.labeller = before;
      at("name-trouble").textContent = error.message;
    }
  });
}

// On keyboards with other letters the place of the key counts.
const letterOf = (event) =>
  /^[\x21-\x7e]$/.test(event.key) ? event.key.toLowerCase() : event.code.replace(/^(Key|Digit)/, "").toLowerCase();

function onKey(event) {
  if (document.querySelector("dialog[open]") || event.altKey || event.repeat) return;
  if (event.target === at("filter")) return inFilter(event);
  const key = letterOf(event);
  if (event.ctrlKey || event.metaKey) {
    if (key !== "z" || event.shiftKey) return;
  }
  const digit = digits().indexOf(key), classes = state.about ? state.about.classes.length : 0;
  const work = {
    k: () => answer("keep"),
    a: acceptSuggestion,
    u: () => answer("unsure"),
    s: () => answer("skip"),
    z: undo,
    n: openName,
    "/": () => classes > DIGITS.length && at("filter").focus(),
    "?": () => at("help").showModal(),
  }[key];
  if (work) work();
  else if (digit >= 0 && digit < classes && classes <= DIGITS.length) choose(digit);
  else return;
  event.preventDefault();
}

function connect() {
  const clicks = {
    keep: () => answer("keep"), accept: acceptSuggestion,
    unsure: () => answer("unsure"), skip: () => answer("skip"), undo, "undo-done": undo,
    "open-help": () => at("help").showModal(), "close-help": () => at("help").close(),
    "open-name": openName, "close-name": () => at("name").close(), "save-name": saveName,
  };
  for (const [id, work] of Object.entries(clicks)) at(id).addEventListener("click", work);
  at("filter").addEventListener("input", () => { state.chosen = 0; showClasses(); });
  at("name-field").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) saveName();
  });
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => location.reload()); // a new link pasted over the old page
}

async function begin() {
  connect();
  takeToken();
  state.busy = false;
  await during(async () => {
    state.about = await (await ask("/api/about")).json();
    state.labeller = sessionStorage.getItem(NAME) || state.about.labeller;
    const many = state.about.classes.length > DIGITS.length;
    at("run").textContent = state.about.run;
    at("labeller").textContent = state.labeller;
    at("filter").hidden = at("filter-key").hidden = !many;
    at("command").textContent = `narl train DATA --clean ${state.about.run} --train-on-clean --out NEW`;
    await show(await post("/api/next"), "");
  });
}

begin();

// Moves the pictures of the page on the method. Numbers come from numbers.js; without JavaScript the pictures stand still.
"use strict";

(() => {
  const numbers = window.narlNumbers;
  const panel = (name) => document.querySelector(`svg[data-panel="${name}"]`);
  const pair = (svg, name) => svg.dataset[name].split(" ").map(Number);

  function at(svg, x, y) {
    const [left, right, bottom, top] = pair(svg, "frame");
    const [xLow, xHigh] = pair(svg, "x");
    const [yLow, yHigh] = pair(svg, "y");
    const across = left + ((x - xLow) / (xHigh - xLow)) * (right - left);
    const up = bottom + ((y - yLow) / (yHigh - yLow)) * (top - bottom);
    return [across, up];
  }

  function draw(svg, kind, xs, ys) {
    const points = xs.map((x, k) => at(svg, x, ys[k]).map((place) => place.toFixed(1)).join(","));
    svg.querySelector(`polyline.${kind}`).setAttribute("points", points.join(" "));
  }

  const write = (svg, kind, text) => { svg.querySelector(`text.${kind}`).textContent = text; };
  const shown = (value) => String(value).replace("-", "−");

  function choice(box, id, label, names) {
    const words = document.createElement("label");
    words.htmlFor = id;
    words.textContent = label;
    const select = document.createElement("select");
    select.id = id;
    for (const [value, name] of names) select.add(new Option(name, value));
    box.append(words, select);
    return select;
  }

  function slider(box, id, label) {
    const words = document.createElement("label");
    words.htmlFor = id;
    words.textContent = label;
    const input = document.createElement("input");
    input.type = "range";
    input.id = id;
    const output = document.createElement("output");
    output.htmlFor = id;
    box.append(words, input, output);
    return [input, output, words];
  }

  // The slider counts steps; what it stands for is said in words.
  function say(input, output, text) {
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
  }

  function controls(svg) {
    const box = document.createElement("div");
    box.className = "narl-controls";
    svg.parentElement.before(box);
    return box;
  }

  function lossPicture() {
    const [loss, pull] = [panel("loss"), panel("pull")];
    if (!loss || !pull) return;
    const box = controls(loss);
    const names = Object.entries(numbers.losses).map(([key, found]) => [key, found.title]);
    const which = choice(box, "narl-loss", "Loss", names);
    const [input, output, label] = slider(box, "narl-hyperparameter", "q");

    function show() {
      const found = numbers.losses[which.value];
      const k = Number(input.value);
      const text = `${found.name} = ${found.values[k]}`;
      draw(loss, "now", numbers.p, found.loss[k]);
      draw(pull, "now", numbers.p, found.pull[k]);
      for (const svg of [loss, pull]) write(svg, "now", `${found.title}, ${text}`);
      say(input, output, `${text} (${found.note})`);
    }

    function choose() {
      const found = numbers.losses[which.value];
      label.textContent = found.name;
      input.min = 0;
      input.max = found.values.length - 1;
      input.value = which.value === "gce" ? found.values.indexOf(0.7) : Math.floor(found.values.length / 2);
      show();
    }

    which.addEventListener("change", choose);
    input.addEventListener("input", show);
    choose();
  }

  function between(q) {
    const { values, loss } = numbers.losses.gce;
    const inside = Math.max(q, values[0]);
    let k = values.length - 2;
    while (k > 0 && values[k] > inside) k -= 1;
    const share = (inside - values[k]) / (values[k + 1] - values[k]);
    return loss[k].map((value, place) => value + share * (loss[k + 1][place] - value));
  }

  function marginPicture() {
    const [margins, adjusted] = [panel("margin"), panel("adjusted")];
    if (!margins || !adjusted) return;
    const learned = numbers.adjuster;
    const kinds = ["one", "two", "three"];
    const box = controls(margins);
    const when = choice(box, "narl-snapshot", "Adjuster", learned.snapshots.map((name, k) => [k, name]));
    const [input, output] = slider(box, "narl-margin", "Margin");
    when.value = String(learned.snapshots.length - 1);
    input.min = 0;
    input.max = learned.margins.length - 1;
    input.value = learned.margins.indexOf(-5);

    function show() {
      const place = Number(input.value);
      const margin = learned.margins[place];
      const rows = learned.q[Number(when.value)];
      kinds.forEach((kind, family) => {
        const q = rows[family][place];
        draw(margins, kind, learned.margins, rows[family]);
        draw(adjusted, kind, numbers.p, between(q));
        write(adjusted, kind, `q = ${q.toFixed(2)}`);
      });
      const [x] = at(margins, margin, 0);
      const line = margins.querySelector("line.here");
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      const said = learned.families.map((name, family) => `${name} ${rows[family][place].toFixed(2)}`);
      say(input, output, `margin ${shown(margin)}: q is ${said.join(", ")}`);
    }

    when.addEventListener("change", show);
    input.addEventListener("input", show);
    show();
  }

  if (numbers) {
    lossPicture();
    marginPicture();
  }
})();

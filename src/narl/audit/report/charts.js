"use strict";
// Charts of the report. Names that come from data are escaped: plotly takes some tags in texts for its own.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (share, digits = 1) => share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`;
// Nothing is sure to the last digit.
const chance = (share) => share === null ? "–" : share > 0.99 ? "over 99 %" : share < 0.01 ? "under 1 %" : percent(share, 0);
const fixed = (value, digits) => value === null ? "–" : value.toFixed(digits).replace("-", "−");
const count = (number) => Math.round(number).toLocaleString("en-GB");
const cutName = (name, most) => Array.from(name).length <= most ? name : `${Array.from(name).slice(0, most - 1).join("")}…`;
const NARROW = () => window.matchMedia("(max-width: 40rem)").matches;
const FAMILY = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const DASHES = ["solid", "dash", "dot", "dashdot"], SIGNS = ["circle", "square", "diamond", "triangle-up"];

// Without control characters, isolated from its neighbours' writing direction.
function plotName(name, most = 60) {
  const plain = cutName(name.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, " "), most);
  return `\u2068${plain.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")}\u2069`;
}

function layoutOf(extra) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, fixedrange: true, automargin: true };
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13, color: css("--ink") },
    margin: { l: 10, r: 12, t: 8, b: 10 }, dragmode: false, height: 320, hovermode: "closest",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--quiet"), font: { color: css("--ink"), size: 13 }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    ...rest, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
  };
}

function draw(id, traces, layout) {
  const whole = layoutOf(layout);
  at(id).style.height = `${whole.height}px`; // when the window changes, plotly asks the box how high it is
  Plotly.react(id, traces, whole, { displayModeBar: false, responsive: true, showTips: false });
}

function drawByClass(data) {
  const shown = data.by_class.map((entry, number) => ({ ...entry, name: data.classes[number] }))
    .sort((a, b) => b.rate - a.rate).slice(0, 30).reverse();
  const rows = shown.map((_, place) => place);
  const hover = shown.map((entry) =>
    `<b>${plotName(entry.name)}</b><br>${percent(entry.rate)} of its samples carry another label` +
    `<br>range ${percent(entry.low)} to ${percent(entry.high)}` +
    (entry.actual === null ? "" : `<br>in truth ${percent(entry.actual)}`) +
    `<br>${count(entry.flagged)} of its ${count(entry.labels)} labels are flagged`);
  const traces = [{
    x: shown.map((entry) => entry.rate === null ? null : 100 * entry.rate), y: rows, mode: "markers", name: "estimated, with its range",
    marker: { color: css("--wrong"), size: 9 }, hoverinfo: "text", hovertext: hover,
    error_x: {
      type: "data", symmetric: false, color: css("--wrong"), thickness: 2, width: 0,
      array: shown.map((entry) => 100 * Math.max(0, entry.high - entry.rate)),
      arrayminus: shown.map((entry) => 100 * Math.max(0, entry.rate - entry.low)),
    },
  }];
  if (shown.some((entry) => entry.actual !== null)) traces.push({
    x: shown.map((entry) => entry.actual === null ? null : 100 * entry.actual), y: rows, mode: "markers", name: "in truth",
    marker: { color: css("--ink"), symbol: "line-ns-open", size: 13, line: { width: 2 } }, hoverinfo: "text", hovertext: hover,
  });
  draw("by-class", traces, {
    height: 130 + 24 * rows.length, showlegend: true,
    xaxis: { title: { text: "wrong labels (%)" }, rangemode: "tozero" },
    yaxis: { tickvals: rows, ticktext: shown.map((entry) => plotName(entry.name, 16)), showgrid: false, range: [-0.7, rows.length - 0.3] },
  });
}

// Black or white, whichever can be read better on a cell of the heat map.
function inkOn(share) {
  const [from, to, part] = share < 0.5 ? ["--low", "--middle", 2 * share] : ["--middle", "--high", 2 * share - 1];
  const light = [1, 3, 5].map((place) => {
    const [a, b] = [from, to].map((name) => parseInt(css(name).slice(place, place + 2), 16) / 255);
    return (a + (b - a) * part) ** 2.2;
  });
  return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > 0.18 ? "#000000" : "#ffffff";
}

function drawConfusion(data, onCell) {
  const { shown, matrix, low, high, flagged } = data.confusion, few = shown.length <= 12 && !NARROW(), gap = shown.length > 15 ? 0 : 1;
  const off = (row, column, value) => row === column ? null : value;
  const z = matrix.map((values, row) => values.map((value, column) => off(row, column, value === null ? null : 100 * value)));
  const largest = Math.max(0.1, ...z.flat().filter((value) => value !== null));
  const hover = matrix.map((values, row) => values.map((value, column) => row === column ? "" :
    `in truth <b>${plotName(data.classes[shown[row]])}</b>, labelled <b>${plotName(data.classes[shown[column]])}</b>` +
    `<br>${percent(value)} of that class, range ${percent(low[row][column])} to ${percent(high[row][column])}` +
    `<br>${count(flagged[row][column])} such labels are flagged: click to see some`));
  const names = shown.map((number) => plotName(data.classes[number], NARROW() ? 9 : 14)), places = shown.map((_, place) => place);
  const trace = {
    type: "heatmap", z, x: places, y: places, zmin: 0, zmax: largest, hoverinfo: "text", text: hover, xgap: gap, ygap: gap, hoverongaps: false,
    colorscale: [[0, css("--low")], [0.5, css("--middle")], [1, css("--high")]],
    colorbar: NARROW()
      ? { title: { text: "% of the true class", side: "top" }, orientation: "h", y: 1, yanchor: "bottom", thickness: 10, outlinewidth: 0 }
      : { title: { text: "% of the true class", side: "right" }, thickness: 10, outlinewidth: 0 },
  };
  const annotations = !few ? [] : z.flatMap((values, row) => values.map((value, column) => ({ value, row, column })))
    .filter(({ value }) => value !== null && value >= 0.05).map(({ value, row, column }) => ({
      x: column, y: row, text: value < 9.95 ? value.toFixed(1) : value.toFixed(0), showarrow: false,
      font: { size: 11, color: inkOn(value / largest) },
    }));
  draw("confusion", [trace], {
    height: Math.min(760, Math.max(320, (NARROW() ? 220 : 150) + 26 * shown.length)), annotations,
    plot_bgcolor: css("--line"), // what is left open: the diagonal
    xaxis: { title: { text: "given label", standoff: 14 }, tickvals: places, ticktext: names, showgrid: false, tickangle: NARROW() ? -90 : -45, constrain: "domain" },
    yaxis: { title: { text: "true class, as estimated" }, tickvals: places, ticktext: names, showgrid: false, autorange: "reversed" },
  });
  const element = document.getElementById("confusion");
  element.removeAllListeners?.("plotly_click");
  element.on("plotly_click", ({ points: [point] }) => {
    if (point.x !== point.y) onCell(shown[point.y], shown[point.x]);
  });
}

const line = (x) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: css("--ink"), width: 2, dash: "dot" } });

function drawHistogram(data, threshold) {
  const { edges, all, wrong } = data.scores, width = edges[1] - edges[0];
  const middles = all.map((_, bin) => edges[bin] + width / 2);
  const bars = (values, name, colour, pattern, opacity) => ({
    type: "bar", x: middles, y: values, width, name, opacity, textposition: "none",
    marker: { color: colour, pattern: { shape: pattern, size: 6, solidity: 0.3, bgcolor: colour, fgcolor: css("--card") } },
    hoverinfo: "text", hovertext: values.map((value, bin) =>
      `score ${edges[bin].toFixed(2)} to ${edges[bin + 1].toFixed(2)}<br>${count(value)} labels${wrong ? `, ${name}` : ""}`),
  });
  const traces = wrong
    ? [bars(all.map((value, bin) => value - wrong[bin]), "right in truth", css("--right"), "", 1),
       bars(wrong, "wrong in truth", css("--wrong"), "/", 0.75)]
    : [bars(all, "labels", css("--right"), "", 1)];
  const most = Math.max(...all), some = all.filter((value) => value > 0).sort((a, b) => a - b);
  const log = most > 20 * some[Math.floor(some.length / 2)]; // else one bar would hide all others
  draw("histogram", traces, {
    barmode: "overlay", bargap: 0, showlegend: Boolean(wrong), shapes: [line(threshold)],
    xaxis: { title: { text: "score" }, range: [-0.01, 1.01] },
    yaxis: log
      ? { title: { text: "labels (logarithmic)" }, type: "log", dtick: 1, range: [-0.3, Math.log10(most) + 0.1] }
      : { title: { text: "labels" }, rangemode: "tozero" },
  });
}

function drawQuality(data, threshold) {
  const { flagged, hits, total } = data.scores, steps = flagged.length - 1;
  const x = flagged.map((_, step) => step / steps);
  const precision = hits.map((hit, step) => flagged[step] ? 100 * hit / flagged[step] : null);
  const recall = hits.map((hit) => 100 * hit / total);
  const hover = x.map((value, step) => `threshold ${value.toFixed(3)}: ${count(flagged[step])} flagged` +
    `<br>precision ${precision[step] === null ? "–" : precision[step].toFixed(1)} %, recall ${recall[step].toFixed(1)} %`);
  const trace = (y, name, colour, dash) => ({ x, y, name, mode: "lines", line: { color: colour, width: 2.5, dash }, hoverinfo: "text", hovertext: hover });
  draw("quality", [
    trace(precision, "precision: flagged that are wrong", css("--right"), "solid"),
    trace(recall, "recall: wrong that are flagged", css("--wrong"), "dash"),
  ], {
    shapes: [line(threshold)],
    xaxis: { title: { text: "threshold of the score" }, range: [0, 1] },
    yaxis: { title: { text: "share (%)" }, range: [0, 101] },
  });
}

// The line of the threshold only: a slider must not wait for whole charts.
const moveThreshold = (id, threshold) => Plotly.relayout(id, { shapes: [line(threshold)] });

function drawCurves(data, id, which, title, times) {
  const found = Object.entries(data.curves[which]);
  draw(id, found.map(([name, values], place) => ({
    x: data.curves.epochs, y: values.map((value) => value === null ? null : times * value), name,
    mode: data.curves.epochs.length > 40 ? "lines" : "lines+markers", connectgaps: false,
    line: { color: FAMILY[place % FAMILY.length], width: 2, dash: DASHES[place % DASHES.length] },
    marker: { symbol: SIGNS[place % SIGNS.length], size: 6 },
    hoverinfo: "text", hovertext: values.map((value, epoch) => value === null ? "" :
      `epoch ${data.curves.epochs[epoch]}<br>${name}: ${times === 100 ? percent(value) : value.toFixed(3)}`),
  })), { showlegend: true, xaxis: { title: { text: "epoch" }, ...(data.curves.epochs.length < 10 && { dtick: 1 }) }, yaxis: { title: { text: title } } });
}

function drawHyperparameter(id, entry) {
  const traces = entry.families.flatMap((family, place) => {
    const colour = FAMILY[place % FAMILY.length];
    return [{
      x: [...family.margin, ...[...family.margin].reverse()], y: [...family.high, ...[...family.low].reverse()],
      fill: "toself", fillcolor: `${colour}33`, line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false,
    }, {
      x: family.margin, y: family.median, name: family.name, mode: "lines", hoverinfo: "text",
      line: { color: colour, width: 2.5, dash: DASHES[place % DASHES.length] },
      hovertext: family.margin.map((margin, bin) => `${family.name}<br>margin ${margin.toFixed(2)}` +
        `<br>median ${family.median[bin].toFixed(3)}, eight in ten from ${family.low[bin].toFixed(3)} to ${family.high[bin].toFixed(3)}`),
    }];
  });
  draw(id, traces, {
    showlegend: true, legend: { orientation: "v", x: 0, y: 1.02, yanchor: "bottom" }, height: 320 + 20 * entry.families.length,
    xaxis: { title: { text: "margin" } },
    yaxis: { title: { text: plotName(entry.name) } },
  });
}

"use strict";
/* The charts of a report. Text and tables are in the page already; here they are drawn, toggled and recoloured.
   What a user named is put in the page by textContent only, and escaped for plotly.js, which reads some HTML. */
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "12px,3px,3px,3px,3px,3px"];
  const svgDashes = ["", "7 4", "2 3", "7 3 2 3", "11 4", "11 3 2 3", "9 2 2 2 2 2"];
  const symbols = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star"];
  const redraws = [];

  /* ---- small tools ---- */

  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (value) => (Math.abs(value) >= 1e6 ? value.toExponential(3) : String(Number(value.toPrecision(4))));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const isNumber = (value) => typeof value === "number";

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /** A name that may break between its parts, as `_breakable` of page.py has it. */
  const breakable = (name) =>
    name.split(/(?<=[a-z0-9])(?=[A-Z])|(?<=[(,=_])|(?<=\.)(?=[A-Za-z])/).flatMap((part, index) => (index ? [element("wbr"), part] : [part]));

  /** A table whose numeric cells carry their full value; `groups` is an optional first row of headings: [text, span]. */
  function table(caption, headings, rows, groups = null) {
    const head = element("thead");
    if (groups) head.append(element("tr", {}, ...groups.map(([text, span]) =>
      element("th", { scope: span > 1 ? "colgroup" : "col", colspan: span }, text))));
    head.append(element("tr", {}, ...headings.map((text, index) =>
      element("th", { scope: "col", ...(rows.some((row) => isNumber(row[index])) ? { class: "num" } : {}) }, text))));
    const body = element("tbody");
    for (const row of rows) {
      body.append(element("tr", {}, ...row.map((value, index) => {
        const attributes = isNumber(value) ? { class: "num", "data-value": String(value) } : {};
        return index === 0 ? element("th", { scope: "row", ...attributes }, String(value))
          : element("td", attributes, value === null ? "–" : String(value));
      })));
    }
    return element("table", {}, element("caption", {}, caption), head, body);
  }

  /** Fill a <details> when it is opened, and again when what it shows has changed. */
  function lazyTable(details, make) {
    const fill = () => details.open && details.querySelector(".scroll").replaceChildren(make());
    details.hidden = false;
    details.addEventListener("toggle", fill);
    return fill;
  }

  /* ---- colours ---- */

  const probe = element("span", { hidden: "" });
  document.body.append(probe);
  function color(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }
  const series = (index) => color(`series-${index % 7}`);
  /** The eighth optimizer has the first one's colour, but neither its dashes nor its marker. */
  const pattern = (index) => (index + Math.floor(index / 7)) % 7;
  const translucent = (rgb, alpha) => rgb.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);

  /** An axis that is logarithmic if asked: with ticks at 1, 2 and 5 where all nine digits would run into one another. */
  function scale(log, values) {
    if (!log) return { type: "linear" };
    const positive = values.filter((value) => value > 0);
    const decades = Math.log10(positive.reduce((a, b) => Math.max(a, b), 0) / positive.reduce((a, b) => Math.min(a, b), Infinity));
    return { type: "log", ...(decades >= 0.8 && decades < 3 ? { nticks: Math.max(2, Math.round(decades / 0.5)) } : {}) };
  }

  function layout(xTitle, yTitle, changes) {
    const axis = {
      color: color("soft"), gridcolor: color("grid"), linecolor: color("line"), zeroline: false,
      tickformat: "~g", automargin: true, spikecolor: color("soft"), spikethickness: 1,
    };
    return {
      paper_bgcolor: color("panel"), plot_bgcolor: color("panel"), autosize: true, showlegend: false,
      margin: { l: 48, r: 12, t: 10, b: 44 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("soft") },
      hovermode: "x unified",
      hoverlabel: { bgcolor: color("panel"), bordercolor: color("line"), font: { color: color("ink") }, namelength: 60 },
      ...changes,
      xaxis: { ...axis, title: { text: escaped(xTitle), standoff: 10, font: { size: 13 } }, ...changes.xaxis },
      yaxis: { ...axis, title: { text: escaped(yTitle), standoff: 8, font: { size: 13 } }, ...changes.yaxis },
    };
  }

  /* Charts work without plotly's own buttons; nothing in them takes the focus, and nothing is sent anywhere. */
  const config = { displayModeBar: false, responsive: true, showSendToCloud: false, typesetMath: false, doubleClick: "reset" };

  /** Draw when the chart comes near the window, and from then on whenever `redraw` is called. */
  function chart(target, figure) {
    let near = false;
    const redraw = () => {
      if (!near) return;
      const { traces, design } = figure();
      Plotly.react(target, traces, design, config).then(() => {
        target.dataset.drawn = "true";
        /* plotly.js measures text in a picture of its own, which nobody should meet. */
        document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
      });
    };
    const show = () => { if (!near) { near = true; redraw(); } };
    const watch = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) { watch.disconnect(); show(); }
    }, { rootMargin: "800px" });
    watch.observe(target);
    addEventListener("beforeprint", show);
    redraws.push(redraw);
    return redraw;
  }

  /* ---- races ---- */

  /** Mean, lowest and highest over the finished seeds, at the steps that all of them have. */
  function curve(race, optimizer, lr, metric) {
    const runs = race.runs.filter((run) => run.optimizer === optimizer.name && run.lr === lr);
    const done = runs.filter((run) => run.status === "done");
    const rows = done.map((run) => new Map(run.columns.step.map((step, index) => [step, index])));
    const made = { step: [], seconds: [], mean: [], low: [], high: [], seeds: done.length, diverged: runs.length - done.length };
    for (const step of rows.length ? rows[0].keys() : []) {
      if (!rows.every((row) => row.has(step))) continue;
      const at = (column) => done.map((run, index) => run.columns[column][rows[index].get(step)]);
      const values = at(metric);
      if (!values.every(isNumber)) continue;
      made.step.push(step);
      made.seconds.push(mean(at("seconds")));
      made.mean.push(mean(values));
      made.low.push(Math.min(...values));
      made.high.push(Math.max(...values));
    }
    return made;
  }

  const ratesOf = (race, optimizer) =>
    [...new Set(race.runs.filter((run) => run.optimizer === optimizer.name).map((run) => run.lr))].sort((a, b) => a - b);

  function raceView(section, race) {
    const control = (name) => section.querySelector(`[data-control="${name}"]`);
    const [metricChoice, byChoice, logY, logX, all] = ["metric", "by", "log-y", "log-x", "all"].map(control);
    const legend = section.querySelector(".legend");
    const status = section.querySelector(".status");
    const curvesChart = section.querySelector('[data-chart="curves"]');
    const sensitivityChart = section.querySelector('[data-chart="sensitivity"]');
    const shown = new Set(race.optimizers);

    metricChoice.append(...race.metrics.map((metric) => element("option", { value: metric }, metric)));
    metricChoice.closest("label").hidden = race.metrics.length < 2;
    section.querySelector(".controls").hidden = legend.hidden = false;

    const state = () => ({
      axis: section.querySelector('input[type="radio"]:checked').value,
      metric: metricChoice.value, by: byChoice.value, logY: logY.checked, logX: logX.checked, all: all.checked,
    });
    const best = (optimizer, view) => curve(race, optimizer, optimizer.best[view.by], view.metric);
    const wordsOf = (optimizer, view) => `${optimizer.name}, lr ${short(optimizer.best[view.by])}`;

    /** Logarithmic by default where the numbers span more than a factor of five and are positive. */
    function chooseScale() {
      const values = race.optimizers.flatMap((optimizer) => best(optimizer, state()).mean);
      logY.checked = !race.larger && values.length > 0 && Math.min(...values) > 0 && Math.max(...values) > 5 * Math.min(...values);
    }

    function lineTraces(optimizer, view) {
      const found = best(optimizer, view);
      const drawn = found[view.axis].map((x, index) => index)
        .filter((index) => (!view.logX || found[view.axis][index] > 0) && (!view.logY || found.low[index] > 0));
      const pick = (column) => drawn.map((index) => found[column][index]);
      const [x, y, low, high] = [view.axis, "mean", "low", "high"].map(pick);
      const ink = series(optimizer.color);
      const every = Math.max(1, Math.round(x.length / 8));
      const line = {
        type: "scatter", mode: "lines+markers", name: escaped(wordsOf(optimizer, view)), x, y,
        line: { color: ink, width: 2.4, dash: dashes[pattern(optimizer.color)] },
        /* Markers now and then, at another place on each curve: enough to tell them apart without colour. */
        marker: { color: ink, symbol: symbols[pattern(optimizer.color)], opacity: 1, line: { width: 0 },
          size: x.map((_, index) => ((index + optimizer.color) % every === 0 ? 8 : 0)) },
        customdata: x.map((_, index) => (found.seeds > 1 ? ` (${short(low[index])} to ${short(high[index])})` : "")),
        hovertemplate: "%{y:.4~g}%{customdata}",
      };
      if (found.seeds < 2) return [line];
      return [{
        type: "scatter", mode: "lines", x: [...x, ...x.toReversed()], y: [...high, ...low.toReversed()],
        fill: "toself", fillcolor: translucent(ink, 0.16), line: { width: 0 }, hoverinfo: "skip",
      }, line];
    }

    function faintTraces(optimizer, view) {
      return ratesOf(race, optimizer).filter((lr) => lr !== optimizer.best[view.by]).map((lr) => {
        const found = curve(race, optimizer, lr, view.metric);
        return { type: "scatter", mode: "lines", x: found[view.axis], y: found.mean, opacity: 0.45, hoverinfo: "skip",
          line: { color: series(optimizer.color), width: 1.1, dash: dashes[pattern(optimizer.color)] } };
      });
    }

    /** The tuned curves fill the frame; a bad learning rate that explodes may leave it at the top. */
    function verticalRange(view, traces) {
      if (!view.all) return {};
      const tuned = [...shown].flatMap((optimizer) => best(optimizer, view).high);
      const usable = (value) => isNumber(value) && (!view.logY || value > 0);
      const lows = traces.flatMap((trace) => trace.y).filter(usable);
      const place = view.logY ? Math.log10 : (value) => value;
      const bottom = place(lows.reduce((a, b) => Math.min(a, b), Infinity));
      const top = place(tuned.filter(usable).reduce((a, b) => Math.max(a, b), -Infinity));
      const margin = 0.06 * (top - bottom) || 0.5;
      return Number.isFinite(margin) ? { range: [bottom - margin, top + margin] } : {};
    }

    const axisName = (view) => (view.axis === "step" ? "step" : "seconds of training");

    function curvesFigure() {
      const view = state();
      const visible = race.optimizers.filter((optimizer) => shown.has(optimizer));
      const traces = [
        ...(view.all ? visible.flatMap((optimizer) => faintTraces(optimizer, view)) : []),
        ...visible.flatMap((optimizer) => lineTraces(optimizer, view)),
      ];
      const all = (key) => traces.flatMap((trace) => trace[key]);
      return { traces, design: layout(axisName(view), view.metric, {
        xaxis: { ...scale(view.logX, all("x")), unifiedhovertitle: { text: view.axis === "step" ? "step %{x}" : "%{x:.3~g} seconds" } },
        yaxis: { ...scale(view.logY, all("y")), ...verticalRange(view, traces) },
      }) };
    }

    /** What the chart shows, in words: said aloud when a toggle changes it, and written under it. */
    function describe(view) {
      const seeds = Math.max(...race.optimizers.map((optimizer) => best(optimizer, view).seeds));
      const scales = `${view.logY ? "logarithmic" : "linear"} vertical and ${view.logX ? "logarithmic" : "linear"} horizontal axis`;
      return `${view.metric} against ${axisName(view)}, ${scales}, ${shown.size} of ${race.optimizers.length} optimizers, each at the learning rate of its best `
        + `${byChoice.selectedOptions[0].textContent}${seeds > 1 ? "; line: mean, band: range over seeds" : "; one seed"}`
        + `${view.all ? "; thin lines: all other learning rates" : ""}.`;
    }

    function endings(view) {
      return race.optimizers.filter((optimizer) => shown.has(optimizer)).map((optimizer) => {
        const found = best(optimizer, view);
        return `${wordsOf(optimizer, view)}: ${found.mean.length ? short(found.mean.at(-1)) : "diverged"}`;
      }).join("; ");
    }

    function drawLegend(view) {
      for (const [index, optimizer] of race.optimizers.entries()) {
        const found = best(optimizer, view);
        const end = found.mean.length ? short(found.mean.at(-1)) : "diverged";
        legend.querySelectorAll(".remark")[index].textContent =
          `lr ${short(optimizer.best[view.by])} · ${end}${found.diverged && found.mean.length ? ` · ${found.diverged} diverged` : ""}`;
      }
    }

    function swatch(index) {
      const node = (tag, attributes) => {
        const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
        for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
        return made;
      };
      const ink = `var(--series-${index % 7})`;
      const shapes = {
        circle: "M22 3a4 4 0 1 0 .01 0z", square: "M18 3h8v8h-8z", diamond: "M22 1.5l5.5 5.5-5.5 5.5-5.5-5.5z",
        "triangle-up": "M22 2l5 9h-10z", "triangle-down": "M22 12l-5-9h10z",
        cross: "M20 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z", star: "M22 1l1.8 4 4.2.4-3.2 2.9 1 4.2-3.8-2.2-3.8 2.2 1-4.2-3.2-2.9 4.2-.4z",
      };
      const svg = node("svg", { width: 44, height: 14, viewBox: "0 0 44 14", "aria-hidden": "true" });
      const line = node("path", { d: "M1 7h42", fill: "none", "stroke-width": 2.4, "stroke-dasharray": svgDashes[pattern(index)] });
      const marker = node("path", { d: shapes[symbols[pattern(index)]] });
      line.style.stroke = marker.style.fill = ink;
      svg.append(line, marker);
      return svg;
    }

    /* sensitivity */

    const hasGrid = race.optimizers.some((optimizer) => ratesOf(race, optimizer).length > 1);

    function sensitivity(optimizer, view) {
      return ratesOf(race, optimizer).map((lr) => {
        const runs = race.runs.filter((run) => run.optimizer === optimizer.name && run.lr === lr);
        const ends = runs.filter((run) => run.status === "done").map((run) => run.columns[view.metric].at(-1)).filter(isNumber);
        return { lr, seeds: runs.length, diverged: runs.filter((run) => run.status !== "done").length,
          mean: ends.length ? mean(ends) : null,
          low: ends.length ? Math.min(...ends) : null, high: ends.length ? Math.max(...ends) : null };
      });
    }

    function sensitivityFigure() {
      const view = state();
      const rows = race.optimizers.map((optimizer) => sensitivity(optimizer, view));
      const highest = rows.flat().reduce((top, cell) => (cell.high === null ? top : Math.max(top, cell.high)), -Infinity);
      const lowest = rows.flat().reduce((low, cell) => (cell.low === null ? low : Math.min(low, cell.low)), Infinity);
      /* Where all seeds diverged: beyond the worst number. */
      const worst = race.larger ? lowest - 0.1 * Math.abs(lowest) : highest + 0.5 * Math.abs(highest);
      const ceiling = Number.isFinite(worst) ? worst : 1;
      const positive = rows.flat().every((cell) => cell.low === null || cell.low > 0);
      const traces = race.optimizers.flatMap((optimizer, index) => {
        if (!shown.has(optimizer)) return [];
        const ink = series(optimizer.color);
        const cells = rows[index];
        return [{
          type: "scatter", mode: "lines+markers", name: escaped(optimizer.name),
          x: cells.map((cell) => cell.lr), y: cells.map((cell) => cell.mean ?? ceiling),
          line: { color: ink, width: 2, dash: dashes[pattern(optimizer.color)] },
          marker: { color: ink, size: 9, symbol: cells.map((cell) => (cell.diverged ? "x" : symbols[pattern(optimizer.color)])) },
          error_y: { type: "data", symmetric: false, color: ink, thickness: 1.3, width: 4,
            array: cells.map((cell) => (cell.mean === null ? 0 : cell.high - cell.mean)),
            arrayminus: cells.map((cell) => (cell.mean === null ? 0 : cell.mean - cell.low)) },
          customdata: cells.map((cell) => (cell.mean === null ? "all diverged"
            : short(cell.mean) + (cell.diverged ? ` (${cell.diverged} of ${cell.seeds} diverged)` : ""))),
          hovertemplate: "%{customdata}",
        }];
      });
      const rates = [...new Set(rows.flat().map((cell) => cell.lr))].sort((a, b) => a - b);
      /* The grid's own learning rates as ticks, unless they are too many to read. */
      const ticks = rates.length <= 9 ? { tickmode: "array", tickvals: rates, ticktext: rates.map(short) } : {};
      return { traces, design: layout("learning rate", `final ${view.metric}`, {
        xaxis: { type: rates[0] > 0 ? "log" : "linear", ...ticks, unifiedhovertitle: { text: "learning rate %{x}" } },
        yaxis: scale(positive && !race.larger && (view.logY || view.metric === race.metrics[0]), traces.flatMap((trace) => trace.y)),
      }) };
    }

    /* tables */

    function curvesTable() {
      const view = state();
      const found = race.optimizers.map((optimizer) => best(optimizer, view));
      const steps = [...new Set(found.flatMap((each) => each.step))].sort((a, b) => a - b);
      const places = found.map((each) => new Map(each.step.map((step, index) => [step, index])));
      const rows = steps.map((step) => [step, ...found.flatMap((each, index) => {
        const place = places[index].get(step);
        return ["mean", "low", "high", "seconds"].map((column) => (place === undefined ? null : each[column][place]));
      })]);
      return table(
        `${view.metric}: mean, lowest and highest over the finished seeds, and mean seconds of training`,
        ["step", ...race.optimizers.flatMap(() => ["mean", "lowest", "highest", "seconds"])], rows,
        [["", 1], ...race.optimizers.map((optimizer) => [wordsOf(optimizer, view), 4])],
      );
    }

    function runsTable() {
      const columns = ["step", "seconds", ...race.metrics];
      const rows = race.runs.flatMap((run) => run.columns.step.map((_, index) =>
        [run.optimizer, run.lr, run.seed, run.status, ...columns.map((column) => run.columns[column][index])]));
      return table("As recorded, in full precision", ["optimizer", "learning rate", "seed", "status", ...columns], rows);
    }

    function sensitivityTable() {
      const view = state();
      const rows = race.optimizers.flatMap((optimizer) => sensitivity(optimizer, view).map((cell) =>
        [optimizer.name, cell.lr, cell.mean, cell.low, cell.high, cell.seeds, cell.diverged]));
      return table(`Final ${view.metric} over the finished seeds`,
        ["optimizer", "learning rate", "mean", "lowest", "highest", "seeds", "diverged"], rows);
    }

    const details = (name) => section.querySelector(`[data-table="${name}"]`);
    const updates = [
      chart(curvesChart, curvesFigure),
      lazyTable(details("curves"), curvesTable),
      ...(hasGrid ? [chart(sensitivityChart, sensitivityFigure), lazyTable(details("sensitivity"), sensitivityTable)] : []),
    ];
    lazyTable(details("runs"), runsTable);
    section.querySelector('[data-block="sensitivity"]').hidden = !hasGrid;

    function update() {
      const view = state();
      for (const each of section.querySelectorAll("[data-standings]")) each.hidden = each.dataset.standings !== view.by;
      drawLegend(view);
      const words = describe(view);
      status.textContent = `Shown: ${words}`;
      curvesChart.setAttribute("aria-label",
        `Line chart of the race on ${race.title}: ${words} At the end: ${endings(view)}. The numbers follow as a table.`);
      sensitivityChart.setAttribute("aria-label",
        `Line chart of the final ${view.metric} against the learning rate on ${race.title}, one line per optimizer. The numbers follow as a table.`);
      for (const each of updates) each();
    }

    for (const optimizer of race.optimizers) {
      const box = element("input", { type: "checkbox" });
      box.checked = true;
      box.addEventListener("change", () => { box.checked ? shown.add(optimizer) : shown.delete(optimizer); update(); });
      legend.append(element("label", {}, box, swatch(optimizer.color), element("strong", {}, ...breakable(optimizer.name)), element("span", { class: "remark" })));
    }
    metricChoice.addEventListener("change", chooseScale);
    section.querySelector(".controls").addEventListener("change", update);
    chooseScale();
    update();
  }

  /* ---- spectra ---- */

  function spectrumView(section, spectrum) {
    const target = section.querySelector('[data-chart="spectrum"]');
    const logs = (values) => values.map(Math.log10);
    const conditions = spectrum.largest.map((largest, index) => largest / spectrum.smallest[index]);
    const line = (name, values, dash) => [
      /* A halo keeps the line readable on cells of any shade. */
      { type: "scatter", mode: "lines", x: spectrum.steps, y: logs(values), line: { color: color("panel"), width: 5 }, opacity: 0.75, hoverinfo: "skip" },
      { type: "scatter", mode: "lines", name, x: spectrum.steps, y: logs(values), line: { color: color("ink"), width: 1.8, dash },
        customdata: values.map(short), hovertemplate: "%{customdata}" },
    ];
    chart(target, () => ({
      traces: [
        { type: "heatmap", x: spectrum.columns, y: spectrum.bins, z: spectrum.density, zmin: 0, zmax: spectrum.ceiling, hoverinfo: "skip",
          colorscale: [[0, color("heat-low")], [0.35, color("heat-middle")], [1, color("heat-high")]],
          showscale: false },
        ...line("largest", spectrum.smooth_largest, "solid"),
        ...line("smallest", spectrum.smooth_smallest, "dash"),
      ],
      design: layout("step", "eigenvalue of GᵀG", {
        xaxis: { showgrid: false, unifiedhovertitle: { text: "step %{x}" } },
        yaxis: { showgrid: false, tickprefix: "10<sup>", ticksuffix: "</sup>" },
      }),
    }));
    const words = `Each column is the density of the eigenvalues of GᵀG (squared singular values, window ${spectrum.window}) at one time; `
      + "lines: the largest (solid) and the smallest (dashed), smoothed by a median filter."
      + (spectrum.left_out ? ` Eigenvalues that are zero to rounding are not drawn: ${spectrum.left_out}.` : "");
    section.querySelector(".status").textContent = words;
    section.querySelector(".ramp-end").textContent = `${short(100 * spectrum.ceiling)} % or more of a column's eigenvalues`;
    target.setAttribute("aria-label",
      `Heat-map of the spectrum of ${spectrum.label} from step ${spectrum.steps[0]} to ${spectrum.steps.at(-1)}. `
      + `At the end the largest eigenvalue is ${short(spectrum.largest.at(-1))}, the smallest ${short(spectrum.smallest.at(-1))}, `
      + `their ratio ${short(conditions.at(-1))}. The numbers follow as a table.`);
    lazyTable(section.querySelector('[data-table="spectrum"]'), () => table(
      "Eigenvalues of GᵀG as recorded, before smoothing", ["step", "smallest", "largest", "ratio"],
      spectrum.steps.map((step, index) => [step, spectrum.smallest[index], spectrum.largest[index], conditions[index]])));
  }

  /* ---- theme and contents ---- */

  const themeButton = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  function recolor() {
    themeButton.textContent = isDark() ? "Light theme" : "Dark theme";
    for (const redraw of redraws) redraw();
  }
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; recolor(); });
  /* The latest wish counts: a change of the system's scheme takes back what the button said. */
  system.addEventListener("change", () => { delete root.dataset.theme; recolor(); });

  function markPlace() {
    const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id).setAttribute("aria-current", "location");
      }
    }, { rootMargin: "0px 0px -75% 0px" });
    for (const id of links.keys()) watch.observe(document.getElementById(id));
  }

  document.querySelectorAll("[data-race]").forEach((section) => raceView(section, content.races[section.dataset.race]));
  document.querySelectorAll("[data-spectrum]").forEach((section) => spectrumView(section, content.spectra[section.dataset.spectrum]));
  recolor();
  markPlace();
})();

(() => {
  "use strict";
{% include "charts.js" %}
  function drawAll() {
    Object.keys(page.figures).forEach(draw);
    for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.color = themed(swatch.dataset.colour);
    drawTimeline();
    drawFilm();
  }

  hideByName(element("curve-legend"), (name) => /^(roc|pr)/.test(name));

  // The timeline: one episode and one step, shown by the drawing, the plot's cursor, the slider and the readout.
  const { layout: slide, episodes } = page.timeline;
  const slider = element("step");
  const plot = element("plot-timeline");
  const svg = element("drawing");
  let episode = episodes[0];
  let step = 0;
  let timer = null;
  let chosenThreshold = null;  // the reader's, once the slider was moved

  function drawTimeline() {
    const figure = themed(episode.figure);
    figure.layout.shapes[0].x0 = figure.layout.shapes[0].x1 = step;
    const level = figure.layout.shapes.find((shape) => shape.type === "line" && shape.y0 === shape.y1);
    if (level && chosenThreshold !== null) level.y0 = level.y1 = chosenThreshold;
    Plotly.react(plot, figure.data, figure.layout, settings);
    drawSlide();
  }

  function shape(name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
  }

  function drawSlide() {
    if (!slide) return;
    const size = printing ? 640 : svg.clientWidth;
    if (!size) return;
    const margin = 14;
    const [left, right] = slide.walls;
    const scale = (size - 2 * margin) / (right - left);
    const at = (position) => margin + (position - left) * scale;
    const floor = 84;
    const roomy = scale > 64;
    const side = slide.width * scale;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${size} 112`);
    const goal = episode.goal[0];
    const zone = 2 * slide.goal_radius * scale;
    shape("rect", { class: "goal", x: at(goal) - zone / 2, y: 26, width: zone, height: floor - 26 });
    shape("line", { class: "limit", x1: at(slide.limit), x2: at(slide.limit), y1: 26, y2: floor });
    if (roomy) {  // else the names run into each other; the legend below has them too
      shape("text", { x: at(goal), y: 18, "text-anchor": "middle" }, "goal zone");
      shape("text", { x: at(slide.limit), y: 18, "text-anchor": "middle" }, "agent’s limit");
    }
    shape("rect", { class: "wall", x: 0, y: 26, width: margin, height: floor - 26 });
    shape("rect", { class: "wall", x: at(right), y: 26, width: margin, height: floor - 26 });
    shape("line", { class: "floor", x1: 0, x2: size, y1: floor, y2: floor });
    for (let tick = Math.ceil(left); tick <= right; tick += 1) {
      if (!roomy && tick % 5) continue;
      shape("text", { x: at(tick), y: floor + 17, "text-anchor": "middle" }, String(tick).replace("-", "−"));
    }
    for (const name of ["agent", "object"]) {
      const track = episode.tracks[name];
      for (let past = Math.max(0, step - 6); past <= step; past += 1) {
        const kind = past < step ? `${name} ghost` : name;
        const extra = past < step ? {} : { id: `drawn-${name}` };
        shape("rect", { class: kind, x: at(track[past]) - side / 2, y: floor - side, width: side, height: side, ...extra });
      }
    }
    if (episode.events.influence[step]) {
      const x = at(episode.tracks.object[step]);
      shape("circle", { class: "halo", cx: x, cy: floor - side / 2, r: side / 2 + 6 });
    }
  }

  function answer(id, happened) {
    const node = element(id);
    if (!node) return "";
    node.textContent = happened === undefined ? "–" : happened ? "yes" : "no";
    node.className = happened ? "yes" : "no";
    return happened ? `, ${id.replace("read-", "")}` : "";
  }

  function show(next) {
    step = Math.min(Math.max(next, 0), episode.length);
    slider.value = step;
    const score = episode.score[step];
    const number = score === undefined ? "–" : score.toFixed(3);
    element("read-step").textContent = `${step} of ${episode.length}`;
    element("read-score").textContent = number;
    const words = answer("read-influence", episode.events.influence[step]);
    const more = answer("read-contact", (episode.events.contact || [])[step]);
    slider.setAttribute("aria-valuetext", `step ${step} of ${episode.length}, score ${number}${words}${more}`);
    drawSlide();
    if (plot.layout) Plotly.relayout(plot, { "shapes[0].x0": step, "shapes[0].x1": step });
  }

  function play(on) {
    clearInterval(timer);
    timer = null;
    if (on) {
      if (step >= episode.length) show(0);
      timer = setInterval(() => (step < episode.length ? show(step + 1) : play(false)), 160);
    }
    element("play").setAttribute("aria-label", on ? "Pause" : "Play");
    element("play-shape").setAttribute("d", on ? "M3 1.5h4v13H3zM9.5 1.5h4v13h-4z" : "M3 1.5v13l11-6.5z");
  }

  function choose(index) {
    play(false);
    episode = episodes[index];
    slider.max = episode.length;
    // Start just before the first influenced step: that is what there is to see.
    const first = episode.events.influence.indexOf(true);
    step = Math.max(0, first);
    drawTimeline();
    show(step);
  }

  element("episode").addEventListener("change", (event) => choose(Number(event.target.value)));
  element("play").addEventListener("click", () => play(timer === null));
  slider.addEventListener("input", () => { play(false); show(Number(slider.value)); });
  document.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const { top, bottom } = element("timeline").getBoundingClientRect();
    const seen = event.target === document.body && top < window.innerHeight && bottom > 0;
    const inside = seen || element("timeline").contains(event.target);
    if (!move || !inside || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    event.preventDefault();
    play(false);
    show(step + move);
  });

  // The threshold explorer: one of the precomputed points.
  const points = page.explorer;
  const thresholdSlider = element("threshold-slider");
  let point = points.best;
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  adjust.explorer = (figure) => {
    figure.layout.shapes[0].x0 = figure.layout.shapes[0].x1 = points.threshold[point];
  };
  adjust.scores = (figure) => {
    adjust.explorer(figure);
    const note = figure.layout.annotations[0];
    note.x = points.threshold[point];
    if (point !== points.best) note.text = ` threshold ${points.threshold[point].toPrecision(3)} `;
  };

  // The threshold as a point of the curves. All states are above the first one, so that precision is their share there.
  const share = points.precision[0];
  const falseAlarms = () => Math.max(0, (points.flagged[point] - points.recall[point] * share) / (1 - share));
  const mark = (figure, x, y) => figure.data.push({
    type: "scatter", mode: "markers", x: [x], y: [y], showlegend: false, name: "threshold",
    marker: { symbol: "circle-open", size: 13, line: { width: 2.5 }, color: themed("#222222") },
    hovertemplate: "chosen threshold, first seed<extra></extra>",
  });
  adjust.roc = (figure) => mark(figure, falseAlarms(), points.recall[point]);
  adjust.pr = (figure) => mark(figure, points.recall[point], points.precision[point]);

  function explore(next) {
    chosenThreshold = next === points.best ? null : points.threshold[next];
    point = next;
    thresholdSlider.value = point;
    const shown = {
      threshold: points.threshold[point].toPrecision(3),
      precision: points.precision[point].toFixed(3),
      recall: points.recall[point].toFixed(3),
      f1: points.f1[point].toFixed(3),
      flagged: percent(points.flagged[point]),
      false: percent(1 - points.precision[point]),
    };
    for (const [name, text] of Object.entries(shown)) element(`explore-${name}`).textContent = text;
    const words = `threshold ${shown.threshold}, precision ${shown.precision}, recall ${shown.recall}`;
    thresholdSlider.setAttribute("aria-valuetext", words);
    tellPlayers(points.threshold[point]);
    for (const name of ["explorer", "scores", "roc", "pr"]) if (element(`plot-${name}`).layout) draw(name);
    if (plot.layout) drawTimeline();
  }
  thresholdSlider.addEventListener("input", () => explore(Number(thresholdSlider.value)));
  element("best-threshold").addEventListener("click", () => explore(points.best));
  explore(point);

  // Reference values: one estimator at a time; the last trace is the diagonal.
  const reference = element("reference-choice");
  if (reference) {
    adjust.reference = (figure) => {
      figure.data.slice(0, -1).forEach((trace, index) => { trace.visible = index === Number(reference.value); });
    };
    reference.addEventListener("change", () => draw("reference"));
  }

  // Films: a strip of frames above the score, and the chosen step's frame large.
  const films = page.films;
  const filmPlot = element("plot-film");
  const filmSlider = element("film-step");
  let film = films[0];
  let filmStep = 0;
  let marks = [];  // the frames of the strip as [step, button]

  function drawFilm() {
    if (!films.length) return;
    const figure = themed(film.figure);
    figure.layout.shapes[0].x0 = figure.layout.shapes[0].x1 = filmStep;
    Plotly.react(filmPlot, figure.data, figure.layout, settings);
  }

  function showFilm(next) {
    filmStep = Math.min(Math.max(next, 0), film.length - 1);
    filmSlider.value = filmStep;
    element("film-frame").src = film.frames[filmStep];
    const number = film.score[filmStep].toFixed(3);
    element("film-read-step").textContent = `${filmStep} of ${film.length}`;
    element("film-read-score").textContent = number;
    let words = `step ${filmStep} of ${film.length}, score ${number}`;
    for (const name of ["influence", "contact", "heuristic"]) {
      answer(`film-read-${name}`, (film.events[name] || [])[filmStep]);
      if (film.events[name] && film.events[name][filmStep]) words += `, ${name}`;
    }
    filmSlider.setAttribute("aria-valuetext", words);
    const width = film.length / marks.length;
    marks.forEach(([, button], index) => button.setAttribute("aria-current", String(Math.floor(filmStep / width) === index)));
    if (filmPlot.layout) Plotly.relayout(filmPlot, { "shapes[0].x0": filmStep, "shapes[0].x1": filmStep });
  }

  function chooseFilm(index) {
    if (!films.length) return;
    film = films[index];
    filmSlider.max = film.length - 1;
    const count = Math.min(filmPlot.clientWidth < 560 ? 5 : 10, film.length);
    marks = Array.from({ length: count }, (_, place) => {
      const step = Math.floor(((place + 0.5) * film.length) / count);  // the middle of its share of the steps
      const button = document.createElement("button");
      const image = document.createElement("img");
      button.type = "button";
      button.setAttribute("aria-label", `Step ${step}`);
      image.alt = "";
      image.src = film.frames[step];
      button.append(image);
      button.addEventListener("click", () => showFilm(step));
      return [step, button];
    });
    element("film-strip").replaceChildren(...marks.map(([, button]) => button));
    filmStep = Math.max(0, film.events.influence.indexOf(true));
    drawFilm();
    showFilm(filmStep);
  }

  if (films.length) {
    element("film-episode").addEventListener("change", (event) => chooseFilm(Number(event.target.value)));
    filmSlider.addEventListener("input", () => showFilm(Number(filmSlider.value)));
  }

  drawAll();
  choose(0);
  chooseFilm(0);
  plot.on("plotly_hover", (event) => { if (timer === null) show(Math.round(event.points[0].x)); });
  if (svg) new ResizeObserver(drawSlide).observe(svg);
  if (films.length) filmPlot.on("plotly_hover", (event) => showFilm(Math.round(event.points[0].x)));
  dark.addEventListener("change", drawAll);
})();

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

  function drawTimeline() {
    const figure = themed(episode.figure);
    figure.layout.shapes[0].x0 = figure.layout.shapes[0].x1 = step;
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

{% include "detection_parts.js" %}
  drawAll();
  choose(0);
  chooseFilm(0);
  plot.on("plotly_hover", (event) => { if (timer === null) show(Math.round(event.points[0].x)); });
  if (svg) new ResizeObserver(drawSlide).observe(svg);
  if (films.length) filmPlot.on("plotly_hover", (event) => showFilm(Math.round(event.points[0].x)));
  dark.addEventListener("change", drawAll);
})();

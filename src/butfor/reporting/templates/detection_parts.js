  // The threshold explorer: one of the precomputed points.
  const points = page.explorer;
  const thresholdSlider = element("threshold-slider");
  let point = points.best;
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  adjust.explorer = (figure) => {
    figure.layout.shapes[0].x0 = figure.layout.shapes[0].x1 = points.threshold[point];
  };

  function explore(next) {
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
    const at = points.threshold[point];
    if (element("plot-explorer").layout) Plotly.relayout("plot-explorer", { "shapes[0].x0": at, "shapes[0].x1": at });
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


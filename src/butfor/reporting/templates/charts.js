  const page = JSON.parse(document.getElementById("page-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const settings = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]] };
  const element = (id) => document.getElementById(id);
  const hidden = new Set();
  const adjust = { };  // name of a figure -> function that applies the reader's choice
  let printing = false;

  // Figures carry the colours of a light page; page.dark maps them to those of a dark one. All are replaced at once:
  // a colour of the dark page may also be another colour of the light one.
  const light = new RegExp(Object.keys(page.dark).map((colour) => colour.replace("(", "\\(")).join("|"), "g");
  function themed(value) {
    if (!dark.matches || printing) return structuredClone(value);
    return JSON.parse(JSON.stringify(value).replace(light, (colour) => page.dark[colour]));
  }

  function draw(name) {
    const figure = themed(page.figures[name]);
    for (const trace of figure.data) if (hidden.has(trace.legendgroup)) trace.visible = false;
    if (adjust[name]) adjust[name](figure);
    Plotly.react(`plot-${name}`, figure.data, figure.layout, settings);
  }

  // The reader's threshold also moves the line in the chart of a player.
  function tellPlayers(value) {
    window.butforThreshold = value;
    document.dispatchEvent(new Event("butfor-threshold"));
  }

  // Names in a legend hide and show their traces in the figures that `belongs` chooses.
  function hideByName(legend, belongs) {
    for (const button of legend.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        const name = button.dataset.detector;
        const shown = hidden.delete(name);
        if (!shown) hidden.add(name);
        button.setAttribute("aria-pressed", String(shown));
        Object.keys(page.figures).filter(belongs).forEach(draw);
      });
    }
  }

  // Paper is narrower than most screens and always light.
  function forPrint(on) {
    printing = on;
    drawAll();  // each page has its own
    for (const div of document.querySelectorAll(".plot")) {
      const width = on ? (div.closest(".three") ? 205 : div.closest(".two") ? 310 : 650) : null;
      Plotly.relayout(div, on ? { width, autosize: false } : { width, autosize: true });
    }
    if (!on) for (const div of document.querySelectorAll(".plot")) Plotly.Plots.resize(div);
  }
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));

  // A chart that was drawn while its part of the page was closed has no width.
  for (const part of document.querySelectorAll("details")) {
    part.addEventListener("toggle", () => {
      if (part.open) for (const div of part.querySelectorAll(".plot")) Plotly.Plots.resize(div);
    });
  }

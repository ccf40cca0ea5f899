(() => {
  "use strict";
{% include "charts.js" %}
  let chosen = "mean";  // or iqm, or seeds
  const choices = document.querySelectorAll("[data-shown]");

  // The curves of success have all choices; other curves are means.
  const choose = (kinds) => (figure) => {
    for (const trace of figure.data) trace.visible = trace.meta === (kinds ? chosen : "mean") && !hidden.has(trace.legendgroup);
    const ends = figure.data.filter((trace) => trace.visible).map((trace) => Math.max(...trace.x));
    if (ends.length) figure.layout.xaxis.range = [0, 1.02 * Math.max(...ends)];
  };

  const curves = Object.keys(page.figures).filter((name) => name.startsWith("curves"));
  for (const name of curves) adjust[name] = choose(name === "curves");

  function drawAll() {
    Object.keys(page.figures).forEach(draw);
    for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.color = themed(swatch.dataset.colour);
  }

  for (const button of choices) {
    button.addEventListener("click", () => {
      chosen = button.dataset.shown;
      for (const other of choices) other.setAttribute("aria-pressed", String(other === button));
      draw("curves");
    });
  }
  if (element("curve-legend")) hideByName(element("curve-legend"), (name) => /^(curves|trained)/.test(name));
  drawAll();
  dark.addEventListener("change", drawAll);
})();

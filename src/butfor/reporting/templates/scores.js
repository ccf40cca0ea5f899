(() => {
  "use strict";
{% include "charts.js" %}
  function drawAll() {
    Object.keys(page.figures).forEach(draw);
    for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.color = themed(swatch.dataset.colour);
  }
  // The threshold: one of the given ones, drawn as the first shape of the charts of scores.
  const points = page.explorer;
  const slider = element("threshold-slider");
  if (slider) {
    const along = (name) => (/^spread/.test(name) ? "x" : /^(most|least)/.test(name) ? "y" : null);
    const shown = Object.keys(page.figures).filter(along);
    let value = points.threshold[points.chosen];
    tellPlayers(value);
    for (const name of shown) {
      adjust[name] = (figure) => {
        const shape = figure.layout.shapes[0];
        shape[`${along(name)}0`] = shape[`${along(name)}1`] = value;
        for (const note of figure.layout.annotations) if (along(name) === "x") { note.x = value; note.text = ` ${value.toPrecision(2)} nats `; }
      };
    }
    slider.addEventListener("input", () => {
      const place = Number(slider.value);
      value = points.threshold[place];
      for (const node of document.querySelectorAll("[data-threshold]")) node.textContent = String(Number(value.toPrecision(3)));
      for (const node of document.querySelectorAll("[data-share]")) node.textContent = `${(100 * points.shares[Number(node.dataset.share)][place]).toFixed(1)} %`;
      slider.setAttribute("aria-valuetext", `${value.toPrecision(3)} nats`);
      tellPlayers(value);
      shown.forEach(draw);
    });
  }
  drawAll();
  dark.addEventListener("change", drawAll);
})();

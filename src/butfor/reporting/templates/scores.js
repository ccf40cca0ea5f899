(() => {
  "use strict";
{% include "charts.js" %}
  function drawAll() {
    Object.keys(page.figures).forEach(draw);
    for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.color = themed(swatch.dataset.colour);
  }
  drawAll();
  dark.addEventListener("change", drawAll);
})();

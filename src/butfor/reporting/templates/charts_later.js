// Plotly is large. Where a player is seen first, plotly and the charts follow its first picture.
(() => {
  "use strict";
  let begun = false;
  function begin() {
    if (begun) return;
    begun = true;
    for (const id of ["plotly", "charts"]) {
      const script = document.createElement("script");
      script.textContent = document.getElementById(id).textContent;
      document.body.append(script);
    }
  }
  const first = document.querySelector(".bf-player");
  if (!first || first.getBoundingClientRect().top > window.innerHeight) return begin();
  first.addEventListener("butfor-drawn", () => setTimeout(begin), { once: true });
  setTimeout(begin, 4000);  // a page that is opened in a tab behind draws no player
})();

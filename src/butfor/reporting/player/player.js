// The player: timeline, controls and chart around a stage that draws the scene. One for each .bf-player of the page.
(() => {
  "use strict";
  const KINDS = { float32: Float32Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array };
  const LINES = ["influence", "other", "contact", "goal", "soft"];
  const FAINT_EDGE = 0.1;  // nats; arrows are drawn above it, if the page around the player has no threshold
  const SMALL_SCORE = 0.3;  // nats; lower scores are not stretched to the full height and colour
  const SPEEDS = [0.125, 0.25, 0.5, 1];

  function unpack(packed) {
    if (!packed) return null;
    const text = atob(packed.data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return new KINDS[packed.kind](bytes.buffer);
  }

  function readScene(packed) {
    const bodies = packed.bodies.map((body) => ({ opacity: 1, ...body, vertices: unpack(body.vertices), faces: unpack(body.faces) }));
    const robot = bodies.some((body) => body.form === "mesh");
    const episodes = packed.episodes.map((one) => ({
      ...one,
      pose: unpack(one.pose),
      action: unpack(one.action),
      scores: Object.entries(one.scores).map(([name, values]) => [name, unpack(values)]),
      labels: Object.entries(one.labels).map(([name, values]) => [name, unpack(values)]),
      moves: one.moves && one.moves.map((move) => ({ ...move, bodies: [move.source, move.target], values: unpack(move.values) })),
      edges: (one.edges || []).map((edge) => ({ ...edge, bodies: [edge.source, edge.target].map((name) => packed.places[name] ?? null), values: unpack(edge.values) })),
      reached: unpack(one.reached),
      ghosts: readGhosts(one.ghosts),
    }));
    const scene = { ...packed, bodies, episodes, robot, ...sizesOf(packed, bodies, episodes, robot) };
    for (const { ghosts } of episodes) if (ghosts) ghosts.strength = (t, k, j) => Math.min(1, Math.sqrt(Math.max(ghosts.fanOf(t, k, j) - scene.noFan, 0) / scene.fullFan));
    scene.line = scene.dimensions === 2 && episodes.every((one) => one.pose.every((value, place) => place % 7 !== 1 || value === 0));
    return scene;
  }

  // Ghosts closer together than noFan are not told apart; from fullFan on they are fully visible.
  function sizesOf(packed, bodies, episodes, robot) {
    if (robot) return { noFan: 5e-4, fullFan: 0.03 };
    const low = [Infinity, Infinity, Infinity];
    const high = [-Infinity, -Infinity, -Infinity];
    for (const one of episodes) {
      for (let place = 0; place < one.pose.length; place += 7) {
        if (bodies[(place / 7) % bodies.length].role === "scenery") continue;
        for (let i = 0; i < 3; i++) {
          low[i] = Math.min(low[i], one.pose[place + i]);
          high[i] = Math.max(high[i], one.pose[place + i]);
        }
      }
    }
    const extent = Math.max(...high.map((value, i) => value - low[i]), 1e-9);
    return { noFan: 1e-3 * extent, fullFan: 0.04 * extent };
  }

  function readGhosts(packed) {
    if (!packed) return null;
    const [steps, count, hold, objects] = packed.path.shape;
    const spread = unpack(packed.spread);
    const numbers = packed.action.shape[2];
    return {
      ...packed, steps, count, hold, objects, numbers, spread,
      path: unpack(packed.path), action: unpack(packed.action), agent: unpack(packed.agent), success: unpack(packed.success),
      place: (t, m, k, j) => (((t * count + m) * hold + k - 1) * objects + j) * 7,
      agentPlace: (t, m, k) => ((t * count + m) * hold + k - 1) * 3,
      fanOf: (t, k, j) => spread[(t * hold + k - 1) * objects + j],
      fan(t, k) {
        let widest = 0;
        for (let j = 0; j < objects; j++) widest = Math.max(widest, this.fanOf(t, k, j));
        return widest;
      },
    };
  }

  function make(tag, parent, className = "", text = "") {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  function svg(tag, parent, attributes, text = "") {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text) node.textContent = text;
    parent.append(node);
    return node;
  }

  function rounded(value) {
    return String(Number(value.toPrecision(2)));
  }

  function length(value, unit) {
    if (unit !== "m") return `${value.toPrecision(2)}${unit ? ` ${unit}` : ""}`;
    if (value < 1e-4) return "less than 0.1 mm";
    return value < 0.01 ? `${(1000 * value).toFixed(1)} mm` : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} cm`;
  }

  function start(root) {
    const scene = readScene(JSON.parse(root.querySelector("script").textContent));
    root.classList.toggle("bf-flat", scene.dimensions === 2);
    root.classList.toggle("bf-line", scene.line);
    const head = make("div", root, "bf-head");
    const title = make("b", head);
    const badge = make("span", head, "bf-badge");
    const stage = make("div", root, "bf-stage");
    const canvas = make("canvas", stage);
    canvas.setAttribute("role", "img");
    const readout = make("div", stage, "bf-readout");
    const stepText = make("b", readout);
    const scoreText = make("span", readout);
    const card = make("div", stage, "bf-card");
    card.hidden = true;
    const legend = make("ul", root, "bf-legend");
    const say = make("p", root, "bf-say");
    say.setAttribute("aria-live", "polite");
    const controls = make("div", root, "bf-controls");
    const playButton = make("button", controls, "bf-play", "Play");
    const back = make("button", controls, "", "◀");
    const forth = make("button", controls, "", "▶");
    back.setAttribute("aria-label", "One step back");
    forth.setAttribute("aria-label", "One step forward");
    const timeline = make("div", controls, "bf-timeline");
    Object.entries({ role: "slider", tabindex: "0", "aria-label": "Step of the episode", "aria-valuemin": "0" })
      .forEach(([name, value]) => timeline.setAttribute(name, value));
    const strip = make("canvas", timeline);
    const options = make("div", root, "bf-options");
    const decideButton = make("button", options, "", "Step that decided the outcome");
    const ghostButton = make("button", options, "", "Ghosts");
    const holdLabel = make("label", options);
    const holdText = make("span", holdLabel);
    const holdInput = make("input", holdLabel);
    holdInput.type = "range";
    holdInput.min = "1";
    const speedLabel = make("label", options, "", "Speed");
    const speedSelect = make("select", speedLabel);
    for (const speed of SPEEDS) make("option", speedSelect, "", `${speed}×`).value = String(speed);
    const cameraButton = make("button", options, "", "Reset view");
    const chart = make("div", root, "bf-chart");
    const notes = make("div", root, "bf-notes");

    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(`--bf-${name}`).trim();
    const state = { episode: 0, time: 0, hold: 1, ghosts: true, chosen: null, playing: false, speed: 0.25 };
    speedSelect.value = "0.25";
    let episode = scene.episodes[0];
    let queued = false;
    let before = 0;
    let drawer = null;
    let stripBase = null;
    let threshold = window.butforThreshold ?? null;  // of the page around the player, in nats
    const isDrawn = ({ bodies }) => bodies.every((body) => body !== null);
    for (const one of scene.episodes) {
      one.told = one.scores.some((score) => !isDriven(score)) ? one.scores.filter((score) => !isDriven(score)) : one.scores;
      // the simulator knows better than the model
      const moves = one.moves && one.moves.map((move) => ({ ...move, isThere: (t) => Boolean(move.values[t]) }));
      one.arrows = (moves || one.edges.map((edge) => ({ ...edge, isThere: (t) => edge.values[t] > edgeLimit() }))).filter(isDrawn);
    }

    function openStage() {
      if (scene.dimensions === 3) {
        try {
          drawer = butforStage3d(canvas, scene, colour, queue);
        } catch (error) {
          const plain = canvas.cloneNode();  // a canvas that was asked for WebGL cannot be drawn on
          canvas.replaceWith(plain);
          drawer = butforStage2d(plain, scene, colour);
          make("p", notes, "", "This browser has no WebGL, so the scene is drawn from above.");
        }
      } else {
        drawer = butforStage2d(canvas, scene, colour);
        cameraButton.hidden = true;
      }
      chooseEpisode(0);
      new ResizeObserver(fit).observe(stage);
    }

    function fit() {
      drawer.resize(stage.clientWidth, stage.clientHeight);
      if (!state.seen) { state.seen = true; drawer.restoreCamera(); }
      drawStrip();
      drawChart();
      render();
    }

    // Whether another action would have ended the episode differently.
    function differs(step, m) {
      const ghosts = episode.ghosts;
      if (!ghosts || !ghosts.success || !episode.reached) return false;
      return ghosts.success[step * ghosts.count + m] !== episode.reached[episode.steps];
    }

    // The action always matters for what it drives, which would hide everything else.
    function isDriven([name]) {
      const body = scene.bodies[(scene.places || {})[name]];
      return Boolean(body) && body.role !== "object";
    }

    function influenceAt(step) {
      if (episode.told.length) return Math.max(...episode.told.map(([, values]) => values[step]));
      return episode.ghosts ? episode.ghosts.fan(step, state.hold) : 0;
    }

    // An edge of the model with a higher influence counts.
    function edgeLimit() {
      return threshold ?? FAINT_EDGE;
    }

    function shownEdges() {
      return episode.edges.filter(({ values }) => Math.max(...values) > Math.min(edgeLimit(), FAINT_EDGE));
    }

    function chooseEpisode(number) {
      state.episode = number;
      state.chosen = null;
      episode = scene.episodes[number];
      const ghosts = episode.ghosts;
      state.hold = ghosts ? ghosts.hold : 1;
      holdInput.max = String(state.hold);
      holdInput.value = String(state.hold);
      holdLabel.hidden = state.hold < 2;
      ghostButton.hidden = !ghosts;
      title.textContent = scene.episodes.length > 1 ? scene.title : `${scene.title}: ${episode.title}`;
      badge.hidden = !episode.reached || scene.episodes.length > 1;  // the list of episodes says so, too
      if (episode.reached) {
        badge.textContent = episode.reached[episode.steps] ? "goal reached" : "goal not reached";
        badge.classList.toggle("bf-good", Boolean(episode.reached[episode.steps]));
      }
      decideButton.hidden = !(ghosts && ghosts.success);
      decideButton.disabled = episode.decided === null;
      decideButton.title = episode.decided_text;
      timeline.setAttribute("aria-valuemax", String(episode.steps));
      drawer.setEpisode(episode);
      drawLegend();
      drawNotes();
      // Begin where there is most to see.
      let best = 0;
      const interest = (t) => 100 * episode.arrows.filter((arrow) => arrow.isThere(t)).length + influenceAt(t);
      for (let t = 0; t < episode.steps; t++) if (interest(t) > interest(best)) best = t;
      seek(episode.decided === null ? best : episode.decided);
      drawStrip();
      drawChart();
    }

    function drawLegend() {
      legend.replaceChildren();
      const roles = new Set(scene.bodies.map((body) => body.role));
      const entry = (paint, text, opacity = 1) => {
        const item = make("li", legend);
        const box = make("i", item);
        box.style.background = colour(paint);
        box.style.opacity = opacity;
        item.append(text);
      };
      if (roles.has("agent")) entry("agent", "agent");
      if (roles.has("object")) entry("object", "object");
      if (roles.has("goal")) entry("goal", "goal");
      const ghosts = episode.ghosts;
      if (episode.arrows.length) entry("influence", `arrow: who moves whom, by the ${episode.moves ? "simulator" : "model"}`);
      if (!ghosts) return;
      entry("object", "where another action would have put it", 0.4);
      if (ghosts.success) entry("other", "… and changed the outcome", 0.5);
    }

    function drawNotes() {
      notes.replaceChildren();
      const ghosts = episode.ghosts;
      if (ghosts && ghosts.source === "simulator") {
        make("p", notes, "", `Ghosts are computed with the simulator: each state is restored and ${ghosts.count} other actions are held for up to ${ghosts.hold} steps.`);
      } else if (ghosts) {
        make("p", notes, "", `Ghosts are predictions of the model one step ahead, for ${ghosts.count} other actions.`);
      }
      if (ghosts && ghosts.success) make("p", notes, "", `The step that decided: ${episode.decided_text}`);
      if (episode.moves) make("p", notes, "", "By the simulator: the step is taken again without the source, and the target ends elsewhere.");
      if (episode.edges.length && !shownEdges().length) make("p", notes, "", `By the model no entity influences another one by more than ${rounded(edgeLimit())} nats in this episode.`);
      if (episode.edges.length && !episode.moves) make("p", notes, "", `An arrow is drawn where the influence is above ${rounded(edgeLimit())} nats.`);
      for (const note of scene.notes) make("p", notes, "", note);
      make("p", notes, "bf-keys", `Keys: space plays, ← and → step, Home and End jump, D goes to the step that decided, G hides the ghosts. ${scene.dimensions === 3 ? "Drag to turn, scroll to zoom, click" : "Click"} a ghost to see its action.`);
    }

    // The timeline is coloured by influence; a notch marks the step that decided.
    function drawStrip() {
      const ratio = Math.min(window.devicePixelRatio || 1, 2);
      const width = Math.max(Math.round(timeline.clientWidth * ratio), 1);
      const height = Math.max(Math.round(timeline.clientHeight * ratio), 1);
      strip.width = width;
      strip.height = height;
      const pen = strip.getContext("2d");
      let top = episode.scores.length ? SMALL_SCORE : 1e-9;
      for (let t = 0; t < episode.steps; t++) top = Math.max(top, influenceAt(t));
      pen.fillStyle = colour("faint");
      pen.fillRect(0, 0, width, height);
      pen.fillStyle = colour("influence");
      for (let t = 0; t < episode.steps; t++) {
        pen.globalAlpha = Math.min(1, Math.max(influenceAt(t), 0) / top);
        const left = Math.floor(t * width / episode.steps);
        pen.fillRect(left, 0, Math.ceil((t + 1) * width / episode.steps) - left, height);
      }
      pen.globalAlpha = 1;
      if (episode.decided !== null) {
        const x = (episode.decided + 0.5) * width / episode.steps;
        pen.fillStyle = colour("other");
        pen.beginPath();
        pen.moveTo(x - 6 * ratio, 0);
        pen.lineTo(x + 6 * ratio, 0);
        pen.lineTo(x, 8 * ratio);
        pen.fill();
      }
      stripBase = document.createElement("canvas");
      stripBase.width = width;
      stripBase.height = height;
      stripBase.getContext("2d").drawImage(strip, 0, 0);
      drawCursor();
    }

    function drawCursor() {
      if (!stripBase) return;
      const pen = strip.getContext("2d");
      const ratio = strip.width / Math.max(timeline.clientWidth, 1);
      pen.drawImage(stripBase, 0, 0);
      const x = Math.min((state.time + 0.5) / episode.steps, 1) * strip.width;
      pen.fillStyle = colour("ink");
      pen.fillRect(x - 1.5 * ratio, 0, 3 * ratio, strip.height);
      const line = chart.querySelector(".bf-cursor");
      if (line) for (const end of ["x1", "x2"]) line.setAttribute(end, ((state.time + 0.5) / episode.steps) * chart.firstChild.clientWidth);
    }

    // Panels share the steps as their horizontal axis: CAI, the fan, labels, and what would still succeed.
    function drawChart() {
      chart.replaceChildren();
      const width = chart.clientWidth - 2 * 14.4;
      if (width < 50) return;
      const picture = svg("svg", chart, { height: 10, role: "img", "aria-label": "Influence, labels and outcomes over the steps" });
      const across = (t) => (t + 0.5) * width / episode.steps;
      const narrow = width < 480;  // of a telephone
      let top = 4;
      const panel = (name, height, series, most, form, level = null) => {
        const headTop = top;
        const heading = svg("text", picture, { x: 0, y: top + 10 }, name);
        if (series.length > 1) {
          if (narrow) top += 14;  // the names have a line of their own
          series.forEach(([label, , paint], place) => svg("tspan", heading, { dx: narrow && !place ? 0 : 8, ...(narrow && !place ? { x: 0, dy: 14 } : {}), fill: colour(paint), "font-weight": 600 }, label));
        }
        svg("text", picture, { x: width, y: headTop + 10, "text-anchor": "end" }, form(most));
        top += 16;
        const down = (value) => top + height * (1 - Math.min(Math.max(value / most, 0), 1));
        for (const y of [top, top + height]) svg("line", picture, { x1: 0, x2: width, y1: y, y2: y, stroke: colour("faint") });
        series.forEach(([, values, paint], place) => {
          let line = "";
          for (let t = 0; t < episode.steps; t++) line += `${t ? "L" : "M"}${across(t).toFixed(1)} ${down(values(t)).toFixed(1)}`;
          if (series.length === 1) svg("path", picture, { d: `${line}L${across(episode.steps - 1)} ${top + height}L${across(0)} ${top + height}Z`, fill: colour(paint), opacity: 0.18 });
          svg("path", picture, { d: line, fill: "none", stroke: colour(paint), "stroke-width": 2, "stroke-linejoin": "round", "data-series": place });
        });
        if (level !== null) svg("line", picture, { class: "bf-threshold", x1: 0, x2: width, y1: down(level), y2: down(level), stroke: colour("ink"), "stroke-dasharray": "6 4" });
        top += height + 8;
      };
      const ghosts = episode.ghosts;
      const within = scene.horizon > 1 ? ` within ${scene.horizon} steps` : "";
      if (episode.scores.length) {
        const most = Math.max(SMALL_SCORE, ...episode.scores.flatMap(([, values]) => [...values]));
        panel(`${narrow ? "CAI" : "CAI, the influence of the action"}${within}`, 64, episode.scores.map(([name, values], place) => [name, (t) => values[t], LINES[place % LINES.length]]), most, (value) => `${value.toFixed(2)} nats`, threshold);
      }
      if (ghosts) {
        let most = 1e-6;
        for (let t = 0; t < episode.steps; t++) most = Math.max(most, ghosts.fan(t, state.hold));
        panel(`Distance between the ghosts after ${state.hold} step${state.hold > 1 ? "s" : ""}`, 40, ghosts.bodies.map((body, j) => [scene.bodies[body].name, (t) => ghosts.fanOf(t, state.hold, j), j ? LINES[j % LINES.length] : "object"]), most, (value) => length(value, scene.unit));
      }
      // A row of steps that are coloured where a value is above 0: fully at the value `most`.
      const row = (name, values, most = 1, end = "", paint = "influence") => {
        svg("text", picture, { x: 0, y: top + 10 }, name);
        if (end && !narrow) svg("text", picture, { x: width, y: top + 10, "text-anchor": "end" }, end);
        top += 15;
        svg("rect", picture, { x: 0, y: top, width, height: 9, fill: colour("faint") });
        const strength = (t) => Math.round(20 * Math.min(Math.max(values[t] / most, 0), 1)) / 20;
        for (let t = 0; t < episode.steps;) {
          const opacity = strength(t);
          const begin = t;
          while (t < episode.steps && strength(t) === opacity) t++;
          if (opacity) svg("rect", picture, { x: begin * width / episode.steps, y: top, width: (t - begin) * width / episode.steps, height: 9, fill: colour(paint), opacity });
        }
        top += 17;
      };
      for (const [name, values] of episode.labels) row(name === "exact" ? "The action matters (exact label)" : name === "contact" ? "Contact" : name, values, 1, "", name === "contact" ? "contact" : "influence");
      const edges = shownEdges();
      const highest = edges.map(({ values }) => Math.max(...values));
      const most = Math.max(SMALL_SCORE, ...highest);
      const strips = [
        ...(episode.moves || []).map((move) => [`${pairOf(move)}, by the simulator`, move.values]),
        ...edges.map((edge, place) => [`${pairOf(edge)}${within}, by the model`, edge.values, most, `up to ${highest[place].toFixed(2)} nats`]),
      ];
      strips.sort(([one], [other]) => one.localeCompare(other));  // both answers about a pair beside each other
      for (const strip of strips) row(...strip);
      if (ghosts && ghosts.success) {
        const share = (t) => {
          let sum = 0;
          for (let m = 0; m < ghosts.count; m++) sum += ghosts.success[t * ghosts.count + m];
          return sum / ghosts.count;
        };
        panel("Other actions after which the goal is still reached", 40, [["", share, "goal"]], 1, () => "all");
      }
      svg("text", picture, { x: 0, y: top + 6 }, "step 0");
      svg("text", picture, { x: width, y: top + 6, "text-anchor": "end" }, `step ${episode.steps}`);
      if (episode.decided !== null) {
        const x = across(episode.decided);
        svg("line", picture, { x1: x, x2: x, y1: 0, y2: top - 6, stroke: colour("other"), "stroke-dasharray": "3 3" });
      }
      svg("line", picture, { class: "bf-cursor", x1: 0, x2: 0, y1: 0, y2: top - 6, stroke: colour("ink"), "stroke-width": 1.5 });
      picture.setAttribute("height", top + 12);
      drawCursor();
    }

    function pairOf({ source, target, bodies }) {
      const [first, second] = bodies.map((body, place) => (body === null ? [source, target][place] : nameOf(body)));
      return `${first} moves ${second}`;
    }

    // robot0:gripper_link is the gripper
    function nameOf(body) {
      return scene.bodies[body].name.replace(/^robot\d*:/, "").replace(/_link$/, "");
    }

    function sentence(step) {
      const ghosts = episode.ghosts;
      if (!ghosts) return "";
      if (step >= episode.steps) return "The episode ends here.";
      const fan = ghosts.fan(step, state.hold);
      const held = ghosts.source === "model" ? "By the model's prediction, other" : "Other";
      const time = state.hold > 1 ? `, held for ${state.hold} steps,` : "";
      const later = ghosts.source === "model" && scene.horizon > 1;  // the score counts more steps than the ghosts show
      let text = fan < scene.noFan
        ? `${held} actions${time} all lead to the same place${later ? " in the next step" : ": the action does not matter here"}.`
        : `${held} actions${time} would have put the object up to ${length(fan, scene.unit)} apart: the action matters here.`;
      if (ghosts.success && fan >= 0) {
        let changed = 0;
        for (let m = 0; m < ghosts.count; m++) changed += differs(step, m);
        if (changed) text += ` ${changed} of ${ghosts.count} would have changed the outcome.`;
      }
      if (step === episode.decided) text += " This step decided the outcome.";
      return text;
    }

    function render() {
      queued = false;
      const step = Math.min(Math.floor(state.time), episode.steps);
      const at = Math.min(step, episode.steps - 1);
      drawer.draw(state.time, state.hold, state.ghosts, state.chosen, differs);
      if (!state.drawn) { state.drawn = true; root.dispatchEvent(new Event("butfor-drawn")); }
      stepText.textContent = `Step ${step} of ${episode.steps}`;
      scoreText.textContent = episode.scores.map(([name, values]) => `CAI${episode.scores.length > 1 ? ` ${name}` : ""} ${values[at].toFixed(2)} nats`).join(" · ");
      const words = sentence(step);
      if (say.textContent !== words) say.textContent = words;
      timeline.setAttribute("aria-valuenow", String(step));
      timeline.setAttribute("aria-valuetext", `step ${step}`);
      canvas.setAttribute("aria-label", `${scene.title}, step ${step}. ${words}`);
      playButton.textContent = state.playing ? "Pause" : "Play";
      ghostButton.setAttribute("aria-pressed", String(state.ghosts));
      holdText.textContent = `Held for ${state.hold} step${state.hold > 1 ? "s" : ""}`;
      drawCursor();
      drawCard(at);
    }

    function drawCard(step) {
      card.hidden = state.chosen === null || !state.ghosts;
      if (card.hidden) return;
      const ghosts = episode.ghosts;
      const m = state.chosen;
      card.replaceChildren();
      make("h4", card, "", `Another action${state.hold > 1 ? `, held for ${state.hold} steps` : ""}`);
      const close = make("button", card, "bf-close", "×");
      close.setAttribute("aria-label", "Close");
      close.addEventListener("click", () => { state.chosen = null; render(); });
      const bars = make("div", card, "bf-bars");
      for (let i = 0; i < ghosts.numbers; i++) {
        const value = ghosts.action[(step * ghosts.count + m) * ghosts.numbers + i];
        make("span", bars, "", scene.action_names[i] || `a${i}`);
        const bar = make("i", bars);
        const near = Math.max(-1, Math.min(1, value));
        bar.style.setProperty("--from", `${50 + 50 * Math.min(near, 0)}%`);
        bar.style.setProperty("--wide", `${50 * Math.abs(near)}%`);
        make("span", bars, "", (value > 0 ? "+" : "") + value.toFixed(2));
      }
      const future = Math.min(step + state.hold, episode.steps) * scene.bodies.length;
      const apart = ghosts.bodies.map((body, j) => {
        const p = ghosts.place(step, m, state.hold, j);
        const q = (future + body) * 7;
        return Math.hypot(...[0, 1, 2].map((i) => ghosts.path[p + i] - episode.pose[q + i]));
      });
      make("p", card, "", `The object would be ${length(Math.max(...apart), scene.unit)} from where it went.`);
      if (ghosts.success) make("p", card, "", ghosts.success[step * ghosts.count + m] ? "The goal would be reached." : "The goal would not be reached.");
    }

    function queue() {
      if (!queued) { queued = true; requestAnimationFrame(render); }
    }

    function seek(time) {
      state.time = Math.max(0, Math.min(time, episode.steps));
      queue();
    }

    function advance(now) {
      if (!state.playing) return;
      const passed = Math.min((now - before) / 1000, 0.1);
      before = now;
      state.time += passed * state.speed / scene.step_seconds;
      if (state.time >= episode.steps) { state.time = episode.steps; state.playing = false; }
      render();
      if (state.playing) requestAnimationFrame(advance);
    }

    function play(on) {
      state.playing = on;
      if (on) {
        if (state.time >= episode.steps) state.time = 0;
        before = performance.now();
        requestAnimationFrame(advance);
      } else {
        state.time = Math.min(Math.round(state.time), episode.steps);
        queue();
      }
    }

    function step(by) {
      play(false);
      seek(Math.round(state.time) + by);
    }

    if (scene.episodes.length > 1) {
      const select = make("select", null);
      scene.episodes.forEach((one, number) => { make("option", select, "", one.title + (one.reached ? (one.reached[one.steps] ? ": goal reached" : ": goal not reached") : "")).value = String(number); });
      select.setAttribute("aria-label", "Episode");
      select.addEventListener("change", () => { play(false); chooseEpisode(Number(select.value)); });
      title.after(select);
    }
    playButton.addEventListener("click", () => play(!state.playing));
    back.addEventListener("click", () => step(-1));
    forth.addEventListener("click", () => step(1));
    decideButton.addEventListener("click", () => { play(false); seek(episode.decided); });
    ghostButton.addEventListener("click", () => { state.ghosts = !state.ghosts; queue(); });
    cameraButton.addEventListener("click", () => { drawer.restoreCamera(); queue(); });
    speedSelect.addEventListener("change", () => { state.speed = Number(speedSelect.value); });
    holdInput.addEventListener("input", () => { state.hold = Number(holdInput.value); if (!episode.scores.length) drawStrip(); drawChart(); queue(); });
    for (const area of [timeline, chart]) {
      const to = (event) => {
        const box = (area === chart ? chart.firstChild : area).getBoundingClientRect();
        play(false);
        seek(Math.floor((event.clientX - box.left) / box.width * episode.steps));
      };
      area.addEventListener("pointerdown", (event) => { area.setPointerCapture(event.pointerId); to(event); });
      area.addEventListener("pointermove", (event) => { if (event.buttons) to(event); });
    }
    let pressed = null;
    stage.addEventListener("pointerdown", (event) => { pressed = [event.clientX, event.clientY]; });
    stage.addEventListener("pointerup", (event) => {
      if (!pressed || event.target.closest(".bf-card") || Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 5) return;
      const box = stage.getBoundingClientRect();
      play(false);
      state.chosen = drawer.pick((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
      queue();
    });
    const keys = {
      " ": () => play(!state.playing), ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => step(-1e9), End: () => step(1e9),
      d: () => { if (episode.decided !== null) { play(false); seek(episode.decided); } },
      g: () => { state.ghosts = !state.ghosts; queue(); }, Escape: () => { state.chosen = null; queue(); },
    };
    root.tabIndex = -1;
    const handle = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("select, input") || (event.key === " " && event.target.closest("button"))) return;
      const known = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (known) { event.preventDefault(); known(); }
    };
    // The only player of a page listens everywhere, so that no click is needed first.
    (document.querySelectorAll(".bf-player").length === 1 && root.dataset.whole !== undefined ? document : root).addEventListener("keydown", handle);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawer.recolour(); drawLegend(); drawStrip(); drawChart(); queue(); });
    document.addEventListener("butfor-threshold", () => { threshold = window.butforThreshold; drawNotes(); drawChart(); queue(); });
    root.butfor = { state, seek, play, scene, get stage() { return drawer; }, get episode() { return episode; } };
    openStage();
    root.dataset.ready = "";
  }

  // Three.js needs a graphics context for each player, so one opens when it comes into view.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) { watcher.unobserve(entry.target); start(entry.target); }
    }
  }, { rootMargin: "200px" });
  for (const root of document.querySelectorAll(".bf-player")) watcher.observe(root);
})();

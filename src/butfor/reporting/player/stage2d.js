// Draws a scene from above on a canvas, without WebGL: bodies as boxes and discs, ghosts as translucent copies.
// eslint-disable-next-line no-unused-vars
function butforStage2d(canvas, scene, colour) {
  const pen = canvas.getContext("2d");
  let width = 1;
  let height = 1;
  let episode = null;
  let box = null;  // of the positions: [left, right, bottom, top]
  const order = ["scenery", "goal", "robot", "agent", "object"];
  const drawn = scene.bodies.map((body, index) => index)
    .filter((index) => scene.dimensions === 2 || scene.bodies[index].role !== "robot")
    .sort((a, b) => order.indexOf(scene.bodies[a].role) - order.indexOf(scene.bodies[b].role));

  function setEpisode(next) {
    episode = next;
    box = [Infinity, -Infinity, Infinity, -Infinity];
    const include = (x, y, w, h) => {
      if (!Number.isFinite(x)) return;
      box = [Math.min(box[0], x - w), Math.max(box[1], x + w), Math.min(box[2], y - h), Math.max(box[3], y + h)];
    };
    const count = scene.bodies.length;
    for (let time = 0; time <= episode.steps; time++) {
      for (const index of drawn) {
        const first = (time * count + index) * 7;
        const [w, h] = scene.bodies[index].size;
        include(episode.pose[first], episode.pose[first + 1], w, h || w);
      }
    }
    if (episode.ghosts) for (let place = 0; place < episode.ghosts.path.length; place += 7) include(episode.ghosts.path[place], episode.ghosts.path[place + 1], 0, 0);
    const margin = 0.06 * Math.max(box[1] - box[0], box[3] - box[2]);
    box = [box[0] - margin, box[1] + margin, box[2] - margin, box[3] + margin];
  }

  function scale() {
    return Math.min(width / (box[1] - box[0]), height / Math.max(box[3] - box[2], 1e-9));
  }

  function place(x, y) {
    const s = scale();
    return [width / 2 + s * (x - (box[0] + box[1]) / 2), height * (scene.line ? 0.62 : 0.5) - s * (y - (box[2] + box[3]) / 2)];
  }

  // Ghosts on a line would cover each other, so each has a row of its own above and below it where they differ.
  function lift(m, count, strength) {
    return scene.line ? strength * (m - (count - 1) / 2) * Math.min(9, 0.5 * height / count) : 0;
  }

  function fill(body, numbers, first, paint, opacity, dy = 0, stroke = null) {
    const s = scale();
    const [x, y] = place(numbers[first], numbers[first + 1]);
    if (!Number.isFinite(x)) return;
    const round = body.form === "sphere" || body.form === "cylinder" || body.form === "ellipsoid";
    const w = Math.max(s * body.size[0], 3);
    const h = round ? w : Math.max(s * body.size[1], 3);
    pen.save();
    pen.translate(x, y + dy);
    pen.rotate(-2 * Math.atan2(numbers[first + 6], numbers[first + 3]));
    pen.globalAlpha = opacity;
    pen.beginPath();
    if (round) pen.arc(0, 0, w, 0, 7);
    else pen.rect(-w, -h, 2 * w, 2 * h);
    if (paint) { pen.fillStyle = paint; pen.fill(); }
    if (stroke) { pen.strokeStyle = stroke; pen.lineWidth = 1.5; pen.stroke(); }
    pen.restore();
  }

  // From one body to the other that it moves.
  function arrow(from, to) {
    const [x, y] = place(from[0], from[1]);
    const [tipX, tipY] = place(to[0], to[1]);
    const angle = Math.atan2(tipY - y, tipX - x);
    pen.strokeStyle = colour("influence");
    pen.lineWidth = 3;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(tipX, tipY);
    for (const turn of [-0.5, 0.5]) {
      pen.moveTo(tipX, tipY);
      pen.lineTo(tipX - 11 * Math.cos(angle + turn), tipY - 11 * Math.sin(angle + turn));
    }
    pen.stroke();
  }

  function draw(time, hold, showGhosts, chosen, differs) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const step = Math.min(Math.floor(time), episode.steps);
    const share = time - step;
    const count = scene.bodies.length;
    if (scene.line) {
      const [, y] = place(0, 0);
      pen.strokeStyle = colour("faint");
      pen.lineWidth = 2;
      pen.beginPath();
      pen.moveTo(0, y + scale() * scene.bodies[0].size[1]);
      pen.lineTo(width, y + scale() * scene.bodies[0].size[1]);
      pen.stroke();
    }
    const ghosts = episode.ghosts;
    const at = Math.min(step, episode.steps - 1);
    const now = new Float32Array(7);
    const poses = scene.bodies.map((body, index) => {
      const first = (step * count + index) * 7;
      const second = (Math.min(step + 1, episode.steps) * count + index) * 7;
      for (let i = 0; i < 7; i++) now[i] = episode.pose[first + i] * (1 - share) + episode.pose[second + i] * share;
      return now.slice();
    });
    for (const index of drawn) {
      const body = scene.bodies[index];
      if (body.role !== "object") fill(body, poses[index], 0, body.role === "scenery" ? body.colour || colour("scenery") : colour(body.role), body.opacity);
    }
    if (showGhosts && ghosts) {
      ghosts.bodies.forEach((bodyIndex, j) => {
        const body = scene.bodies[bodyIndex];
        const strength = ghosts.strength(at, hold, j);
        if (strength < 0.02) return;
        for (let m = 0; m < ghosts.count; m++) {
          const paint = differs(at, m) ? colour("other") : colour("object");
          const dy = lift(m, ghosts.count, strength);
          pen.globalAlpha = (m === chosen ? 0.9 : 0.4) * strength;
          pen.strokeStyle = paint;
          pen.lineWidth = m === chosen ? 2 : 1;
          pen.beginPath();
          let [x, y] = place(poses[bodyIndex][0], poses[bodyIndex][1]);
          pen.moveTo(x, y);
          for (let k = 1; k <= hold; k++) {
            const p = ghosts.place(at, m, k, j);
            [x, y] = place(ghosts.path[p], ghosts.path[p + 1]);
            pen.lineTo(x, y + dy * k / hold);
          }
          pen.stroke();
          fill(body, ghosts.path, ghosts.place(at, m, hold, j), paint, (m === chosen ? 0.85 : 0.28) * strength, dy, m === chosen ? colour("ink") : null);
        }
        const future = (Math.min(step + hold, episode.steps) * count + bodyIndex) * 7;
        if (!scene.line) fill(body, episode.pose, future, null, 1, 0, colour("ink"));
      });
    }
    pen.globalAlpha = 1;
    for (const index of drawn) if (scene.bodies[index].role === "object") fill(scene.bodies[index], poses[index], 0, colour("object"), 1);
    if (scene.bodies.filter((body) => body.role === "object").length > 1) {
      pen.font = "12px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.fillStyle = colour("ink");
      for (const index of drawn) {
        const body = scene.bodies[index];
        if (body.role !== "object") continue;
        const [x, y] = place(poses[index][0], poses[index][1]);
        pen.fillText(body.name, x, y - scale() * body.size[0] - 5);
      }
    }
    for (const { bodies, isThere } of episode.arrows) if (isThere(at)) arrow(poses[bodies[0]], poses[bodies[1]]);
    last = { at, hold, shown: showGhosts };
  }
  let last = null;

  function pick(x, y) {
    const ghosts = episode.ghosts;
    if (!ghosts || !last || !last.shown) return null;
    let best = null;
    let nearest = 24;  // pixels
    ghosts.bodies.forEach((body, j) => {
      const strength = ghosts.strength(last.at, last.hold, j);
      if (strength < 0.02) return;
      for (let m = 0; m < ghosts.count; m++) {
        const p = ghosts.place(last.at, m, last.hold, j);
        const [left, top] = place(ghosts.path[p], ghosts.path[p + 1]);
        const distance = Math.hypot(left - x * width, top + lift(m, ghosts.count, strength) - y * height);
        if (distance < nearest) [best, nearest] = [m, distance];
      }
    });
    return best;
  }

  function resize(newWidth, newHeight) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    [width, height] = [newWidth, newHeight];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }

  return { setEpisode, draw, pick, resize, recolour() {}, restoreCamera() {} };
}

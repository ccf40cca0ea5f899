// Draws a scene in 3-D with three.js: bodies as solids, ghosts as translucent copies that can be clicked.
// eslint-disable-next-line no-unused-vars
function butforStage3d(canvas, scene, colour, changed) {
  const T = THREE;
  const renderer = new T.WebGLRenderer({ canvas, antialias: true, alpha: true, powerPreference: "low-power" });
  renderer.setPixelRatio(Math.min(window.devicePixelRatio || 1, 2));
  renderer.shadowMap.enabled = true;
  renderer.shadowMap.type = T.PCFShadowMap;
  const world = new T.Scene();
  const camera = new T.PerspectiveCamera(38, 1, 0.02, 60);
  camera.up.set(0, 0, 1);
  const controls = new T.OrbitControls(camera, canvas);
  controls.enableDamping = false;
  controls.maxPolarAngle = Math.PI * 0.495;
  canvas.style.touchAction = "pan-y";  // one finger sideways turns, up and down scrolls the page
  controls.addEventListener("change", changed);

  const sky = new T.HemisphereLight(0xffffff, 0x8a929c, 1.9);
  const sun = new T.DirectionalLight(0xffffff, 2.2);
  sun.castShadow = true;
  sun.shadow.mapSize.set(1024, 1024);
  sun.shadow.bias = -0.0005;
  sun.shadow.normalBias = 0.004;
  world.add(sky, sun, sun.target);

  // MuJoCo's cylinders and capsules stand along z, those of three.js along y.
  function geometryOf(body) {
    const [a, b, c] = body.size;
    if (body.form === "mesh") {
      const plain = new T.BufferGeometry();
      const numbers = new Float32Array(body.vertices.length);
      for (let i = 0; i < numbers.length; i++) numbers[i] = body.low[i % 3] + body.width[i % 3] * body.vertices[i] / 65535;
      plain.setAttribute("position", new T.BufferAttribute(numbers, 3));
      plain.setIndex(new T.BufferAttribute(body.faces, 1));
      return T.toCreasedNormals(plain, 0.6);
    }
    if (body.form === "box") return new T.BoxGeometry(2 * a, 2 * b, 2 * c);
    if (body.form === "cylinder") return new T.CylinderGeometry(a, a, 2 * b, 48).rotateX(Math.PI / 2);
    if (body.form === "capsule") return new T.CapsuleGeometry(a, 2 * b, 8, 24).rotateX(Math.PI / 2);
    const ball = new T.SphereGeometry(1, 32, 20);
    return body.form === "ellipsoid" ? ball.scale(a, b, c) : ball.scale(a, a, a);
  }

  const solids = scene.bodies.map((body) => {
    const material = new T.MeshStandardMaterial({ roughness: 0.62, metalness: 0.05 });
    const mesh = new T.Mesh(geometryOf(body), material);
    const clear = body.opacity < 1;
    material.transparent = clear;
    material.opacity = body.opacity;
    material.depthWrite = !clear;
    mesh.castShadow = !clear && body.role !== "goal";
    mesh.receiveShadow = !clear;
    mesh.matrixAutoUpdate = true;
    world.add(mesh);
    return mesh;
  });

  // The floor fades into the background.
  const floor = new T.Mesh(new T.CircleGeometry(6, 64), new T.ShadowMaterial({ opacity: 0.22 }));
  floor.receiveShadow = true;
  world.add(floor);
  const grid = new T.GridHelper(8, 32);
  grid.rotation.x = Math.PI / 2;
  grid.material.transparent = true;
  grid.material.opacity = 0.16;
  world.add(grid);

  let episode = null;
  let clouds = [];  // one for each body with ghosts
  let outlines = [];
  let trails = null;
  let chosenTrail = null;
  let arrows = null;  // of who moves whom: a shaft and four lines of a head each
  const here = new T.Vector3();
  const turn = new T.Quaternion();
  const one = new T.Vector3(1, 1, 1);
  const matrix = new T.Matrix4();
  const other = new T.Quaternion();
  const paint = new T.Color();

  function poseAt(numbers, first, second, share, position, quaternion) {
    position.set(numbers[first], numbers[first + 1], numbers[first + 2]);
    quaternion.set(numbers[first + 4], numbers[first + 5], numbers[first + 6], numbers[first + 3]);
    if (share > 0) {
      here.set(numbers[second], numbers[second + 1], numbers[second + 2]);
      position.lerp(here, share);
      other.set(numbers[second + 4], numbers[second + 5], numbers[second + 6], numbers[second + 3]);
      quaternion.slerp(other, share);
    }
  }

  function lines(count, opacity) {
    const geometry = new T.BufferGeometry();
    geometry.setAttribute("position", new T.BufferAttribute(new Float32Array(6 * count), 3));
    const made = new T.LineSegments(geometry, new T.LineBasicMaterial({ transparent: true, opacity, depthWrite: false }));
    made.frustumCulled = false;
    world.add(made);
    return made;
  }

  function setEpisode(next) {
    for (const old of [...clouds, ...outlines, trails, chosenTrail, arrows]) if (old) { world.remove(old); old.geometry.dispose(); }
    episode = next;
    clouds = [];
    outlines = [];
    trails = chosenTrail = arrows = null;
    if (episode.arrows.length) {
      arrows = lines(5 * episode.arrows.length, 1);
      arrows.material.depthTest = false;  // bodies that touch would hide them
      arrows.renderOrder = 3;
    }
    const ghosts = episode.ghosts;
    if (ghosts) {
      for (const body of ghosts.bodies) {
        const material = new T.MeshStandardMaterial({ transparent: true, opacity: 0.25, depthWrite: false, roughness: 0.8 });
        const cloud = new T.InstancedMesh(solids[body].geometry, material, ghosts.count);
        cloud.frustumCulled = false;
        cloud.renderOrder = 2;
        world.add(cloud);
        clouds.push(cloud);
        const outline = new T.LineSegments(new T.EdgesGeometry(solids[body].geometry, 30), new T.LineBasicMaterial({ transparent: true, opacity: 0.9 }));
        world.add(outline);
        outlines.push(outline);
      }
      trails = lines(ghosts.count * ghosts.hold * ghosts.bodies.length, 0.55);
      chosenTrail = lines(2 * ghosts.hold, 1);
    }
    restoreCamera();
    recolour();
  }

  function restoreCamera() {
    // Look at where objects and goals go in this episode; without a robot of meshes, at everything.
    const low = new T.Vector3(Infinity, Infinity, Infinity);
    const high = new T.Vector3(-Infinity, -Infinity, -Infinity);
    const shown = scene.bodies.map((body, index) => index).filter((index) => !scene.robot || ["object", "goal", "agent"].includes(scene.bodies[index].role));
    const count = scene.bodies.length;
    for (let time = 0; time <= episode.steps; time++) {
      for (const body of shown) {
        const first = (time * count + body) * 7;
        here.set(episode.pose[first], episode.pose[first + 1], episode.pose[first + 2]);
        const size = scene.robot ? 0 : Math.max(...scene.bodies[body].size) / 2;
        low.min(here.addScalar(-size));
        high.max(here.addScalar(2 * size));
      }
    }
    const middle = low.clone().add(high).multiplyScalar(0.5);
    const reach = Math.max(high.clone().sub(low).length() / 2, scene.robot ? 0.16 : 0.1);
    const narrow = Math.max(1, 1.15 / Math.max(camera.aspect, 0.1));
    const distance = ((scene.robot ? 2.6 : 2.1) * reach + (scene.robot ? 0.62 : 0)) * narrow;
    controls.target.copy(middle);
    if (scene.robot) controls.target.z += 0.06;
    const around = -48 * Math.PI / 180;
    const above = 28 * Math.PI / 180;
    camera.position.copy(controls.target).add(new T.Vector3(Math.cos(around) * Math.cos(above), Math.sin(around) * Math.cos(above), Math.sin(above)).multiplyScalar(distance));
    camera.near = distance / 50;
    camera.far = distance * 60;
    camera.updateProjectionMatrix();
    controls.minDistance = distance / 6;
    controls.maxDistance = distance * 6;
    controls.update();
    const width = Math.max(1.1, reach * 2.4);
    sun.position.copy(controls.target).add(new T.Vector3(0.6 * width, -0.9 * width, 2.2 * width));
    sun.target.position.copy(controls.target);
    Object.assign(sun.shadow.camera, { left: -width, right: width, top: width, bottom: -width, near: 0.01, far: 6 * width });
    sun.shadow.camera.updateProjectionMatrix();
    floor.position.z = scene.robot ? 0 : low.z - 0.02 * reach;
    grid.position.z = floor.position.z - 0.001;
    grid.position.x = floor.position.x = scene.robot ? 1 : middle.x;
    grid.position.y = floor.position.y = scene.robot ? 0.75 : middle.y;
    if (!scene.robot) grid.scale.setScalar(reach);
  }

  function recolour() {
    scene.bodies.forEach((body, index) => {
      const own = body.role === "robot" || (body.role === "scenery" && body.colour);
      solids[index].material.color.set(own ? body.colour || colour("scenery") : colour(body.role));
      if (body.role === "goal") solids[index].material.emissive.set(colour("goal")).multiplyScalar(0.35);
    });
    for (const outline of outlines) outline.material.color.set(colour("ink"));
    if (trails) trails.material.color.set(colour("object"));
    if (chosenTrail) chosenTrail.material.color.set(colour("ink"));
    if (arrows) arrows.material.color.set(colour("influence"));
    grid.material.color.set(colour("soft"));
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    sky.intensity = dark ? 1.2 : 1.9;
    sun.intensity = dark ? 1.5 : 2.2;
  }

  // time may lie between two states; what is chosen is the number of a ghost or null
  function draw(time, hold, showGhosts, chosen, differs) {
    const step = Math.min(Math.floor(time), episode.steps);
    const share = time - step;
    const count = scene.bodies.length;
    scene.bodies.forEach((body, index) => {
      const first = (step * count + index) * 7;
      const second = (Math.min(step + 1, episode.steps) * count + index) * 7;
      poseAt(episode.pose, first, second, share, solids[index].position, solids[index].quaternion);
    });
    const ghosts = episode.ghosts;
    if (ghosts) {
      const at = Math.min(step, episode.steps - 1);
      const next = Math.min(at + 1, episode.steps - 1);
      let segment = 0;
      let any = 0;
      const ends = trails.geometry.attributes.position.array;
      clouds.forEach((cloud, j) => {
        const strength = ghosts.strength(at, hold, j) * (1 - share) + ghosts.strength(next, hold, j) * share;
        any = Math.max(any, strength);
        const visible = showGhosts && strength > 0.02;
        cloud.visible = visible;
        outlines[j].visible = visible;
        cloud.material.opacity = 0.30 * strength;
        for (let m = 0; m < ghosts.count; m++) {
          poseAt(ghosts.path, ghosts.place(at, m, hold, j), ghosts.place(next, m, hold, j), share, here2, turn);
          if (!Number.isFinite(here2.x)) here2.set(0, 0, -1e3);
          matrix.compose(here2, turn, m === chosen ? one.clone().multiplyScalar(1.06) : one);
          cloud.setMatrixAt(m, matrix);
          cloud.setColorAt(m, paint.set(m === chosen ? colour("ink") : differs(at, m) ? colour("other") : colour("object")));
          let from = solids[ghosts.bodies[j]].position;
          for (let k = 1; k <= ghosts.hold; k++) {
            const place = ghosts.place(at, m, Math.min(k, hold), j);
            if (!visible) from = { x: ghosts.path[place], y: ghosts.path[place + 1], z: ghosts.path[place + 2] };
            ends.set([from.x, from.y, from.z, ghosts.path[place], ghosts.path[place + 1], ghosts.path[place + 2]], 6 * segment++);
            from = { x: ghosts.path[place], y: ghosts.path[place + 1], z: ghosts.path[place + 2] };
          }
        }
        cloud.instanceMatrix.needsUpdate = true;
        if (cloud.instanceColor) cloud.instanceColor.needsUpdate = true;
        cloud.computeBoundingSphere();
        const future = (Math.min(step + hold, episode.steps) * count + ghosts.bodies[j]) * 7;
        poseAt(episode.pose, future, future, 0, outlines[j].position, outlines[j].quaternion);
      });
      trails.visible = showGhosts && any > 0.02;
      trails.material.opacity = 0.5 * any;
      trails.geometry.attributes.position.needsUpdate = true;
      chosenTrail.visible = trails.visible && chosen !== null && Boolean(ghosts.agent);
      if (chosenTrail.visible) {
        const way = chosenTrail.geometry.attributes.position.array;
        way.fill(0);
        for (let k = 1; k < ghosts.hold; k++) {
          const a = ghosts.agentPlace(at, chosen, Math.min(k, hold));
          const b = ghosts.agentPlace(at, chosen, Math.min(k + 1, hold));
          way.set([...ghosts.agent.slice(a, a + 3), ...ghosts.agent.slice(b, b + 3)], 6 * (k - 1));
        }
        chosenTrail.geometry.setDrawRange(0, 2 * (ghosts.hold - 1));
        chosenTrail.geometry.attributes.position.needsUpdate = true;
      }
    }
    if (arrows) drawArrows(Math.min(step, episode.steps - 1));
    renderer.render(world, camera);
  }

  function drawArrows(at) {
    const ends = arrows.geometry.attributes.position.array.fill(0);
    episode.arrows.forEach(({ bodies, isThere }, number) => {
      if (!isThere(at)) return;
      const [from, to] = bodies.map((body) => solids[body].position);
      const way = to.clone().sub(from);
      const aside = new T.Vector3(-way.y, way.x, 0);
      if (aside.length() < 1e-6) aside.set(1, 0, 0);
      aside.normalize().multiplyScalar(0.15 * way.length());
      const up = new T.Vector3(0, 0, 0.15 * way.length());
      const back = to.clone().sub(way.multiplyScalar(0.3));
      ends.set([from.x, from.y, from.z, to.x, to.y, to.z], 30 * number);
      [aside, aside.clone().negate(), up, up.clone().negate()].forEach((side, place) => {
        const end = back.clone().add(side);
        ends.set([to.x, to.y, to.z, end.x, end.y, end.z], 30 * number + 6 * (place + 1));
      });
    });
    arrows.geometry.attributes.position.needsUpdate = true;
  }
  const here2 = new T.Vector3();

  const ray = new T.Raycaster();
  function pick(x, y) {
    ray.setFromCamera(new T.Vector2(2 * x - 1, 1 - 2 * y), camera);
    const hits = clouds.filter((cloud) => cloud.visible).flatMap((cloud) => ray.intersectObject(cloud));
    hits.sort((a, b) => a.distance - b.distance);
    return hits.length ? hits[0].instanceId : null;
  }

  function resize(width, height) {
    renderer.setSize(width, height, false);
    camera.aspect = width / height;
    camera.updateProjectionMatrix();
  }

  return { setEpisode, draw, pick, resize, recolour, restoreCamera };
}

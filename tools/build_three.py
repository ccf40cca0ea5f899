"""Bundle what stage3d.js uses of three.js: python tools/build_three.py (needs npm and the npm registry)."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "0.187.0"
ESBUILD = "0.28.2"
PLAYER = Path(__file__).resolve().parents[1] / "src" / "butfor" / "reporting" / "player"
ELSEWHERE = {"OrbitControls": "controls/OrbitControls.js", "toCreasedNormals": "utils/BufferGeometryUtils.js"}


def build_three() -> Path:
    """Write three.min.js with the names that stage3d.js uses, and the licence beside it."""
    used = sorted(set(re.findall(r"\bT\.(\w+)", (PLAYER / "stage3d.js").read_text(encoding="utf-8"))))
    lines = [f'export {{ {name} }} from "three/addons/{path}";' for name, path in ELSEWHERE.items() if name in used]
    lines.append(f'export {{ {", ".join(name for name in used if name not in ELSEWHERE)} }} from "three";')
    target = PLAYER / "three.min.js"
    with tempfile.TemporaryDirectory() as folder:
        packages = [f"three@{VERSION}", f"esbuild@{ESBUILD}"]
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *packages], cwd=folder, check=True)
        Path(folder, "entry.js").write_text("\n".join(lines), encoding="utf-8")
        about = f"/* three.js {VERSION}, MIT licence; see three.LICENSE. Only what stage3d.js uses. */"
        options = ["--bundle", "--minify", "--format=iife", "--global-name=THREE", f"--banner:js={about}"]
        options += ["--legal-comments=none", f"--outfile={target}"]
        subprocess.run(["node_modules/.bin/esbuild", "entry.js", *options], cwd=folder, check=True)
        shutil.copyfile(Path(folder, "node_modules", "three", "LICENSE"), PLAYER / "three.LICENSE")
    return target


if __name__ == "__main__":
    print(build_three())

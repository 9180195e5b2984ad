// A page that contains only the viewer, for the viewer's tests.
import "../../page/src/page.css";
import { readJson } from "../../page/src/data.ts";
import { type FlameHandle, type FlameModel, mountFlame } from "../../page/src/flame/index.ts";

declare global {
  interface Window {
    flame: FlameHandle;
    chosen: string[];
    readyAt: number;
  }
}

async function mount(): Promise<void> {
  const data = await readJson(document.getElementById("data")!.textContent!);
  const { model, against } = data as { model: FlameModel; against?: FlameModel };
  window.chosen = [];
  window.flame = mountFlame(document.getElementById("host")!, model, {
    ...(against ? { against } : {}),
    onSelect: (name) => window.chosen.push(name),
  });
  requestAnimationFrame(() => requestAnimationFrame(() => (window.readyAt = performance.now())));
}

void mount();

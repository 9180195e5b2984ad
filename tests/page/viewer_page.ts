// A page with the viewer alone, for its tests.
import "../../page/src/page.css";
import { type FlameHandle, type FlameModel, mountFlame } from "../../page/src/flame/index.ts";

declare global {
  interface Window {
    flame: FlameHandle;
    chosen: string[];
    readyAt: number;
  }
}

async function mount(): Promise<void> {
  const bytes = Uint8Array.from(atob(document.getElementById("data")!.textContent!), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  const { model, against } = JSON.parse(text) as { model: FlameModel; against?: FlameModel };
  window.chosen = [];
  window.flame = mountFlame(document.getElementById("host")!, model, {
    ...(against ? { against } : {}),
    onSelect: (name) => window.chosen.push(name),
  });
  requestAnimationFrame(() => requestAnimationFrame(() => (window.readyAt = performance.now())));
}

void mount();

// The page of a report: reads the data in the page and mounts its parts.
import { type FlameModel, mountFlame } from "./flame/index.ts";

async function readData(): Promise<FlameModel> {
  const text = document.getElementById("data")!.textContent!;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(stream).json()) as FlameModel;
}

void readData().then((data) => mountFlame(document.body, data));

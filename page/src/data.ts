// Reads the data that the page contains.
import type { View } from "./flame/index.ts";
import type { Report } from "./report.ts";

/** Characters that change the direction of the surrounding text. They could therefore change what other names look
 * like. */
const DIRECTIONS = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Decodes the content of an element of the page, which is zlib data in base64. */
function unpacked(encoded: string): Response {
  const binary = atob(encoded.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
}

export async function readJson(encoded: string): Promise<unknown> {
  return JSON.parse((await unpacked(encoded).text()).replace(DIRECTIONS, "\ufffd"));
}

export async function readReport(encoded: string): Promise<Report> {
  const report = (await readJson(encoded)) as Report;
  for (const view of [...report.views, ...(report.against?.views ?? [])]) setNumbers(view);
  return report;
}

/** Sets the parent of each node, and the node of each value. For a node, the data contains the distance to its parent, which is
 * 1 for most nodes. For a value, the data contains the distance from the node of the previous value. */
function setNumbers(view: View & { up?: number[]; ahead?: number[] }): void {
  let node = 0;
  view.parent = (view.up ?? []).map((distance, at) => at - distance);
  view.node = (view.ahead ?? []).map((distance) => (node += distance));
  delete view.up;
  delete view.ahead;
}

export async function readBytes(encoded: string): Promise<Uint8Array> {
  return new Uint8Array(await unpacked(encoded).arrayBuffer());
}

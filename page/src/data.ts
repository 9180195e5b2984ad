// Reads the data that the page contains.
import type { Report } from "./report.ts";

/** Decodes the content of an element of the page, which is zlib data in base64. */
function unpacked(encoded: string): Response {
  const binary = atob(encoded.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
}

export async function readReport(encoded: string): Promise<Report> {
  return JSON.parse(await unpacked(encoded).text()) as Report;
}

export async function readBytes(encoded: string): Promise<Uint8Array> {
  return new Uint8Array(await unpacked(encoded).arrayBuffer());
}

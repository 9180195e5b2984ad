// Reads the data out of the page.
import type { Report } from "./report.ts";

/** Decodes and parses the data: base64, zlib, JSON. */
export async function readReport(encoded: string): Promise<Report> {
  const binary = atob(encoded.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text()) as Report;
}

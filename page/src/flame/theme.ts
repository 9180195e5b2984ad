// The theme determines whether the page is dark. A printed page is always light.

const queries = ["print", "(prefers-color-scheme: dark)"].map((query) => matchMedia(query));

/** Returns whether the page is being printed. While it is printed, the browser does not wait for another animation
 * frame. */
export function isPrinted(): boolean {
  return queries[0]!.matches;
}

export function isDark(): boolean {
  return !isPrinted() && queries[1]!.matches;
}

/** Calls `changed` after each change of the theme. */
export function watchTheme(changed: () => void, signal: AbortSignal): void {
  for (const query of queries) query.addEventListener("change", changed, { signal });
}

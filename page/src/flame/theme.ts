// Theme tells whether the page is dark. Prints are light.

const queries = ["print", "(prefers-color-scheme: dark)"].map((query) => matchMedia(query));

export function isDark(): boolean {
  return !queries[0]!.matches && queries[1]!.matches;
}

/** Calls `changed` after each change of the theme. */
export function watchTheme(changed: () => void, signal: AbortSignal): void {
  for (const query of queries) query.addEventListener("change", changed, { signal });
}

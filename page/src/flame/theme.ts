// Theme tells whether the page is dark: by its own `data-theme`, else by the browser's preference. Prints are light.

export function isDark(): boolean {
  if (matchMedia("print").matches) return false;
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Calls `changed` after each change, until the returned function is called. */
export function watchTheme(changed: () => void): () => void {
  const queries = ["print", "(prefers-color-scheme: dark)"].map((query) => matchMedia(query));
  for (const query of queries) query.addEventListener("change", changed);
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return () => {
    observer.disconnect();
    for (const query of queries) query.removeEventListener("change", changed);
  };
}

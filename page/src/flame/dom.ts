// Creates elements without parsing HTML, so names can only become text nodes and attributes.

type Child = Node | string | null;
type Props = Record<string, string | boolean | ((event: never) => void)>;

/** Creates an element. In `props`, a function is an event listener, `true` an empty attribute, and `false` no attribute. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (typeof value === "function") made.addEventListener(key, value as EventListener);
    else if (value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function button(label: string, title: string, act: () => void): HTMLButtonElement {
  return element("button", { type: "button", title, click: act }, label);
}

/** Copies text to the clipboard. If a sandbox forbids the clipboard API, uses the older command. Returns whether it worked. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "fg-offscreen" });
    area.value = text;
    document.body.append(area);
    const focused = document.activeElement;
    area.select();
    const worked = document.execCommand("copy");
    area.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return worked;
  }
}

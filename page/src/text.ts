// Text with commands: what is between backticks in a sentence of the command becomes code.
import { button, copyText, element } from "./flame/dom.ts";

/** Returns the nodes of a sentence. */
export function sentence(text: string): (Node | string)[] {
  return text.split("`").map((part, at) => (at % 2 === 1 ? element("code", {}, part) : part));
}

/** Returns a command with a button that copies it. */
export function command(text: string): HTMLElement {
  const copy = button("copy", `copy: ${text}`, async () => {
    copy.textContent = (await copyText(text)) ? "copied" : "select it";
    setTimeout(() => (copy.textContent = "copy"), 1500);
  });
  return element("p", { class: "command" }, element("code", {}, text), copy);
}

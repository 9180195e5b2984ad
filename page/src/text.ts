// Text with commands. Text between backticks in the command's sentences becomes code.
import { button, copyText, element } from "./flame/dom.ts";

/** Cuts a text to `most` characters. Names of one kind differ at their ends, so two thirds of the kept characters are
 * from the end. */
export function cutMiddle(text: string, most: number): string {
  if (text.length <= most) return text;
  const begin = Math.floor(most / 3);
  return `${text.slice(0, begin)}…${text.slice(text.length - (most - begin - 1))}`;
}

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

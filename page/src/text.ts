// Text that may contain commands. Text between backticks in the sentences that the command writes becomes code.
import { button, copyText, element } from "./flame/dom.ts";

/** Cuts a text to at most `most` characters. Names of the same kind differ at their ends, so two thirds of the kept
 * characters are from the end. */
export function cutMiddle(text: string, most: number): string {
  if (text.length <= most) return text;
  const begin = Math.floor(most / 3);
  return `${text.slice(0, begin)}…${text.slice(text.length - (most - begin - 1))}`;
}

/** Returns a sentence as text nodes and code elements. */
export function sentence(text: string): (Node | string)[] {
  return text.split("`").map((part, at) => (at % 2 === 1 ? element("code", {}, part) : part));
}

/** Returns an element with a command and a button that copies the command. */
export function command(text: string): HTMLElement {
  const copy = button("copy", `copy: ${text}`, async () => {
    copy.textContent = (await copyText(text)) ? "copied" : "select it";
    setTimeout(() => (copy.textContent = "copy"), 1500);
  });
  return element("p", { class: "command" }, element("code", {}, text), copy);
}

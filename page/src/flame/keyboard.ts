// Keys that the canvas handles, and their commands.

export type Command =
  | "up" | "down" | "left" | "right" | "zoom" | "reset" | "in" | "out" | "search" | "next" | "previous"
  | "hide" | "copy-name" | "copy-stack" | "around" | "root";

const COMMANDS: Readonly<Record<string, Command>> = {
  ArrowUp: "up",
  ArrowDown: "down",
  ArrowLeft: "left",
  ArrowRight: "right",
  Enter: "zoom",
  " ": "zoom",
  Escape: "reset",
  "+": "in",
  "=": "in",
  "-": "out",
  "/": "search",
  n: "next",
  N: "previous",
  h: "hide",
  c: "copy-name",
  C: "copy-stack",
  s: "around",
  Home: "root",
};

export const HELP =
  "Click or Enter zooms, Escape shows all, arrows move, + - and Ctrl + wheel zoom, / searches, n N next and previous match, " +
  "s callers and callees, h hides, c C copy name and stack.";

/** Returns the command of a key press, or null. Key combinations such as Ctrl with a key are left to the browser. */
export function commandOf(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): Command | null {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  return COMMANDS[event.key] ?? null;
}

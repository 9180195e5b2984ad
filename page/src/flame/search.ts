// The search marks frames whose name or place (file and line) matches a regular expression, and adds up their share.
import type { Layout } from "./layout.ts";
import type { Names } from "./names.ts";

export interface Pattern {
  matches(text: string): boolean;
  /** Reason why the search text is not used as a regular expression, or null. */
  problem: string | null;
}

/** Compiles the text of a search. If `text` contains upper-case letters, the search is case-sensitive. A text that is
 * not a valid regular expression matches itself. */
export function compile(text: string): Pattern {
  const flags = /[A-Z]/.test(text.replace(/\\./g, "")) ? "u" : "iu";
  try {
    const expression = new RegExp(text, flags);
    return { matches: (name) => expression.test(name), problem: null };
  } catch (error) {
    const literal = new RegExp(text.replace(/[^\w\s]/g, "\\$&"), flags.replace("u", ""));
    return { matches: (name) => literal.test(name), problem: String(error).replace(/^.*: /, "") };
  }
}

export interface Matches {
  /** Contains 1 for each node that matches. */
  isMatch: Uint8Array;
  /** Matching nodes that are not below another match, sorted by width. The widest node is first. */
  topmost: number[];
  /** Sum of the widths of `topmost`. No time counts twice in it. */
  sum: number;
}

export function find(layout: Layout, names: Names, pattern: Pattern): Matches {
  const { tree, width } = layout;
  const nameMatches = names.text.map((text, name) => {
    const place = names.place[name];
    return pattern.matches(text) || (place != null && pattern.matches(place));
  });
  const isMatch = new Uint8Array(tree.parent.length);
  const isBelow = new Uint8Array(tree.parent.length);
  const topmost: number[] = [];
  let sum = 0;
  for (let node = 0; node < tree.parent.length; node++) {
    const name = tree.name[node]!;
    const matches = nameMatches[name] ?? false;
    isMatch[node] = Number(matches);
    const below = node > 0 ? isBelow[tree.parent[node]!]! : 0;
    // Only matches from the root downwards count. A matching caller above the root would count the same time again.
    // (The name of the root is in both halves of the tree: the callers above it and the callees below it.)
    isBelow[node] = below | Number(matches && node < tree.callers);
    if (!matches || below || width[node] === 0) continue;
    topmost.push(node);
    if (node < tree.callers) sum += width[node]!;
  }
  topmost.sort((a, b) => width[b]! - width[a]! || a - b);
  return { isMatch, topmost, sum };
}

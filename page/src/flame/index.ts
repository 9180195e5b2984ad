// The flame graph viewer. The viewer's entry point is `mountFlame`.
import "./flame.css";
export { mountFlame, type FlameHandle, type FlameOptions } from "./viewer.ts";
export type { FlameModel, Track, View } from "./model.ts";

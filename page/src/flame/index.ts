// The flame graph viewer. Its entry point is `mountFlame`.
import "./flame.css";
export { mountFlame, type FlameHandle, type FlameOptions } from "./viewer.ts";
export type { FlameModel, Track, View } from "./model.ts";

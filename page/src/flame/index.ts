// The flame graph viewer. Its door is `mountFlame`.
import "./flame.css";
export { mountFlame, type FlameHandle, type FlameOptions } from "./viewer.ts";
export type { FlameModel, Track, View } from "./model.ts";

// Makes models for the viewer from folded stacks, as the command would write them, and pages that show these models.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { deflateSync } from 'node:zlib';

const here = dirname(fileURLToPath(import.meta.url));

/** Returns a view. `rows` are [stack, value, count, track]. */
export function viewOf(names, rows, { id = 'gpu', label = 'GPU time', unit = 'ns', tracks = new Map() } = {}) {
  const view = { id, label, unit, parent: [-1], name: [-1], node: [], track: [], value: [], count: [] };
  const children = new Map();
  for (const [stack, value, count = 1, track = 'none'] of rows) {
    let node = 0;
    for (const frame of stack.split(';')) {
      if (!names.has(frame)) names.set(frame, names.size);
      const key = `${node} ${names.get(frame)}`;
      if (!children.has(key)) {
        children.set(key, view.parent.length);
        view.parent.push(node);
        view.name.push(names.get(frame));
      }
      node = children.get(key);
    }
    if (!tracks.has(track)) tracks.set(track, tracks.size);
    view.node.push(node);
    view.track.push(tracks.get(track));
    view.value.push(value);
    view.count.push(count);
  }
  return view;
}

/** Returns a model. `views` is a list of [rows, options of `viewOf`]. A track is `rank/gpu/stream/thread`, and each of
 * the four may be empty. `kinds` and `places` are keyed by name. */
export function modelOf(views, { kinds = {}, places = {} } = {}) {
  const names = new Map();
  const tracks = new Map();
  const made = views.map(([rows, options]) => viewOf(names, rows, { ...options, tracks }));
  const list = [...names.keys()];
  return {
    names: list,
    kinds: list.map((name) => kinds[name] ?? kindOf(name)),
    places: list.map((name) => places[name] ?? null),
    tracks: [...tracks.keys()].map((track) => {
      const [rank, gpu, stream, thread] = track === 'none' ? [] : track.split('/').map((part) => part || null);
      return { rank: rank ?? null, gpu: gpu ?? null, stream: stream ?? null, thread: thread ?? null };
    }),
    views: made,
  };
}

function kindOf(name) {
  if (name.endsWith('.py')) return 1;
  if (name.startsWith('cuda')) return 3;
  if (name.startsWith('kernel') || name.startsWith('gemm')) return 4;
  if (name.startsWith('copy')) return 5;
  return name.startsWith('[') ? 6 : 0;
}

let bundle;

/** Writes the page `folder/name` with the viewer and `model`, and with the content security policy of real pages. */
export function writePage(folder, name, model, against) {
  mkdirSync(folder, { recursive: true });
  if (!bundle) {
    const out = join(folder, 'viewer.js');
    execFileSync(join(here, '../../page/bundle'), [join(here, 'viewer_page.ts'), out]);
    bundle = { script: readFileSync(out, 'utf8'), style: readFileSync(out.replace('.js', '.css'), 'utf8') };
  }
  const hash = (text) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
  const data = deflateSync(JSON.stringify({ model, against })).toString('base64');
  const policy = `default-src 'none'; script-src ${hash(bundle.script)}; style-src ${hash(bundle.style)}`;
  const page = `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>viewer</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" content="${policy}">
<style>${bundle.style}</style></head><body><main><h1>Viewer</h1><div id="host"></div></main>
<script type="application/octet-stream+base64" id="data">${data}</script>
<script>${bundle.script}</script></body></html>`;
  const file = join(folder, name);
  writeFileSync(file, page);
  return file;
}

// Functions that the comparisons with other viewers share: a server, a browser that is not limited to 60 frames per
// second, and the memory that the browser uses.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

/** Serves the files of these folders at 127.0.0.1. */
export async function serve(folders) {
  const server = createServer((request, response) => {
    const name = decodeURIComponent(request.url.split(/[?#]/)[0].slice(1));
    const types = { html: 'text/html', js: 'text/javascript', css: 'text/css' };
    for (const place of folders) {
      try {
        const body = readFileSync(join(place, name));
        response.writeHead(200, { 'content-type': types[name.split('.').pop()] ?? 'application/octet-stream' }).end(body);
        return;
      } catch { /* It may be in another folder. */ }
    }
    response.writeHead(404).end();
  });
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  return { base: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

/** Starts Chromium without a GPU and without a limit on frames per second. */
export function launchUnlimited() {
  const args = ['--no-sandbox', '--disable-gpu-vsync', '--disable-frame-rate-limit', '--use-gl=angle', '--use-angle=swiftshader', '--enable-unsafe-swiftshader'];
  return chromium.launch({ executablePath: '/usr/bin/chromium', args });
}

/** Returns the resident memory of the largest renderer process, in MiB. */
export async function rendererMemory(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  const resident = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => {
    const [, kib] = /^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${id}/status`, 'utf8'));
    return kib / 1024;
  });
  return Math.max(...resident);
}

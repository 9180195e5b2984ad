// Opens files in speedscope: node speedscope.mjs NODE_MODULES FILE... prints the title of the page for each.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { basename, join } from 'node:path';

const [modules, ...files] = process.argv.slice(2);
const { chromium } = createRequire(join(modules, 'x.js'))('playwright-core');
const release = join(modules, 'speedscope/dist/release');
const server = createServer((request, response) => {
  const name = decodeURIComponent(request.url.split(/[?#]/)[0].slice(1)) || 'index.html';
  const file = files.find((file) => basename(file) === name) ?? join(release, name);
  try {
    const type = name.endsWith('.html') ? 'text/html' : name.endsWith('.js') ? 'text/javascript' : name.endsWith('.css') ? 'text/css' : 'application/octet-stream';
    response.writeHead(200, { 'content-type': type }).end(readFileSync(file));
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const base = `http://127.0.0.1:${server.address().port}`;
const browser = await chromium.launch({
  executablePath: '/usr/bin/chromium',
  args: ['--no-sandbox', '--use-gl=angle', '--use-angle=swiftshader', '--enable-unsafe-swiftshader', '--disable-quic', '--disable-background-networking'],
});
let failed = false;
for (const file of files) {
  const page = await browser.newPage();
  page.on('dialog', async (dialog) => { failed = true; console.log(`dialog: ${dialog.message()}`); await dialog.dismiss(); });
  page.on('pageerror', (error) => { failed = true; console.log(`error: ${error}`); });
  await page.goto(`${base}/index.html#profileURL=${encodeURIComponent(`${base}/${basename(file)}`)}&title=${basename(file)}`);
  await page.waitForFunction(() => document.title !== 'speedscope', null, { timeout: 30000 }).catch(() => { failed = true; });
  console.log(await page.title());
  await page.close();
}
await browser.close();
server.close();
process.exit(failed ? 1 : 0);

# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: no console errors, no requests, nothing wider than the screen, axe-core's rules, keys.

Needs chromium, node, and the npm packages playwright-core and axe-core in a folder named by HEATFHE_NODE_MODULES.
HEATFHE_REPORT names more pages to look at, such as the one make demo leaves; HEATFHE_SCREENSHOTS a folder for pictures.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from heatfhe.planning import cost_table
from heatfhe.planning.params import preset
from heatfhe.report import gather, render
from tests.report.runs import save_everything

SCRIPT = """
const { chromium } = require('playwright-core');
(async () => {
  const [file, executablePath] = process.argv.slice(2);
  const flags = ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update'];
  const browser = await chromium.launch({ executablePath, args: flags });
  const out = [];
  for (const colorScheme of ['light', 'dark']) for (const width of [390, 1400]) {
    const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
    const page = await context.newPage();
    const errors = [];
    page.on('console', m => { if (m.type() === 'error') errors.push(m.text()); });
    page.on('pageerror', e => errors.push(String(e)));
    page.on('request', r => { if (!/^(file|data):/.test(r.url())) errors.push('request ' + r.url()); });
    await page.goto('file://' + file);
    const drawn = await page.evaluate(
      () => [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height));
    await page.keyboard.press('Tab');
    const skip = await page.evaluate(() => document.activeElement.className);
    await page.keyboard.press('Enter');
    const reached = await page.evaluate(() => location.hash);
    await page.locator('summary').first().focus();
    await page.keyboard.press('Enter');
    const opened = await page.evaluate(() => document.querySelector('details').open);
    await page.emulateMedia({ media: 'print' });
    const printed = await page.evaluate(() => ({
      nav: getComputedStyle(document.querySelector('nav')).display,
      figures: [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height > 60).length }));
    await page.emulateMedia({ media: 'screen' });
    await page.evaluate(() => document.querySelectorAll('details').forEach(d => { d.open = true; }));
    await page.addScriptTag({ path: require.resolve('axe-core') });
    const axe = await page.evaluate(() => axe.run());
    const violations = axe.violations.map(v => v.id + ': ' + v.nodes[0].html);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    const whole = '.claim, .stack, .fit, .warning, .lead, h1, h2, dd';
    const cut = await page.evaluate(kinds => [...document.querySelectorAll(kinds)]
      .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.scrollWidth > e.clientWidth + 1)
      .map(e => e.outerHTML.slice(0, 120)), whole);
    const claims = await page.evaluate(() => [...document.querySelectorAll('.claim')].map(e => e.textContent));
    const hints = await page.evaluate(() => document.querySelectorAll('svg rect > title').length);
    const shots = process.env.HEATFHE_SCREENSHOTS;
    if (shots) await page.screenshot({ path: `${shots}/report-${width}-${colorScheme}.png`, fullPage: true });
    out.push({ colorScheme, width, errors, drawn, violations, wider, skip, reached, opened, printed });
    Object.assign(out.at(-1), { cut, claims, hints });
  }
  await browser.close();
  console.log(JSON.stringify(out));
})();
"""


@pytest.mark.slow
def test_report_in_chromium(tmp_path: Path) -> None:
    modules = Path(os.environ.get("HEATFHE_NODE_MODULES", "node_modules"))
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None or shutil.which("node") is None:
        pytest.skip("chromium and node are not both installed")
    if not (modules / "axe-core").is_dir() or not (modules / "playwright-core").is_dir():
        pytest.skip("npm install axe-core playwright-core, and name their folder in HEATFHE_NODE_MODULES")
    found = gather(save_everything(tmp_path), params=preset("insecure-native-11"), costs=cost_table("native-cpu-11"))
    page = tmp_path / "report.html"
    page.write_text(render(found, title="report", versions=[("heatfhe", "0")], commands=["heat report"]))
    (tmp_path / "look.js").write_text(SCRIPT)
    environment = {**os.environ, "NODE_PATH": str(modules.resolve())}
    for seen in [page, *(Path(p).resolve() for p in os.environ.get("HEATFHE_REPORT", "").split(":") if p)]:
        command = ["node", str(tmp_path / "look.js"), str(seen), browser]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        for view in json.loads(done.stdout):
            assert view["errors"] == [], view
            assert view["violations"] == [], view
            assert view["wider"] <= 1, view
            assert view["cut"] == [], view  # tables that become cards, claims and headings are read whole
            assert any("SECURITY" in claim or "bits" in claim for claim in view["claims"]), view
            assert view["hints"] >= 50, view
            assert len(view["drawn"]) >= 10, view
            assert min(view["drawn"]) > 100, view
            assert (view["skip"], view["reached"], view["opened"]) == ("skip", "#main", True), view
            assert view["printed"] == {"nav": "none", "figures": len(view["drawn"])}, view

# SPDX-License-Identifier: Apache-2.0
"""The report's style sheet: two colour schemes of checked contrast, print, and narrow screens."""

CSS = """
:root { --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d0d7de; --panel: #f6f8fa; --link: #0a4fa8;
  --warn: #7a3e00; --warnback: #fff4e0; --grid: #e4e8ec;
  --s0: #8a93a0; --s1: #b23a1e; --s2: #1f6f54; --s3: #6a3fa0; --s4: #1d5fa8; --s5: #8a6a00; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e8ebef; --soft: #a9b3be; --rule: #3a424c;
  --panel: #1d2228; --link: #84b9ff; --warn: #ffcf99; --warnback: #33240f; --grid: #2b3138;
  --s0: #8f9aa8; --s1: #ff8a66; --s2: #5fc9a1; --s3: #c09cf2; --s4: #74b2f7; --s5: #e0bd4b; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .6rem 0; letter-spacing: -.01em; text-wrap: balance; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.05rem; margin: 1.2rem 0 .4rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 1rem; top: .5rem; background: var(--paper); padding: .4rem .8rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; list-style: none; padding: 0; margin: .8rem 0; }
nav a { display: inline-block; padding: .15rem 0; }
@media screen and (min-width: 76rem) {
  body { max-width: 80rem; display: grid; grid-template-columns: 13rem minmax(0, 60rem); column-gap: 3rem;
    padding: 1.5rem 2rem; }
  body > header, body > footer, body > main { grid-column: 2; }
  nav { grid-column: 1; grid-row: 2; } header { grid-row: 1; } main { grid-row: 2; }
  nav ul { position: sticky; top: 1.5rem; display: block; border-right: 1px solid var(--rule); padding-right: 1rem; }
  nav li { margin: .1rem 0 .5rem; line-height: 1.3; font-size: .93rem; }
  nav a { text-decoration: none; } nav a:hover, nav a:focus { text-decoration: underline; } }
.lead { color: var(--soft); margin: .2rem 0 1rem; max-width: 46rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .8rem;
  list-style: none; padding: 0; margin: 1rem 0; }
.tiles li { background: var(--panel); border: 1px solid var(--rule); border-radius: 10px; padding: .8rem 1rem; }
.tiles strong { display: block; font-size: 1.55rem; line-height: 1.25; font-variant-numeric: tabular-nums;
  letter-spacing: -.02em; }
.tiles .was { color: var(--soft); font-weight: 400; } .tiles .now { color: var(--s1); }
.tiles span.what { font-size: .88rem; color: var(--soft); }
.warning { color: var(--warn); background: var(--warnback); padding: .6rem .9rem; border-left: 4px solid; }
figure { margin: 1.4rem 0; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
.words { overflow-wrap: anywhere; margin: .2rem 0 .5rem; color: var(--soft); font-size: .93rem; }
.wide { overflow-x: auto; max-width: 100%; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; background: var(--panel);
  border-radius: 6px; }
svg text { font: 12px system-ui, "Liberation Sans", sans-serif; fill: var(--ink); }
svg text.small { font-size: 9px; fill: var(--soft); }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .line.dot { stroke-width: 3; } svg .line.thin { stroke-width: 1.2; }
svg .hatched { fill: url(#hatch); } svg .stripe { fill: var(--paper); fill-opacity: .75; }
svg .line.d1 { stroke-dasharray: 7 3; } svg .line.d2 { stroke-dasharray: 2 3; }
svg .line.d3 { stroke-dasharray: 9 3 2 3; }
svg .line.d4 { stroke-dasharray: 1 4; } svg .line.d5 { stroke-dasharray: 12 4; }
svg .area { fill-opacity: .28; }
svg .spot { fill: transparent; pointer-events: all; } svg .spot:hover { fill: var(--ink); fill-opacity: .18; }
svg .fill:hover { opacity: .8; }
svg .fill.s0 { fill: var(--s0); } svg .fill.s1 { fill: var(--s1); } svg .fill.s2 { fill: var(--s2); }
svg .fill.s3 { fill: var(--s3); } svg .fill.s4 { fill: var(--s4); } svg .fill.s5 { fill: var(--s5); }
svg .line.s0 { stroke: var(--s0); } svg .line.s1 { stroke: var(--s1); } svg .line.s2 { stroke: var(--s2); }
svg .line.s3 { stroke: var(--s3); } svg .line.s4 { stroke: var(--s4); } svg .line.s5 { stroke: var(--s5); }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { border-bottom: 1px solid var(--rule); padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--rule); }
tbody th { font-weight: 500; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--link); }
details .wide { max-height: 24rem; overflow: auto; }
code { overflow-wrap: anywhere; }
code, pre { font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { overflow-x: auto; background: var(--panel); padding: .7rem; border-radius: 6px; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .2rem 1rem; margin: .4rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.beside { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5rem; }
.beside > div { min-width: 0; background: var(--panel); border: 1px solid var(--rule); border-radius: 10px;
  padding: .4rem 1.1rem 1rem; }
.beside pre { background: none; padding: 0; color: var(--soft); letter-spacing: .02em; }
.said { font-size: 1.35rem; line-height: 1.4; margin: .4rem 0 .9rem; overflow-wrap: anywhere; }
.said mark { background: none; color: var(--s1); font-weight: 600; }
.said .sealed { font: 1.05rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; color: var(--soft);
  overflow-wrap: anywhere; }
.claim { overflow-wrap: anywhere; }
.set { background: var(--panel); border: 1px solid var(--rule); border-radius: 10px; padding: .2rem 1.1rem .9rem;
  margin: .8rem 0; }
.set.toy { border-left: 4px solid var(--warn); }
.differs td, .differs th { background: var(--warnback); }
dl.words dt { color: var(--ink); font-weight: 600; }
dl.words { grid-template-columns: 11rem 1fr; }
@media (max-width: 44rem) { .beside { grid-template-columns: 1fr; }
  dl, dl.words { grid-template-columns: 1fr; gap: 0; } dd { margin: 0 0 .6rem; }
  h1 { font-size: 1.5rem; } .tiles { grid-template-columns: 1fr 1fr; } .tiles strong { font-size: 1.2rem; }
  .fit table { table-layout: fixed; width: 100%; font-size: .82rem; } .fit th:first-child { width: 36%; }
  .fit th, .fit td { overflow-wrap: anywhere; hyphens: auto; }
  .stack table, .stack tbody, .stack tr, .stack td, .stack tbody th { display: block; width: 100%; }
  .stack thead { position: absolute; clip-path: inset(50%); height: 1px; width: 1px; overflow: hidden; }
  .stack tr { border: 1px solid var(--rule); border-radius: 8px; padding: .5rem .8rem; margin: 0 0 .7rem; }
  .stack tbody th { font-weight: 600; border: 0; padding: 0 0 .2rem; overflow-wrap: anywhere; }
  .stack td { border: 0; padding: .1rem 0; display: grid; grid-template-columns: 45% 1fr; gap: .6rem;
    overflow-wrap: anywhere; }
  .stack td::before { content: attr(data-label); color: var(--soft); } }
footer { margin-top: 3rem; color: var(--soft); font-size: .9rem; }
@media print { nav, .skip, details { display: none; } body { max-width: none; color: #000; background: #fff; }
  figure, section, tr { break-inside: avoid; } svg { min-width: 0; } .wide { overflow: visible; } }
"""

'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);

// --- small tools -------------------------------------------------------------------------------

function element(make, tag, attributes, children) {
  const e = make(tag);
  for (const [key, value] of Object.entries(attributes || {}))
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) e.setAttribute(key, value);
  e.append(...children.flat().filter(c => c !== null && c !== undefined));
  return e;
}
const h = (tag, attributes, ...children) =>
  element(t => document.createElement(t), tag, attributes, children);
const s = (tag, attributes, ...children) =>
  element(t => document.createElementNS($('svg').namespaceURI, t), tag, attributes, children);

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let k = 0;
  for (; n >= 1024 && k + 1 < units.length; ++k) n /= 1024;
  return `${k === 0 ? Math.round(n) : n.toFixed(1)} ${units[k]}`;
}
function seconds(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  return us >= 1e3 ? `${(us / 1e3).toFixed(2)} ms` : `${us.toFixed(1)} µs`;
}
const exponent = x => (x === 0 ? '0' : x.toExponential(1));
const sum = list => list.reduce((a, b) => a + b, 0);
const colour = k => `var(--c${k % 6})`;
const breakable = name => name.replace(/[_.]/g, '$&\u200b');  // long names wrap at their joints
const meshName = m => (m.dp > 1 ? `${m.dp}x` : '') + `${m.cp0}x${m.cp1}`;
const option = (text, k) => h('option', {value: k}, text);
const pill = pass => h('span', {class: pass ? 'pill' : 'pill fail'}, pass ? 'pass' : 'FAIL');

function legend(id, entries) {
  $(id).replaceChildren(...entries.map(([name, fill]) =>
    h('span', {}, h('i', {style: `background:${fill}`}), name)));
}

// A text that follows the pointer over an element.
function tip(e, text) {
  e.addEventListener('pointermove', event => {
    $('tip').textContent = text;
    $('tip').hidden = false;
    const box = $('tip').getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 6);
    const below = event.clientY + 18;
    const y = below + box.height < innerHeight ? below : event.clientY - box.height - 10;
    $('tip').style.cssText = `left:${Math.max(6, x)}px;top:${y}px`;
  });
  e.addEventListener('pointerleave', () => { $('tip').hidden = true; });
  return e;
}

// A table that sorts by any of its columns: {title, value, show, text, optional}.
function sortable(table, columns, rows, after) {
  let by = -1, down = false;
  const draw = () => {
    const sorted = rows.slice();
    if (by >= 0) {
      const key = columns[by].value;
      sorted.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
    }
    const style = c => [c.text && 'text', c.optional && 'optional'].filter(Boolean).join(' ');
    table.replaceChildren(
      h('thead', {}, h('tr', {}, columns.map((c, k) =>
        h('th', {class: style(c), scope: 'col',
          'aria-sort': k !== by ? null : down ? 'descending' : 'ascending'},
        h('button', {type: 'button', onclick: () => {
          down = by === k ? !down : !c.text;
          by = k;
          draw();
        }}, c.title))))),
      h('tbody', {}, sorted.flatMap(row => {
        const line = h('tr', {class: after ? 'case' : null}, columns.map(c =>
          h('td', {class: style(c)}, c.show ? c.show(row) : String(c.value(row)))));
        return after ? [line, ...after(row, line, columns.length)] : [line];
      })));
  };
  draw();
}

const purposes = ['saved', 'activation', 'gradient', 'communication', 'workspace', 'parameter'];

// --- what there is -----------------------------------------------------------------------------

const cases = data.reports.flatMap(r => r.cases.map(c => ({...c, run: r})));
const several = data.reports.length > 1;
const caseName = c => `${c.name} (${c.kind}${several ? `, ${meshName(c.run.mesh)} ${c.run.dtype}` : ''})`;
const sent = c => sum(c.comm.map(m => m.bytes));
const growth = data.reports.flatMap(r => (r.growth || []).map(g => ({...g, run: r})));
const present = {
  parity: cases.length, growth: growth.length, memory: cases.length,
  messages: cases.some(c => sent(c) > 0), timeline: data.traces.length, schedule: data.plans.length,
};

function drawHead() {
  $('runs').append(...data.reports.map(r => h('div', {class: 'run'}, pill(r.pass), ' ',
    `mesh ${meshName(r.mesh)}, ${r.ranks} rank${r.ranks > 1 ? 's' : ''}, ${r.dtype} on ` +
    `${r.device}, ${r.instruction_set}. `, h('code', {}, r.command))));
  const tiles = [];
  const tile = (value, text) => tiles.push(h('div', {class: 'tile'}, h('b', {}, value),
    h('span', {}, text)));
  if (cases.length) {
    tile(`${cases.filter(c => c.pass).length} of ${cases.length}`, 'cases hold');
    const worst = cases.reduce((a, b) => (a.max_rel / a.tolerance > b.max_rel / b.tolerance ? a : b));
    tile(exponent(worst.max_rel), `largest difference, bound ${exponent(worst.tolerance).replace('-', '\u2011')}`);
    tile(bytes(Math.max(...cases.map(c => c.peak_bytes))), 'largest peak of a rank');
    tile(bytes(Math.max(...cases.map(sent))), 'sent by a rank, most of any case');
  }
  if (data.traces.length)
    tile(data.traces.map(t => `${t.otherData.hidden_percent.toFixed(0)} %`).join(', '),
      'of communication hidden');
  $('tiles').append(...tiles);
  for (const section of document.querySelectorAll('section')) {
    section.hidden = !present[section.id];
    if (!section.hidden)
      $('contents').append(h('a', {href: `#${section.id}`}, section.dataset.title));
  }
  $('footer').textContent = `Written by tessera ${data.tessera} from ` +
    [...data.reports, ...data.traces].map(f => f.file).join(', ') + '.';
}

// --- parity and growth -------------------------------------------------------------------------

function drawParity() {
  const columns = [
    {title: 'case', text: true, value: c => c.name, show: c => breakable(c.name)},
    {title: '', text: true, value: c => c.pass, show: c => pill(c.pass)},
    {title: 'kind', text: true, value: c => c.kind, optional: true},
    ...(several ? [{title: 'mesh', text: true, value: c => `${meshName(c.run.mesh)} ${c.run.dtype}`}]
      : []),
    {title: 'max rel', value: c => c.max_rel, show: c => exponent(c.max_rel)},
    {title: 'bound', value: c => c.tolerance, show: c => exponent(c.tolerance), optional: true},
    {title: 'in', text: true, value: c => c.worst, optional: true},
    {title: 'saved', value: c => c.saved_bytes, show: c => bytes(c.saved_bytes)},
    {title: 'peak', value: c => c.peak_bytes, show: c => bytes(c.peak_bytes)},
    {title: 'messages', value: c => sum(c.comm.map(m => m.messages)), optional: true},
    {title: 'sent', value: sent, show: c => bytes(sent(c))},
    {title: 'seconds', value: c => c.seconds, show: c => c.seconds.toFixed(4), optional: true},
  ];
  sortable($('cases'), columns, cases, (c, line, width) => {
    const tensors = h('table');
    sortable(tensors, [
      {title: 'tensor', text: true, value: t => t.tensor},
      {title: 'max abs', value: t => t.max_abs, show: t => exponent(t.max_abs)},
      {title: 'max rel', value: t => t.max_rel, show: t => exponent(t.max_rel)},
    ], c.tensors);
    const inner = h('tr', {hidden: ''}, h('td', {class: 'inner text', colspan: width},
      h('p', {}, c.problem), tensors));
    line.addEventListener('click', () => { inner.hidden = !inner.hidden; });
    const failures = h('tr', {}, h('td', {class: 'text failure', colspan: width},
      c.failures.map(f => h('div', {}, f))));
    return c.failures.length ? [failures, inner] : [inner];
  });
}

function drawGrowth() {
  const names = new Map();  // one line per case, one column per purpose
  for (const g of growth) {
    const key = `${g.name} ${g.run.file}`;
    if (!names.has(key)) names.set(key, {name: g.name, pair: g.pair, pass: g.pass, tokens: g.tokens});
    names.get(key)[g.purpose] = g;
  }
  const power = x => (x === null ? '–' : x.toFixed(2).replace('-', '−'));
  const cell = g => (g === undefined ? '' : tip(
    h('span', {}, 'N', h('sup', {}, power(g.tokens_exponent)), ' P',
      h('sup', {}, power(g.ranks_exponent))),
    `${bytes(g.bytes)} with N = ${g.tokens}\n${bytes(g.bytes_double_tokens)} with N = ${2 * g.tokens}\n` +
    `${bytes(g.bytes_one_rank)} with N = ${g.tokens} on one rank`));
  sortable($('growth-table'), [
    {title: 'case', text: true, value: c => c.name, show: c => breakable(c.name)},
    {title: '', text: true, value: c => c.pass, show: c => (c.pair ? pill(c.pass) : '')},
    ...purposes.filter(p => growth.some(g => g.purpose === p)).map(p => (
      {title: p, value: c => c[p]?.tokens_exponent ?? 0, show: c => cell(c[p])})),
  ], [...names.values()]);
}

// --- memory ------------------------------------------------------------------------------------

const purposeColour = p => colour(purposes.indexOf(p));

function drawMemory() {
  const show = () => {
    const entries = cases[$('memory-case').value].memory || [];
    const most = Math.max(1, ...entries.map(e => e.peak));
    const bars = h('div', {class: 'bars'});
    let path = null;
    for (const e of entries) {
      if (e.scope !== path) bars.append(h('div', {class: 'path'}, breakable(e.scope) || 'inputs, parameters, results'));
      path = e.scope;
      const part = (value, name) => h('span', {
        style: `width:${100 * value / most}%;background:${purposeColour(e.purpose)}`,
        ...(value === 0 && {hidden: ''})});
      bars.append(h('div', {class: 'name'}, e.purpose),
        tip(h('div', {class: 'bar peak'}, part(e.peak), part(e.live)),
          `${e.purpose} of ${e.scope || 'what is made outside of layers'}\n` +
          `alive after forward ${bytes(e.live)}, peak ${bytes(e.peak)}`),
        h('div', {class: 'value'}, bytes(e.peak)));
    }
    $('memory-tree').replaceChildren(bars);
  };
  $('memory-case').append(...cases.map((c, k) => option(caseName(c), k)));
  $('memory-case').value = cases.reduce((a, c, k) => (c.peak_bytes > cases[a].peak_bytes ? k : a), 0);
  $('memory-case').onchange = show;
  const used = new Set(cases.flatMap(c => (c.memory || []).map(e => e.purpose)));
  legend('memory-legend', purposes.filter(p => used.has(p)).map(p => [p, purposeColour(p)]));
  show();
}

// --- messages ----------------------------------------------------------------------------------

function drawMessages() {
  const rows = cases.flatMap(c => c.comm.map(m => ({...m, name: caseName(c)})));
  const axes = [...new Set(rows.map(m => m.axis))].sort();
  const most = Math.max(...cases.map(sent));
  legend('axis-legend', axes.map((a, k) => [a, colour(k)]));
  const bars = h('div', {class: 'bars'});
  for (const c of cases.filter(c => sent(c) > 0)) {
    const bar = h('div', {class: 'bar'});
    axes.forEach((axis, k) => {
      const on = c.comm.filter(m => m.axis === axis && m.bytes > 0);
      if (!on.length) return;
      bar.append(tip(h('span', {
        style: `width:${100 * sum(on.map(m => m.bytes)) / most}%;background:${colour(k)}`}),
      `${axis}\n` + on.map(m => `${m.pass} ${m.op}: ${m.messages} messages, ${bytes(m.bytes)}`)
        .join('\n')));
    });
    bars.append(h('div', {class: 'name'}, breakable(caseName(c))), bar,
      h('div', {class: 'value'}, bytes(sent(c))));
  }
  $('comm-bars').replaceChildren(bars);
  sortable($('comm-table'), [
    {title: 'case', text: true, value: m => m.name},
    {title: 'pass', text: true, value: m => m.pass},
    {title: 'operation', text: true, value: m => m.op},
    {title: 'axis', text: true, value: m => m.axis},
    {title: 'operations', value: m => m.count},
    {title: 'messages', value: m => m.messages},
    {title: 'bytes', value: m => m.bytes, show: m => bytes(m.bytes)},
  ], rows);
}

// --- timeline ----------------------------------------------------------------------------------

const kinds = {
  message: ['message in flight', colour(2)], layer: ['layer, forward', 'var(--layer)'],
  backward: ['backward', colour(3)], block: ['block of computation', colour(0)],
  wait: ['wait', colour(4)],
};

// Ranks with slices (nested: depth) and messages (side by side: lane), from the events of a file.
function ranksOf(trace) {
  const ranks = new Map();
  const rank = pid => {
    if (!ranks.has(pid)) ranks.set(pid, {name: `rank ${pid}`, slices: [], messages: []});
    return ranks.get(pid);
  };
  const open = new Map();
  for (const e of trace.traceEvents) {
    if (e.ph === 'M' && e.name === 'process_name') rank(e.pid).name = e.args.name;
    if (e.ph === 'X')
      rank(e.pid).slices.push({begin: e.ts, end: e.ts + e.dur, kind: e.cat, name: e.name, args: e.args});
    if (e.ph === 'b') open.set(e.id, e);
    if (e.ph === 'e' && open.has(e.id)) {
      const b = open.get(e.id);
      rank(e.pid).messages.push({begin: b.ts, end: e.ts, kind: 'message', name: b.name, args: b.args});
    }
  }
  for (const r of ranks.values()) {
    const stack = [];
    for (const e of r.slices) {  // outer ones come first
      while (stack.length && stack[stack.length - 1].end <= e.begin) stack.pop();
      e.row = stack.length;
      stack.push(e);
    }
    const lanes = [];
    for (const e of r.messages.sort((a, b) => a.begin - b.begin)) {
      let k = lanes.findIndex(end => end <= e.begin);
      if (k < 0) k = lanes.length;
      lanes[k] = e.end;
      e.row = k;
    }
    r.lanes = lanes.length;
    r.runs = r.slices.filter(e => e.row === 0 && e.kind === 'layer');
    r.depth = 1 + Math.max(0, ...r.slices.map(e => e.row));
  }
  return [...ranks.entries()].sort((a, b) => a[0] - b[0]).map(([, r]) => r);
}

function drawTimeline() {
  const runs = data.traces.flatMap(trace => {
    const ranks = ranksOf(trace);
    const count = Math.min(...ranks.map(r => r.runs.length));
    return Array.from({length: count}, (_, k) => ({
      trace, ranks, name: `${k + 1}. ${ranks[0].runs[k].name}`,
      begin: Math.min(...ranks.map(r => r.runs[k].begin)),
      end: Math.max(...ranks.map(r => r.runs[k].end)),
    }));
  });
  if (!runs.length) return;
  let run = null, from = 0, to = 1;
  const choose = k => {
    run = runs[k];
    [from, to] = [run.begin, run.end];
    const own = run.trace.otherData;
    $('timeline-summary').textContent =
      `Of the time in which messages were in flight, ${own.hidden_percent.toFixed(1)}\u00a0% was not ` +
      'spent waiting (all runs; by rank: ' +
      own.ranks.map(r => `${r.hidden_percent.toFixed(0)}\u00a0%`).join(', ') + ').';
    draw();
  };

  function drawTrack(svg, r, top, scale, width) {
    const last = new Map();  // per row: the pixel up to which it is drawn
    const bar = (e, y, height) => {
      if (e.end < from || e.begin > to) return;
      const x = Math.max(0, scale(e.begin)), right = Math.min(width, scale(e.end));
      if (right <= (last.get(y) ?? -1) + .3) return;
      const w = Math.max(.8, right - x);
      last.set(y, x + w);
      const inset = w > 3 ? .5 : 0;
      svg.append(tip(s('rect', {x, y, width: w - inset, height, rx: w > 6 ? 2 : 0,
        fill: kinds[e.kind][1]}), `${e.name}\n${seconds(e.end - e.begin)}` +
        (e.args.bytes !== undefined ? `, ${bytes(e.args.bytes)}` : '') +
        (e.args.scope ? `\nin ${e.args.scope}` : '')));
      const room = Math.floor((w - 8) / 6.3);
      const shown = e.kind === 'backward' ? e.name.split('.').pop() : e.name;
      if (height > 12 && room > 4)
        svg.append(s('text', {x: x + 4, y: y + 12, class: `in ${e.kind}`},
          shown.length > room ? shown.slice(0, room - 1) + '…' : shown));
    };
    for (const e of r.messages) bar(e, top + 18 + 7 * e.row, 5);
    const base = top + 22 + 7 * r.lanes;
    for (const e of r.slices) bar(e, base + 18 * e.row, 16);
    svg.append(s('text', {x: 0, y: top + 13, class: 'rank'}, r.name));
  }

  function draw() {
    const chart = $('timeline-chart'), width = chart.clientWidth;
    if (width === 0) return;
    const scale = t => (t - from) / (to - from) * width;
    const heights = run.ranks.map(r => 30 + 7 * r.lanes + 18 * r.depth);
    const height = sum(heights) + 20;
    const svg = s('svg', {width, height, role: 'img', 'aria-label': 'Timeline of all ranks'});
    const step = niceStep((to - from) / Math.max(2, width / 110));
    for (let t = Math.ceil((from - run.begin) / step) * step; t + run.begin <= to; t += step) {
      const x = scale(t + run.begin);
      svg.append(s('line', {x1: x, x2: x, y1: 0, y2: height - 16}),
        s('text', {x: Math.min(x + 3, width - 48), y: height - 4},
          seconds(t).replace(/\.0+ /, ' ')));
    }
    let top = 0;
    run.ranks.forEach((r, k) => {
      drawTrack(svg, r, top, scale, width);
      top += heights[k];
    });
    enlargeable(svg, width, height);
    chart.replaceChildren(svg);
  }

  function niceStep(raw) {
    const unit = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map(k => k * unit).find(v => v >= raw);
  }

  function enlargeable(svg, width, height) {
    let start = null;
    const mark = s('rect', {y: 0, height, fill: 'var(--link)', opacity: .18, 'pointer-events': 'none'});
    const place = event => Math.min(width, Math.max(0, event.clientX - svg.getBoundingClientRect().left));
    svg.onpointerdown = event => { start = place(event); };
    svg.addEventListener('pointermove', event => {
      if (start === null) return;
      const x = place(event);
      mark.setAttribute('x', Math.min(x, start));
      mark.setAttribute('width', Math.abs(x - start));
      svg.append(mark);
    });
    svg.onpointerup = event => {
      const x = place(event), first = start;
      start = null;
      mark.remove();
      if (first === null || Math.abs(x - first) < 5) return;
      const time = p => from + p / width * (to - from);
      [from, to] = [time(Math.min(x, first)), time(Math.max(x, first))];
      draw();
    };
    svg.onpointerleave = () => { start = null; mark.remove(); };
  }

  $('timeline-run').append(...runs.map((r, k) => option(r.name, k)));
  $('timeline-run').onchange = () => choose(Number($('timeline-run').value));
  $('timeline-reset').onclick = () => choose(Number($('timeline-run').value));
  const panels = runs.findIndex(r => r.ranks.some(k => k.messages.some(
    m => m.args.op === 'shift' && m.begin >= r.begin && m.end <= r.end)));
  $('timeline-run').value = Math.max(0, panels);
  legend('timeline-legend', Object.values(kinds));
  choose(Math.max(0, panels));
  new ResizeObserver(draw).observe($('timeline-chart'));
}

// --- schedule ----------------------------------------------------------------------------------

function drawSchedule() {
  const plan = () => data.plans[Number($('schedule-mesh').value)];
  let playing = null;

  // One operand: the whole matrix with the panels that this rank holds; `held[0]` is in use.
  function operand(p, r, held, isX, name) {
    const size = 100, bands = isX ? p.rows : p.cols, band = isX ? r.i : r.j;
    const thick = size / bands, long = size / p.panels;
    const svg = s('svg', {viewBox: `-3 -3 ${size + 6} ${size + 6}`, 'aria-hidden': 'true'},
      s('rect', {width: size, height: size, rx: 2, fill: 'var(--layer)', opacity: .45}));
    held.forEach((panel, k) => svg.append(s('rect', {
      x: (isX ? panel * long : band * thick) + 1, y: (isX ? band * thick : panel * long) + 1,
      width: (isX ? long : thick) - 2, height: (isX ? thick : long) - 2,
      fill: colour(panel), opacity: k === 0 ? 1 : .5,
      stroke: k === 0 ? 'var(--text)' : 'none', 'stroke-width': 2.5})));
    return h('figure', {}, svg, h('figcaption', {}, `${name} ${held.join(', ')}`));
  }

  function show() {
    const p = plan(), t = Number($('schedule-step').value);
    $('schedule-label').textContent = `${t + 1} of ${p.panels}`;
    $('schedule-grid').style.gridTemplateColumns = `repeat(${p.cols}, minmax(6.6rem, min(20rem, ${80 / p.cols}vw)))`;
    $('schedule-grid').replaceChildren(...p.ranks.map((r, k) => {
      const step = r.steps[t];
      return tip(h('div', {class: 'rank'},
        h('h3', {}, `rank ${k} (${r.i}, ${r.j})`),
        h('div', {class: 'operands'},
          operand(p, r, step.x, true, `X${step.x_moves ? ' ←' : ''}`),
          operand(p, r, step.y, false, `Y${step.y_moves ? ' ↑' : ''}`))),
      `Z(${r.i},${r.j}) += X(${r.i};${step.x[0]}) · Y(${step.y[0]};${r.j})\n` +
        (step.x_moves ? `X panel ${step.x[0]} goes to (${r.i}, ${(r.j + p.cols - 1) % p.cols})\n`
          : 'X stays: nobody needs it again\n') +
        (step.y_moves ? `Y panel ${step.y[0]} goes to (${(r.i + p.rows - 1) % p.rows}, ${r.j})`
          : 'Y stays: nobody needs it again'));
    }));
  }

  function reset() {
    $('schedule-step').max = plan().panels - 1;
    $('schedule-step').value = 0;
    show();
  }

  $('schedule-mesh').append(...data.plans.map((p, k) => option(`${p.rows}x${p.cols}`, k)));
  $('schedule-mesh').onchange = reset;
  $('schedule-step').oninput = show;
  $('schedule-play').onclick = () => {
    if (playing) clearInterval(playing);
    playing = playing ? null : setInterval(() => {
      $('schedule-step').value = (Number($('schedule-step').value) + 1) % plan().panels;
      show();
    }, 900);
    $('schedule-play').textContent = playing ? 'Pause' : 'Play';
  };
  reset();
}

drawHead();
if (present.parity) drawParity();
if (present.growth) drawGrowth();
if (present.memory) drawMemory();
if (present.messages) drawMessages();
if (present.timeline) drawTimeline();
if (present.schedule) drawSchedule();

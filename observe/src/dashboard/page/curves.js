// The curves: reward by environment, staleness, drift and entropy, tokens, and any other number of the steps on demand.

import { $, h, memory } from './dom.js';
import { Chart, DASHES, LINES, redraw } from './charts.js';
import { count, num, seconds } from './format.js';
import { metricKeys, on, store } from './store.js';

const SMOOTHINGS = [
  ['0', 'none'],
  ['0.6', 'light'],
  ['0.9', 'strong'],
  ['0.97', 'very strong'],
];
const added = new Map();
let weight = Number(memory.get('smoothing', 0.6)) || 0;

const line = (key, label, i, more = {}) => ({
  key,
  label,
  colour: LINES[i % LINES.length],
  dash: DASHES[i % DASHES.length],
  value: (row) => row[key],
  ...more,
});

/** The environments that are trained, and those that only the rows know: of a run that was resumed with others. */
function environments() {
  const names = (store.run?.environments ?? []).filter(({ weight }) => weight > 0).map(({ name }) => name);
  for (const key of metricKeys()) {
    const found = /^env\/(.+)\/reward\/total$/.exec(key);
    if (found && found[1] !== 'all' && !names.includes(found[1])) names.push(found[1]);
  }
  return names;
}

function rewards() {
  const names = environments();
  if (names.length === 1) return [line(`env/${names[0]}/reward/total`, names[0], 1)];
  return [
    line('env/all/reward/total', 'all', 0, { width: 2.25 }),
    ...names.map((name, i) => line(`env/${name}/reward/total`, name, i + 1)),
  ];
}

/** The environments that are only measured. */
function held() {
  const names = new Set((store.run?.environments ?? []).filter(({ weight }) => weight === 0).map(({ name }) => name));
  for (const key of metricKeys()) {
    const found = /^eval\/(.+)\/episodes$/.exec(key);
    if (found) names.add(found[1]);
  }
  return [...names];
}

/** Of each environment its mean, and the ends of the interval. */
const measured = () =>
  held().flatMap((name, i) => {
    const end = (which, label) => line(`eval/${name}/reward_${which}`, label, i + 1, { width: 1, dash: [3, 3] });
    const mean = line(`eval/${name}/reward`, name, i + 1, { points: true });
    return [mean, end('high', `${name}, high`), end('low', `${name}, low`)];
  });

const between = (items) => items.flatMap((_, i) => (i % 3 === 0 ? [{ series: [i + 2, i + 3] }] : []));

// Whether a step has the number.
const present = ({ key }) => store.rows.some((row) => Number.isFinite(row[key]));

const CHARTS = [
  { title: 'Reward', hint: 'mean of a step', zero: [], series: rewards, smooth: true, wide: true },
  {
    title: 'Held-out reward',
    hint: 'of evaluations, with the 95% interval',
    zero: [],
    series: measured,
    bands: between,
    wait: 'Appears with the first evaluation.',
    where: () => held().length > 0,
  },
  {
    title: 'Staleness',
    hint: 'steps behind',
    series: () =>
      [
        line('async/staleness_mean', 'mean', 1),
        line('async/staleness_max', 'max', 3, { width: 1.25, stepped: true, pool: 'max' }),
        line('async/staleness_newest_mean', 'newest weights', 2, { dash: [7, 4] }),
      ].filter(present),
  },
  {
    title: 'Drift and entropy',
    hint: 'nats',
    zero: ['y', 'right'],
    series: () =>
      [
        line('optim/kl_sample_train_v2', 'KL v2, left', 2),
        line('optim/entropy', 'entropy, right', 4, { scale: 'right', dash: [7, 4] }),
        line('optim/kl_one_version', 'KL v2 of one version, left', 6, { dash: [3, 3] }),
      ].filter(present),
    smooth: true,
  },
  {
    title: 'Tokens',
    hint: 'of a step',
    unit: (x) => count(x),
    series: () => [line('tokens/sampled', 'sampled', 3), line('tokens/trained', 'trained', 1, { dash: [7, 4] })],
    smooth: true,
  },
  {
    title: 'Seconds per step',
    hint: 'and how long the trainer stood idle',
    unit: seconds,
    series: () =>
      [
        line('time/total', 'step', 0, { width: 2.25 }),
        line('time/trainer_idle', 'idle', 2, { dash: [7, 4] }),
        line('time/export', 'export', 6, { dash: [3, 3] }),
      ].filter(present),
    smooth: true,
  },
];

const unitOf = (key) => (key.startsWith('time/') || /_s$/.test(key) ? seconds : num);

function add(key) {
  if (added.has(key) || !key) return;
  const close = h('button', {
    type: 'button',
    class: 'icon small-icon',
    'aria-label': `Remove the chart of ${key}`,
    text: '×',
  });
  const chart = new Chart({
    title: key,
    unit: unitOf(key),
    zero: /^(time|tokens)\//.test(key) ? ['y'] : [],
    series: () => [line(key, 'value', 1)],
    smoothing: () => weight,
    wait: 'No step has had this number yet.',
    extra: close,
  });
  close.addEventListener('click', () => {
    chart.remove();
    added.delete(key);
    memory.set('charts', [...added.keys()]);
    $('metric').focus();
  });
  added.set(key, chart);
  $('charts').append(chart.root);
  memory.set('charts', [...added.keys()]);
  return chart;
}

function bar() {
  const list = h('datalist', { id: 'metrics' });
  const input = h('input', {
    id: 'metric',
    list: 'metrics',
    placeholder: 'another number of the steps',
    'aria-label': 'Another number of the steps to chart',
    autocomplete: 'off',
    spellcheck: 'false',
    size: '26',
  });
  const said = h('span', { class: 'said', role: 'status' });
  const select = h(
    'select',
    { id: 'smoothing' },
    SMOOTHINGS.map(([value, text]) => h('option', { value, selected: Number(value) === weight, text })),
  );
  select.addEventListener('change', () => {
    weight = Number(select.value);
    memory.set('smoothing', weight);
    redraw();
  });
  const take = () => {
    const key = input.value.trim();
    if (!metricKeys().includes(key)) {
      said.textContent = key ? 'no step has that' : '';
      return;
    }
    said.textContent = '';
    input.value = '';
    const chart = add(key) ?? added.get(key);
    chart.root.scrollIntoView({ block: 'nearest' });
    redraw();
  };
  input.addEventListener('input', (event) => {
    said.textContent = '';
    // A choice from the list arrives whole; typing arrives letter by letter.
    if (event.inputType === 'insertReplacementText' || event.inputType === undefined) take();
  });
  const form = $('curves-bar');
  form.append(
    said,
    h('label', null, 'Smoothing', select),
    h('label', { class: 'grow' }, 'Chart', input),
    list,
    h('button', { type: 'submit', class: 'small', text: 'Add' }),
  );
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    take();
  });
  let known = '';
  on('rows', () => {
    const keys = metricKeys();
    if (keys.join() === known) return;
    known = keys.join();
    list.replaceChildren(...keys.map((key) => h('option', { value: key })));
  });
}

export function start() {
  bar();
  for (const { smooth, where, ...options } of CHARTS) {
    const { root } = new Chart({ ...options, smoothing: () => (smooth ? weight : 0) });
    $('charts').append(root);
    if (!where) continue;
    const show = () => (root.hidden = !where());
    on('run rows', show);
    show();
  }
  for (const key of memory.get('charts', [])) if (typeof key === 'string') add(key);
  on('run', redraw);
}

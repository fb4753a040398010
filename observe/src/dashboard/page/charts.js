// A chart of metrics over steps: a uPlot canvas with a legend of our own that can be read, clicked and tabbed through.
//
// Charts share one cursor and one zoom. A chart that is out of sight is not drawn. Colours are read from the theme.
// Where more steps are in sight than can be told apart, a point is the mean of several; zooming in takes them apart.

import { h, setText } from './dom.js';
import { count, num, NONE, trimmed } from './format.js';
import { around, finite, fromZero, pooled, smooth, spans } from './series.js';
import { on, store } from './store.js';

const HEIGHT = 188;
const DRAW_EVERY_MS = 400;
/** Points across a chart, at most. */
const MOST_POINTS = 400;
const SYNC = 'steps';
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let colours = {};
const colour = (name) => (colours[name] ??= css(name));
const all = new Set();

/** Names of the theme's line colours; index 0 is for the whole, the others for its parts. */
export const LINES = ['--ink', '--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7'];
export const DASHES = [[], [], [], [], [], [7, 4], [3, 3], [9, 3, 2, 3]];

export class Chart {
  /**
   * `series()` gives descriptors `{ key, label, colour, dash?, width?, scale?, fill?, value(row) }`, evaluated at each drawing; `zero` scales start at 0; `smoothing()` is a weight, or 0.
   */
  constructor({
    title,
    hint = '',
    unit = num,
    units = {},
    zero = ['y'],
    series,
    smoothing = () => 0,
    wait,
    extra = null,
    wide = false,
    bands = null,
    height = HEIGHT,
  }) {
    Object.assign(this, { title, unit, units, zero, series, smoothing, wait, bands, height });
    this.off = new Set();
    this.items = [];
    this.visible = false;
    this.at = h('span', { class: 'at' });
    this.legend = h('div', { class: 'legend', role: 'group', 'aria-label': `Lines of ${title}` });
    this.plot = h('div', { class: 'plot', tabindex: '0', role: 'img', 'aria-label': title });
    this.plot.style.minHeight = `${height}px`;
    this.note = h('p', { class: 'empty-plot', text: wait ?? 'Appears with the first step.' });
    this.plot.append(this.note);
    this.root = h(
      'figure',
      { class: wide ? 'card chart wide' : 'card chart' },
      h('figcaption', null, h('h3', { text: title }), hint && h('span', { class: 'hint', text: hint }), this.at, extra),
      this.legend,
      this.plot,
    );
    this.plot.addEventListener('keydown', (event) => this.key(event));
    this.plot.addEventListener('blur', () => this.uplot?.setCursor({ left: -10, top: -10 }, true, true));
    this.watch = new IntersectionObserver(
      ([entry]) => {
        this.visible = entry.isIntersecting;
        if (this.visible && this.stale) this.draw();
      },
      { rootMargin: '120px' },
    );
    this.watch.observe(this.plot);
    this.size = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (this.uplot && width > 0 && width !== this.uplot.width) this.uplot.setSize({ width, height: this.height });
    });
    this.size.observe(this.plot);
    this.stale = true;
    all.add(this);
  }

  remove() {
    this.watch.disconnect();
    this.size.disconnect();
    this.uplot?.destroy();
    this.root.remove();
    all.delete(this);
  }

  /** Draws with the rows there are; later, where it is out of sight. */
  draw() {
    this.stale = !this.visible || document.hidden;
    const { rows } = store;
    if (this.stale) {
      if (rows.length) setText(this.note, 'Drawn as soon as it is in sight.');
      return;
    }
    this.bin = this.binFor(rows);
    this.spans = spans(rows.length, this.bin);
    const items = rows.length
      ? this.series().map((item) => ({ ...item, values: this.spans.map((span) => pooled(rows, span, item)) }))
      : [];
    const some = items.some((item) => item.values.some((value) => value !== null));
    this.note.hidden = some;
    setText(this.note, this.wait ?? (rows.length ? 'No step has had this yet.' : 'Appears with the first step.'));
    if (!some) return;
    const weight = this.smoothing();
    const data = [this.spans.map(([, to]) => rows[to - 1].step)];
    for (const item of items) {
      if (weight > 0) data.push(smooth(item.values, weight));
      data.push(item.values);
    }
    const shape = JSON.stringify([items.map((item) => [item.key, item.label, item.scale]), weight > 0]);
    this.items = items;
    if (shape !== this.shape) this.build(shape, data, weight > 0);
    else this.update(data);
    this.readings();
  }

  /** Steps that make one point, by how many are in sight. */
  binFor(rows) {
    const { min, max } = this.uplot?.scales.x ?? {};
    const old = this.uplot?.data[0];
    const zoomed = old?.length > 1 && (min > old[0] || max < old.at(-1));
    const seen = zoomed ? rows.filter(({ step }) => step >= min && step <= max).length : rows.length;
    return Math.max(1, Math.ceil(seen / MOST_POINTS));
  }

  update(data) {
    const { x } = this.uplot.scales;
    const old = this.uplot.data[0];
    const zoomed = old.length > 1 && (x.min > old[0] || x.max < old.at(-1));
    this.uplot.setData(data, !zoomed);
    if (zoomed) this.uplot.redraw(true);
  }

  build(shape, data, smoothed) {
    this.shape = shape;
    this.uplot?.destroy();
    const line = (item, raw) => ({
      scale: item.scale ?? 'y',
      show: !this.off.has(item.key),
      stroke: () => (raw ? faint(colour(item.colour)) : colour(item.colour)),
      width: raw ? 1 : (item.width ?? 1.75),
      dash: raw ? undefined : item.dash,
      paths: item.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      spanGaps: true,
      points: { size: 5, show: (u, i) => !raw && few(u, i, item.points ? 60 : 12) },
    });
    const scales = {
      x: {
        time: false,
        range: (_, min, max) => (min === null ? [0, 1] : min === max ? [min - 1, max + 1] : [min, max]),
      },
    };
    const names = [...new Set(this.items.map((item) => item.scale ?? 'y'))];
    for (const name of names)
      scales[name] = { range: (_, min, max) => (this.zero.includes(name) ? fromZero(min, max) : around(min, max)) };
    const axis = {
      stroke: () => colour('--muted'),
      font: '11px Inter, system-ui, sans-serif',
      ticks: { show: false },
      border: { show: false },
    };
    const grid = { stroke: () => colour('--grid'), width: 1 };
    const options = {
      width: Math.max(200, Math.floor(this.plot.clientWidth)),
      height: this.height,
      padding: [10, names.length > 1 ? 4 : 20, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: SYNC, setSeries: false },
        points: { size: 7 },
        y: false,
        drag: { x: true, y: false, dist: 6 },
      },
      scales,
      series: [
        {},
        ...this.items.flatMap((item) => (smoothed ? [line(item, false), line(item, true)] : [line(item, false)])),
      ],
      bands: this.bands?.(this.items, smoothed).map((band) => ({ ...band, fill: () => colour('--gap') })),
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: 28,
          gap: 6,
          space: 64,
          incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000],
          values: (_, splits) => splits.map((x) => count(x)),
        },
        ...names.map((name, i) => ({
          ...axis,
          scale: name,
          side: i ? 1 : 3,
          grid: i ? { show: false } : grid,
          size: (_, values) => 16 + 6.3 * Math.max(3, ...(values ?? ['']).map((text) => text.length)),
          gap: 6,
          space: 36,
          values: (_, splits) => splits.map((y) => trimmed((this.units[name] ?? this.unit)(tidy(y)))),
        })),
      ],
      hooks: {
        setCursor: [() => this.readings()],
        setScale: [
          (u, key) =>
            key === 'x' &&
            u === this.uplot &&
            this.binFor(store.rows) !== this.bin &&
            queueMicrotask(() => this.draw()),
        ],
      },
    };
    this.uplot = new uPlot(options, data, this.plot);
    this.smoothed = smoothed;
    this.legend.replaceChildren(...this.items.map((item) => this.entry(item)));
  }

  entry(item) {
    const value = h('span', { class: 'value' });
    const mark = h('i', { class: 'swatch' });
    mark.style.setProperty('--line', `var(${item.colour})`);
    if (item.dash?.length) mark.classList.add(item.dash[0] > 3 ? 'dashed' : 'dotted');
    const button = h(
      'button',
      { type: 'button', 'aria-pressed': String(!this.off.has(item.key)) },
      mark,
      h('bdi', { class: 'label', text: item.label }),
      value,
    );
    button.addEventListener('click', () => {
      const show = this.off.delete(item.key);
      if (!show) this.off.add(item.key);
      button.setAttribute('aria-pressed', String(show));
      const i = this.items.findIndex((other) => other.key === item.key);
      for (const s of this.smoothed ? [2 * i + 1, 2 * i + 2] : [i + 1]) this.uplot.setSeries(s, { show });
    });
    button.valueNode = value;
    return button;
  }

  /** The legend's values: under the cursor, else the newest. */
  readings() {
    if (!this.uplot) return;
    const { idx, left } = this.uplot.cursor;
    const under = idx !== null && idx !== undefined && left >= 0 && idx < this.spans.length;
    const [from, to] = under ? this.spans[idx] : [0, store.rows.length];
    const last = store.rows[to - 1]?.step ?? 0;
    const place =
      under && to - from > 1 ? `steps ${count(store.rows[from]?.step)}–${count(last)}` : `step ${count(last)}`;
    setText(this.at, under ? place : '');
    const said = [];
    this.items.forEach((item, i) => {
      const value = under ? item.values[idx] : newest(item);
      const text = value === null || value === undefined ? NONE : (this.units[item.scale ?? 'y'] ?? this.unit)(value);
      setText(this.legend.children[i].valueNode, text);
      said.push(`${item.label} ${text}`);
    });
    this.plot.setAttribute('aria-label', `${this.title}, ${place}: ${said.join(', ')}`);
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || !this.uplot) return;
    event.preventDefault();
    const { data, cursor } = this.uplot;
    const from = cursor.idx ?? data[0].length - 1;
    const to = Math.min(data[0].length - 1, Math.max(0, from + by));
    this.uplot.setCursor({ left: this.uplot.valToPos(data[0][to], 'x'), top: 20 }, true, true);
  }
}

/** Whether so few values are in sight that a line alone would hide them: not more than `most`. */
function few(u, series, most) {
  const [first, last] = u.series[0].idxs;
  let seen = 0;
  for (let i = first; i <= last && seen <= most; i++) if (u.data[series][i] !== null) seen += 1;
  return seen <= most;
}

function newest({ value }) {
  const at = store.rows.findLastIndex((row) => finite(value(row)) !== null);
  return at < 0 ? null : value(store.rows[at]);
}

/** 0.30000000000000004 is 0.3 on an axis. */
const tidy = (value) => Number(value.toPrecision(9));
const faint = (hex) => `${hex}4d`;

let timer = 0;
function drawAll() {
  if (timer) return;
  timer = setTimeout(
    () => {
      timer = 0;
      for (const chart of all) chart.draw();
    },
    all.size && store.rows.length > 1 ? DRAW_EVERY_MS : 0,
  );
}

/** All charts, soon. */
export const redraw = drawAll;

export function start() {
  on('rows', drawAll);
  document.addEventListener('visibilitychange', drawAll);
  addEventListener('themechange', () => {
    colours = {};
    for (const chart of all) chart.uplot?.redraw(false);
  });
}

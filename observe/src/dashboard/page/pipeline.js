// The pipeline as a picture: stages, the mailboxes between them filled as deep as they are, and the credits on their way back.
// It is built once per width and then only changed, so a second costs a few attributes.

import { $, empty, s, setAttrs, setText } from './dom.js';
import { count, rate, seconds } from './format.js';
import { limitOf, TITLES } from './limit.js';
import { pipelineTables } from './pipeline-table.js';
import { geometry } from './picture.js';
import { isOver, latest, on, perSecond, store } from './store.js';

const MOST_CELLS = 16;
const MOST_CREDIT_CELLS = 48;
const SHORT = { batcher: 'Batcher', shadow_trainer: 'Shadow' };
let built = null;

const stageOf = (state, name) => state.stages.find((stage) => stage.name === name);

/** The number that a box is about, what it has done, and its share of busy time (null if it is not measured). */
function reading(key, state, short) {
  const { counts, rates, busy } = state;
  const stage = stageOf(state, key);
  const done = (unit) => (stage ? `${count(stage.done)} ${unit}` : '');
  const busyNow = stage && stage.busy > 0 ? `${count(stage.busy)} busy` : '';
  const work = (unit) => (short && busyNow ? busyNow : [busyNow, done(unit)].filter(Boolean).join(' · '));
  const per = (x, noun) => rate(x).replace(/\u202f(?=\/)/, `\u202f${noun}`);
  const paced = (name) => perSecond((seen) => stageOf(seen, name)?.done);
  switch (key) {
    case 'feeder': {
      const waits = state.state === 'running' && state.credits > 0 && counts.in_flight >= state.credits;
      return {
        big: per(rates.groups, 'groups'),
        small: `${count(counts.opened)} opened`,
        busy: false,
        share: null,
        waits,
      };
    }
    case 'sampler':
      return { big: per(rates.samples, 'samples'), small: work('done'), share: busy.sampling, stage };
    case 'scorer':
      return { big: per(paced('scorer'), 'rewards'), small: work('done'), share: busy.scoring, stage };
    case 'batcher':
      return { big: per(rates.groups, 'groups'), small: work('done'), share: null, stage };
    case 'trainer': {
      const took = latest('time/total');
      const last = took === null ? per(rates.steps, 'steps') : `${seconds(took)}${took < 60 ? '/step' : ''}`;
      return {
        big: last,
        small: isOver(state) ? 'at rest' : state.trainer,
        share: busy.training,
        stage,
        busy: state.trainer === 'trains',
      };
    }
    default:
      return { big: per(paced(key), ''), small: busyNow, share: busy.shadow, stage };
  }
}

function text(place, cls) {
  return place ? s('text', { ...place, class: cls }) : null;
}

/** How wide a badge is for its words, in whichever font the browser has found; they must be in the document. */
const badgeWidth = (words) => Math.ceil(words.getComputedTextLength()) + 16;

function buildStage(key, place) {
  const node = {
    title: text(place.title, 'title'),
    big: text(place.big, 'big'),
    small: text(place.small, 'small'),
    value: s('tspan'),
    unit: s('tspan', { class: 'unit' }),
    fail: s(
      'g',
      { class: 'fail' },
      s('rect', { y: -9, height: 18, rx: 9 }),
      s('text', { y: 4, 'text-anchor': 'middle' }),
    ),
    share: s('rect', { ...place.bar, rx: 2, class: `share ${key}` }),
    track: s('rect', { ...place.bar, rx: 2, class: 'track' }),
    tag: s(
      'g',
      { class: 'tag', transform: `translate(${place.tag.x} ${place.tag.y})` },
      s('rect', { y: -11, height: 18, rx: 9 }),
      s('text', { x: 0, y: 2, 'text-anchor': 'middle', text: 'limits the pipeline' }),
    ),
  };
  node.title.textContent = place.short ? (SHORT[key] ?? TITLES[key]) : TITLES[key];
  node.big.append(node.value, node.unit);
  setAttrs(node.fail, { transform: `translate(${place.fail.x} ${place.fail.y})` });
  node.place = place;
  node.root = s(
    'g',
    { class: 'stage' },
    s('rect', { ...place.box, rx: 10, class: 'box' }),
    node.title,
    node.big,
    node.small,
    node.track,
    node.share,
    node.fail,
    node.tag,
  );
  return node;
}

function buildMailbox(key, place, capacity) {
  const { pipe } = place;
  const cells = capacity > 0 && capacity <= MOST_CELLS && (pipe.width - 4) / capacity >= 5 ? capacity : 0;
  const node = {
    place,
    capacity,
    cells: [],
    name: text(place.name, 'mailbox-name'),
    depth: text(place.depth, 'depth'),
    rate: text(place.rate, 'rate'),
  };
  const parts = [s('path', { d: place.arrow, class: 'arrow' }), s('rect', { ...pipe, rx: 5, class: 'pipe' })];
  const inner = pipe.width - 4;
  if (cells) {
    const size = (inner - (cells - 1) * 2) / cells;
    for (let i = 0; i < cells; i++) {
      // The first cell is the one at the receiver's end: that is where things wait.
      const x = pipe.x + 2 + inner - (i + 1) * size - i * 2;
      node.cells.push(
        s('rect', { x, y: pipe.y + 2, width: size, height: pipe.height - 4, rx: Math.min(3, size / 2), class: 'cell' }),
      );
    }
    parts.push(...node.cells);
  } else {
    node.fill = s('rect', { x: pipe.x + 2, y: pipe.y + 2, width: 0, height: pipe.height - 4, rx: 3, class: 'cell on' });
    parts.push(node.fill);
  }
  node.messageDot = s('circle', { cx: place.travel.x, cy: place.travel.y, r: 3.5, class: 'message-dot' });
  node.messageDot.style.setProperty('--dx', `${place.travel.dx}px`);
  node.messageDot.style.setProperty('--dy', `${place.travel.dy}px`);
  node.name.textContent = key;
  node.root = s('g', { class: 'mailbox' }, ...parts, node.messageDot, node.name, node.depth, node.rate);
  return node;
}

function buildCredits(place, credits) {
  const node = { place, cells: [], label: text(place.label, 'credits-label') };
  const parts = [];
  if (place.path) parts.push(s('path', { d: place.path, class: 'back' }));
  const { size, gap, room } = place.cells;
  const cells = credits <= MOST_CREDIT_CELLS && credits * (size + gap) <= room ? credits : 0;
  const width = cells ? cells * (size + gap) - gap : Math.min(240, room);
  const x = place.cells.centre ? place.cells.x - width : place.cells.x;
  if (place.path)
    parts.push(
      s('rect', {
        x: x - 12,
        y: place.cells.y - 4,
        width: width + 32 + 5.9 * `${credits} of ${credits} credits in use`.length,
        height: size + 8,
        class: 'clear',
      }),
    );
  for (let i = 0; i < cells; i++)
    node.cells.push(
      s('rect', { x: x + i * (size + gap), y: place.cells.y, width: size, height: size, rx: 3, class: 'credit' }),
    );
  if (!cells) {
    node.fill = s('rect', { x, y: place.cells.y, width: 0, height: size, rx: 3, class: 'credit on' });
    parts.push(s('rect', { x, y: place.cells.y, width, height: size, rx: 3, class: 'credit' }), node.fill);
  }
  node.width = width;
  node.root = s('g', { class: 'credits' }, ...parts, ...node.cells, node.label);
  return node;
}

function build(state) {
  const host = $('picture');
  const width = Math.max(280, Math.floor(host.clientWidth));
  const shadow = stageOf(state, 'shadow_trainer') !== undefined;
  const capacities = Object.fromEntries(state.mailboxes.map((mailbox) => [mailbox.name, mailbox.capacity]));
  const key = JSON.stringify([width, shadow, capacities, state.credits]);
  if (built?.key === key) return;
  const places = geometry(width, shadow);
  const stages = new Map(Object.entries(places.stages).map(([name, place]) => [name, buildStage(name, place)]));
  const mailboxes = new Map(
    Object.entries(places.mailboxes).map(([name, place]) => [name, buildMailbox(name, place, capacities[name] ?? 0)]),
  );
  const credits = buildCredits(places.credits, state.credits);
  const svg = s('svg', {
    viewBox: `0 0 ${width} ${places.height}`,
    width,
    height: places.height,
    role: 'img',
    class: places.vertical ? 'vertical' : 'horizontal',
  });
  svg.append(
    credits.root,
    ...[...mailboxes.values()].map((mailbox) => mailbox.root),
    ...[...stages.values()].map((stage) => stage.root),
  );
  host.replaceChildren(svg);
  for (const { tag } of stages.values()) {
    const width = badgeWidth(tag.lastChild);
    setAttrs(tag.firstChild, { x: -width / 2, width });
  }
  built = { key, svg, stages, mailboxes, credits, vertical: places.vertical, sent: new Map() };
}

function drawStage(key, node, state, limit) {
  const read = reading(key, state, node.place.short);
  const failed = read.stage?.failed ?? 0;
  const busy = read.busy ?? (read.stage?.busy ?? 0) > 0;
  const limits = limit?.stage === key;
  setAttrs(node.root, {
    class: `stage ${key}${busy ? ' busy' : ''}${limits ? ' limits' : ''}${failed ? ' failed' : ''}`,
  });
  const [value, unit = ''] = read.big.split(/\u202f(?=\D)(.*)/);
  setText(node.value, value);
  setText(node.unit, unit && ` ${unit}`);
  setText(node.small, read.waits ? 'waits for credits' : read.small);
  if (failed) {
    const said = `${count(failed)} failed`;
    setText(node.fail.lastChild, said);
    const width = badgeWidth(node.fail.lastChild);
    setAttrs(node.fail.lastChild, { x: -width / 2 });
    setAttrs(node.fail.firstChild, { x: -width, width });
  }
  const has = Number.isFinite(read.share);
  setAttrs(node.track, { visibility: has ? 'visible' : 'hidden' });
  setAttrs(node.share, {
    visibility: has ? 'visible' : 'hidden',
    width: has ? (Math.min(1, Math.max(0, read.share)) * node.place.bar.width).toFixed(1) : 0,
  });
}

function drawMailbox(name, node, state) {
  const mailbox = state.mailboxes.find((mailbox) => mailbox.name === name);
  if (!mailbox) return;
  const full = mailbox.capacity > 0 && mailbox.depth >= mailbox.capacity;
  setAttrs(node.root, { class: `mailbox${full ? ' full' : ''}${mailbox.lost ? ' lost' : ''}` });
  node.cells.forEach((cell, i) => setAttrs(cell, { class: i < mailbox.depth ? 'cell on' : 'cell' }));
  if (node.fill) {
    const { pipe } = node.place;
    const share = mailbox.capacity > 0 ? Math.min(1, mailbox.depth / mailbox.capacity) : 0;
    const width = mailbox.depth > 0 ? Math.max(3, share * (pipe.width - 4)) : 0;
    setAttrs(node.fill, { width: width.toFixed(1), x: (pipe.x + pipe.width - 2 - width).toFixed(1) });
  }
  const flow = perSecond((seen) => seen.mailboxes.find((mailbox) => mailbox.name === name)?.sent);
  const lost = mailbox.lost ? `${count(mailbox.lost)} lost` : '';
  const depth = `${count(mailbox.depth)} / ${mailbox.capacity ? count(mailbox.capacity) : '∞'}`;
  const flowing = flow === null ? '' : rate(flow);
  setText(node.depth, node.rate || name === 'measures' ? depth : [depth, flowing, lost].filter(Boolean).join(' · '));
  if (node.rate) setText(node.rate, [flowing, lost].filter(Boolean).join(' · '));
  // One message travels along where something was sent since the last look; nothing moves otherwise.
  const before = built.sent.get(name);
  if (before !== undefined && mailbox.sent > before && !document.hidden) {
    node.messageDot.classList.remove('go');
    void node.messageDot.getBBox();
    node.messageDot.classList.add('go');
  }
  built.sent.set(name, mailbox.sent);
}

function drawCredits(node, state) {
  const used = state.counts.in_flight;
  node.cells.forEach((cell, i) => setAttrs(cell, { class: i < used ? 'credit on' : 'credit' }));
  if (node.fill)
    setAttrs(node.fill, {
      width: ((Math.min(used, state.credits) / Math.max(1, state.credits)) * node.width).toFixed(1),
    });
  setText(node.label, `${count(used)} of ${count(state.credits)} credits in use`);
}

function draw() {
  const { state } = store;
  if (!state) return;
  build(state);
  const limit = limitOf(store.history);
  for (const [key, node] of built.stages) drawStage(key, node, state, limit);
  for (const [name, node] of built.mailboxes) drawMailbox(name, node, state);
  drawCredits(built.credits, state);
  const mailboxes = state.mailboxes.map((mailbox) => `${mailbox.name} ${mailbox.depth} of ${mailbox.capacity}`).join(', ');
  setAttrs(built.svg, {
    'aria-label': `The pipeline. Waiting in its mailboxes: ${mailboxes}. Credits in use: ${state.counts.in_flight} of ${state.credits}. The trainer ${state.trainer}.`,
  });
  setText($('limit'), sentence(state, limit));
  // Only a change is spoken: the shares in the sentence move each second.
  setText($('limit-said'), limit ? `The ${TITLES[limit.stage]} limits the pipeline` : '');
  pipelineTables(state);
}

function sentence(state, limit) {
  if (isOver(state) && state.state !== 'failed') return 'The run has ended.';
  if (state.state === 'failed') return 'The run failed; the last event has the cause.';
  if (state.state === 'stopping') return 'The run is stopping: it finishes the current step and saves.';
  if (!state.counts.opened) return 'The run is starting: the pipeline fills when the model is loaded.';
  if (limit) return `The ${TITLES[limit.stage]} limits the pipeline: ${limit.why}.`;
  return 'No stage limits the pipeline.';
}

export function start() {
  $('picture').append(empty('The pipeline appears with the first reading', 'Readings arrive every second.'));
  on('state rows', draw);
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width) {
      width = now;
      draw();
    }
  }).observe($('picture'));
}

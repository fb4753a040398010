// The page's state of the run, and the listeners of each topic. Nothing here draws.
//
// Several changes of one topic between two frames notify its listeners once.

/** A run of many thousand steps is thinned out from its old end, so that the page stays light for days. */
const MOST_ROWS = 12_000;
const MOST_EVENTS = 500;
/** Seconds of `state` that are remembered, for rates and for what the trainer did. */
export const MEMORY_S = 120;

export const store = {
  run: null,
  state: null,
  /** The last two minutes of `state`, oldest first. */
  history: [],
  /** Rows of metrics, oldest first. */
  rows: [],
  /** Oldest first. */
  events: [],
  /** Rows of evaluations, oldest first; their numbers are also in the rows of their steps. */
  evaluations: [],
  checkpoints: null,
  /** `connecting`, `live`, `late`, `lost`, `ended`, `refused`. */
  link: { kind: 'connecting', since: Date.now() / 1000, retry: null },
};

const listeners = new Map();
const pending = new Set();
let frame = 0;

/** Calls `listener` after news of a topic, at most once a frame. */
export function on(topics, listener) {
  for (const topic of topics.split(' ')) {
    if (!listeners.has(topic)) listeners.set(topic, new Set());
    listeners.get(topic).add(listener);
  }
}

/** Says that a topic has news. */
export function notify(topic) {
  pending.add(topic);
  if (!frame) frame = requestAnimationFrame(flush);
}

function flush() {
  frame = 0;
  const due = new Set();
  for (const topic of pending) for (const listener of listeners.get(topic) ?? []) due.add(listener);
  pending.clear();
  for (const listener of due) {
    try {
      listener();
    } catch (error) {
      console.error(error); // one broken section must not stop the others
    }
  }
}

export function setState(state) {
  store.state = state;
  store.history.push(state);
  while (store.history.length > 1 && state.at - store.history[0].at > MEMORY_S) store.history.shift();
  notify('state');
}

export function setRows(rows) {
  store.rows = rows.filter((row) => Number.isFinite(row.step));
  store.evaluations.forEach(place);
  store.rows.forEach(note);
  notify('rows');
}

export function addRow(row) {
  if (!Number.isFinite(row.step)) return;
  // A resumed run takes steps again: what was after them is no longer true.
  while (store.rows.length && store.rows.at(-1).step >= row.step) store.rows.pop();
  store.rows.push(row);
  note(row);
  if (store.rows.length > MOST_ROWS) {
    const half = MOST_ROWS / 2;
    store.rows = store.rows.filter((_, i) => i >= half || i % 2 === 0);
  }
  notify('rows');
}

export function setEvaluations(evaluations) {
  store.evaluations = evaluations.filter((row) => Number.isFinite(row.step));
  store.evaluations.forEach(place);
  store.rows.forEach(note);
  notify('rows');
}

export function addEvaluation(row) {
  if (!Number.isFinite(row.step)) return;
  store.evaluations = [...store.evaluations.filter(({ step }) => step < row.step), row];
  place(row);
  note(row);
  notify('rows');
}

/** Puts an evaluation's numbers to those of its step; to a row of its own where there is none, as before the first. */
function place(row) {
  const { rows } = store;
  let at = rows.length;
  while (at > 0 && rows[at - 1].step >= row.step) at -= 1;
  if (rows[at]?.step === row.step) rows[at] = { ...rows[at], ...row };
  else rows.splice(at, 0, { ...row });
}

export function setEvents(events) {
  store.events = events.slice(-MOST_EVENTS);
  notify('events');
}

export function addEvent(event) {
  store.events.push(event);
  if (store.events.length > MOST_EVENTS) store.events.shift();
  notify('events');
}

/** Whether the run has reported its end. */
export const isOver = (state) => ['done', 'stopped', 'failed'].includes(state?.state);

/** The newest value of a metric that is a number. */
export function latest(key) {
  for (let i = store.rows.length - 1; i >= 0 && i >= store.rows.length - 50; i--) {
    const value = store.rows[i][key];
    if (Number.isFinite(value)) return value;
  }
  return null;
}

/** Per second over the last half minute, of a counter in `state`; null before there is enough to tell. */
export function perSecond(counter) {
  const now = store.history.at(-1);
  if (!now) return null;
  const then = store.history.find((state) => now.at - state.at <= 30);
  const span = now.at - then.at;
  if (span < 4) return null;
  const [a, b] = [counter(then), counter(now)];
  return Number.isFinite(a) && Number.isFinite(b) ? Math.max(0, b - a) / span : null;
}

const keys = new Set();

function note(row) {
  for (const key in row) keys.add(key);
}

/** All numbers that any step has had, sorted. */
export const metricKeys = () => [...keys].filter((key) => key !== 'step' && key !== 'at').sort();

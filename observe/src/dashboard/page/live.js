// The connection: one stream of events, opened again for as long as the page is open.
//
// After every new connection all data that may have been missed is requested again. An open but silent stream is shown
// as late; a lost one with the time of the last update and of the next attempt.

import { addEvaluation, addEvent, addRow, isOver, setEvaluations, setEvents, setRows, setState, store, notify } from './store.js';

const LATE_S = 5;
const SILENT_S = 20;
const LONGEST_WAIT_S = 10;

let source = null;
let wait = 1;
let timer = 0;
let heard = 0;
let stepsSeen = -1;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The JSON body of a GET; any other answer throws the server's error text. */
export async function get(path) {
  const answer = await fetch(path, { headers: { accept: 'application/json' } });
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Refused(
      answer.status,
      typeof told.error === 'string' ? told.error : `the server answered ${answer.status}`,
    );
  }
  return answer.json();
}

function link(kind, retry = null) {
  if (store.link.kind === kind && store.link.retry === retry) return;
  const since = store.link.kind === kind ? store.link.since : Date.now() / 1000;
  store.link = { kind, retry, since };
  notify('link');
}

function lost() {
  source?.close();
  source = null;
  clearTimeout(timer);
  link(isOver(store.state) ? 'ended' : 'lost', Date.now() / 1000 + wait);
  timer = setTimeout(connect, wait * 1000);
  wait = Math.min(LONGEST_WAIT_S, wait * 2);
}

/** Connects, now and whenever the connection is lost. */
export async function connect() {
  clearTimeout(timer);
  try {
    const run = await get('/api/run');
    if (store.run && run.started !== store.run.started) return location.reload(); // another run has the address
    store.run = run;
    notify('run');
    open();
    await refresh();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      source?.close();
      source = null;
      link('refused');
    } else {
      lost();
    }
  }
}

async function refresh() {
  const [rows, evaluations, events, checkpoints] = await Promise.all([
    get('/api/steps'),
    get('/api/evaluations'),
    get('/api/events'),
    get('/api/checkpoints'),
  ]);
  // Events from the stream in the meantime are newer than these answers.
  const newest = rows.at(-1)?.step ?? -1;
  const later = store.rows.filter((row) => row.step > newest && row.at >= (rows.at(-1)?.at ?? 0));
  setRows([...rows, ...later]);
  const measured = evaluations.at(-1)?.step ?? -1;
  setEvaluations([...evaluations, ...store.evaluations.filter(({ step }) => step > measured)]);
  const last = events.at(-1)?.at ?? 0;
  setEvents([...events, ...store.events.filter((event) => event.at > last)]);
  store.checkpoints = checkpoints;
  notify('checkpoints');
  notify('groups');
}

function open() {
  source?.close();
  const stream = new EventSource('/api/live');
  source = stream;
  heard = Date.now();
  const hear = (name, act) =>
    stream.addEventListener(name, (message) => {
      if (stream !== source) return;
      heard = Date.now();
      wait = 1;
      act(JSON.parse(message.data));
    });
  hear('state', (state) => {
    link('live');
    if (state.step !== stepsSeen && stepsSeen >= 0) notify('groups');
    stepsSeen = state.step;
    const saved = store.state?.checkpoint?.step !== state.checkpoint?.step;
    setState(state);
    if (saved && store.checkpoints) void askForCheckpoints();
  });
  hear('step', addRow);
  hear('evaluation', addEvaluation);
  hear('event', addEvent);
  stream.onerror = () => {
    if (stream === source) lost();
  };
}

async function askForCheckpoints() {
  try {
    store.checkpoints = await get('/api/checkpoints');
    notify('checkpoints');
  } catch {
    // the next connection requests it again
  }
}

setInterval(() => {
  if (!source) {
    if (store.link.kind === 'lost') notify('link'); // the countdown
    return;
  }
  const silent = (Date.now() - heard) / 1000;
  if (silent > SILENT_S) lost();
  else if (silent > LATE_S && store.link.kind === 'live') link('late');
}, 1000);

// A laptop that was closed and opened again should not wait for the next attempt.
addEventListener('online', () => source === null && store.link.kind === 'lost' && connect());
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && source === null && store.link.kind === 'lost') void connect();
});

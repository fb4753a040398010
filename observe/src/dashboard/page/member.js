// One member of a group: its reward and advantage as numbers and bars, what the reward is made of, and its turns, as
// shaded tokens or as plain text.

import { h, memory } from './dom.js';
import { count, many, num, signed } from './format.js';
import { modelText } from './marked.js';
import { tokensView } from './tokens.js';

/** How completions are shown: as `tokens` or as `text`. */
export let view = memory.get('view', 'tokens') === 'text' ? 'text' : 'tokens';
/** Draws each turn on the page anew. */
let turns = [];

/** Forgets the turns of the group before. */
export function forget() {
  turns = [];
}

/** A bar from zero, to the left for what is below it. */
function bar(value, low, high, cls) {
  const node = h('i', { class: cls });
  if (Number.isFinite(value)) {
    const zero = -low / (high - low);
    const to = (value - low) / (high - low);
    node.style.left = `${(100 * Math.min(zero, to)).toFixed(1)}%`;
    node.style.width = `${Math.max(0.8, 100 * Math.abs(to - zero)).toFixed(1)}%`;
  }
  return h('span', { class: 'bar-track', 'aria-hidden': 'true' }, node);
}

const sign = (x) => (x > 0 ? 'up' : x < 0 ? 'down' : 'level');

function metrics(member) {
  const all = Object.entries(member.metrics ?? {});
  if (!all.length) return h('p', { class: 'quiet', text: 'The reward has no further metrics.' });
  const cells = all.map(([name, value]) =>
    h('div', null, h('dt', null, h('bdi', { text: name })), h('dd', { text: num(value) })),
  );
  return h('dl', { class: 'metrics' }, cells);
}

function turn(one, at, of) {
  const tokens = one.tokens ?? [];
  const seen = tokens.map((token) => token[1]).filter(Number.isFinite);
  const mean = seen.length ? seen.reduce((a, b) => a + b, 0) / seen.length : null;
  const total = tokens.length + (one.cut ?? 0);
  const facts = [
    many(total, 'token'),
    mean === null ? null : `mean logprob ${num(mean)}`,
    one.complete ? null : 'not complete',
  ].filter(Boolean);
  const slot = h('div', { class: 'turn-body' });
  const draw = () =>
    slot.replaceChildren(
      view === 'tokens' && tokens.length ? tokensView(tokens, one.cut ?? 0) : modelText(one.text ?? ''),
    );
  draw();
  turns.push(draw);
  return h(
    'section',
    { class: 'turn' },
    h(
      'h5',
      null,
      of > 1 ? `Turn ${at + 1} of ${of}` : 'Completion',
      h('span', { class: one.complete ? 'hint' : 'hint cut-off', text: facts.join(' · ') }),
    ),
    slot,
  );
}

/** A member's line, and behind it the numbers of its reward and its turns, made when first opened. */
export function member(one, scale, spread, open) {
  const body = h('div', { class: 'member-body' });
  const make = () => {
    if (body.childElementCount) return;
    const all = one.turns ?? [];
    body.append(
      h('h5', { text: 'What the reward is made of' }),
      metrics(one),
      ...all.map((t, i) => turn(t, i, all.length)),
    );
  };
  const tokens = (one.turns ?? []).reduce((sum, t) => sum + (t.tokens?.length ?? 0) + (t.cut ?? 0), 0);
  const summary = h(
    'summary',
    null,
    h('span', { class: 'who-member', text: `member ${one.member}` }),
    bar(one.reward, scale[0], scale[1], 'reward-bar'),
    h('span', { class: 'n reward', text: num(one.reward) }),
    bar(one.advantage, -spread, spread, `advantage-bar ${sign(one.advantage)}`),
    h('span', { class: `n advantage ${sign(one.advantage)}`, text: signed(one.advantage) }),
    h('span', { class: 'n hint policy', text: `policy ${count(one.policy)}${one.newest_policy > one.policy ? `–${count(one.newest_policy)}` : ''}` }),
    h('span', { class: 'n hint size', text: `${count(tokens)} tok` }),
  );
  const root = h('details', { class: 'member', open }, summary, body);
  root.addEventListener('toggle', () => root.open && make());
  if (open) make();
  return root;
}

/** The switch between tokens and text, for all turns that are shown. */
export function views() {
  const choose = (name, text) => {
    const button = h('button', { type: 'button', 'aria-pressed': String(view === name), text });
    button.addEventListener('click', () => {
      view = name;
      memory.set('view', view);
      button.closest('[data-view]').dataset.view = view;
      for (const other of button.parentElement.children) other.setAttribute('aria-pressed', String(other === button));
      turns.forEach((draw) => draw());
    });
    return button;
  };
  return h(
    'div',
    { class: 'switch', role: 'group', 'aria-label': 'Completions as' },
    choose('tokens', 'tokens'),
    choose('text', 'text'),
  );
}

// A completion token by token, shaded by how unlikely each was when it was sampled. One stop for Tab; arrows move from
// token to token, and the exact numbers of the one under pointer or cursor stand above.

import { h, setText } from './dom.js';
import { count, num, percent } from './format.js';
import { appendMarked } from './marked.js';

/** Lower bounds of probability; the class of a token is the index of the first that it reaches. */
const STEPS = [0.9, 0.5, 0.2, 0.05, 0.01, 0];
const WORDS = ['≥ 90%', '50–90%', '20–50%', '5–20%', '1–5%', '< 1%'];
const AT_ONCE = 1000;
const POINT = 'Point at a token, or focus the text and use the arrow keys.';
const TOUCH = 'Tap a token to see how likely it was.';

const shade = (logprob) => (Number.isFinite(logprob) ? STEPS.findIndex((least) => Math.exp(logprob) >= least) : 'x');

/** What the shades mean. */
export function legend() {
  const keys = WORDS.map((words, i) =>
    h('span', { class: 'key' }, h('span', { class: `t l${i}`, 'aria-hidden': 'true', text: 'ab' }), words),
  );
  return h('p', { class: 'keys shades' }, 'Probability when sampled:', keys);
}

function tokenText(node, text, budget) {
  // A line break is seen as such and still breaks the line.
  const parts = text.split('\n');
  parts.forEach((part, i) => {
    appendMarked(node, part, budget);
    if (i < parts.length - 1) node.append(h('span', { class: 'newline', 'aria-hidden': 'true', text: '↵' }), '\n');
  });
  return node;
}

const spoken = (text) =>
  appendMarked(
    h('bdi', { class: 'token-name' }),
    text.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥'),
    { marks: 20 },
  );

/** `tokens` are pairs of text and logprob in nats; `cut` is how many more there were. */
export function tokensView(tokens, cut) {
  const budget = { marks: 2000 };
  const readout = h(
    'p',
    { class: 'readout', 'aria-live': 'polite' },
    h('span', { class: 'quiet', text: matchMedia('(hover: none), (pointer: coarse)').matches ? TOUCH : POINT }),
  );
  const box = h('div', {
    class: 'tokens model-text',
    tabindex: '0',
    role: 'group',
    'aria-label': `${count(tokens.length)} tokens; arrow keys move from token to token`,
  });
  const nodes = [];
  let active = -1;

  const put = (from, to) => {
    const made = document.createDocumentFragment();
    for (let i = from; i < to; i++) {
      const node = tokenText(h('span', { class: `t l${shade(tokens[i][1])}` }), tokens[i][0], budget);
      node.index = i;
      nodes.push(node);
      made.append(node);
    }
    box.append(made);
  };
  const set = (i, scroll) => {
    if (i === active || !nodes[i]) return;
    nodes[active]?.classList.remove('on');
    active = i;
    nodes[i].classList.add('on');
    if (scroll) nodes[i].scrollIntoView({ block: 'nearest' });
    const [text, logprob] = tokens[i];
    readout.replaceChildren(
      spoken(text),
      h('span', null, 'logprob ', h('b', { text: num(logprob) })),
      h(
        'span',
        null,
        'probability ',
        h('b', { text: Number.isFinite(logprob) ? percent(Math.exp(logprob), Math.exp(logprob) < 0.1 ? 2 : 1) : '–' }),
      ),
      h('span', { class: 'quiet', text: `token ${count(i + 1)} of ${count(tokens.length + cut)}` }),
    );
  };

  put(0, Math.min(tokens.length, AT_ONCE));
  box.addEventListener('pointerover', (event) => {
    const node = event.target.closest('.t');
    if (node) set(node.index, false);
  });
  box.addEventListener('pointerdown', (event) => {
    const node = event.target.closest('.t');
    if (node) set(node.index, false);
  });
  box.addEventListener('keydown', (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    set(Math.min(nodes.length - 1, Math.max(0, active + by)), true);
  });
  box.addEventListener('focus', () => active < 0 && set(0, false));

  const view = h('div', { class: 'token-view' }, readout, box);
  if (tokens.length > AT_ONCE) {
    const more = h('button', { type: 'button', class: 'small more' });
    const label = () =>
      setText(
        more,
        `Show ${count(Math.min(AT_ONCE, tokens.length - nodes.length))} more of ${count(tokens.length)} tokens`,
      );
    label();
    more.addEventListener('click', () => {
      put(nodes.length, Math.min(tokens.length, nodes.length + AT_ONCE));
      if (nodes.length >= tokens.length) more.remove();
      else label();
    });
    view.append(more);
  }
  if (cut)
    view.append(
      h('p', {
        class: 'quiet',
        text: `${count(cut)} more tokens are not sent to this page; the run folder has them, and the text view shows all text.`,
      }),
    );
  return view;
}

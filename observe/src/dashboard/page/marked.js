// Text from models, made safe: it is shown as text only, and characters that are invisible or change the reading order
// are shown as small labeled marks. Very long text is cut, and shown in full on request.

import { h } from './dom.js';
import { count } from './format.js';

const NAMES = new Map([
  [0x00, 'NUL'],
  [0x07, 'BEL'],
  [0x08, 'BS'],
  [0x0b, 'VT'],
  [0x0c, 'FF'],
  [0x0d, 'CR'],
  [0x1b, 'ESC'],
  [0x7f, 'DEL'],
  [0x85, 'NEL'],
  [0xad, 'SHY'],
  [0x61c, 'ALM'],
  [0x180e, 'MVS'],
  [0x200b, 'ZWSP'],
  [0x200c, 'ZWNJ'],
  [0x200d, 'ZWJ'],
  [0x200e, 'LRM'],
  [0x200f, 'RLM'],
  [0x202a, 'LRE'],
  [0x202b, 'RLE'],
  [0x202c, 'PDF'],
  [0x202d, 'LRO'],
  [0x202e, 'RLO'],
  [0x2028, 'LS'],
  [0x2029, 'PS'],
  [0x2060, 'WJ'],
  [0x2066, 'LRI'],
  [0x2067, 'RLI'],
  [0x2068, 'FSI'],
  [0x2069, 'PDI'],
  [0xfeff, 'BOM'],
]);

// An ANSI sequence; or a run of one character that is invisible or steers; or more accents on one letter than any
// language has, which would be drawn over the lines around. Joiners inside emoji are left alone.
const STRANGE =
  /\u001b\[[0-9;:?]*[ -/]*[@-~]|((?!\n|\t|\r\n)(?!(?<=\p{Extended_Pictographic}\ufe0f?)\u200d)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0])\1*|\p{M}{9,}/gu;

/** Above this many marks in one text, more of them are one plain sign each: each mark is an element. */
const MOST_MARKS = 2000;
const CHUNK = 20_000;

function nameOf(found) {
  const code = found.codePointAt(0);
  const hex = `U+${code.toString(16).toUpperCase().padStart(4, '0')}`;
  if (found.startsWith('\u001b[')) return [`ESC${found.slice(1)}`, 'ANSI escape sequence'];
  const times = [...found].length;
  if (/^\p{M}/u.test(found)) return [`${times} accents`, `${times} combining marks on one letter, from ${hex}`];
  const tag = code >= 0xe0000 && code <= 0xe007f ? 'TAG' : null;
  const name = NAMES.get(code) ?? tag ?? hex;
  return [times > 1 ? `${name}×${times}` : name, `${hex}${times > 1 ? `, ${times} times` : ''}`];
}

/**
 * Appends text to a node with its strange characters marked. Accents at the node's beginning, which have no letter, are
 * given a dotted circle to stand on: they would be drawn over what is before them.
 */
export function appendMarked(node, text, budget = { marks: MOST_MARKS }) {
  let from = 0;
  if (!node.hasChildNodes() && /^\p{M}/u.test(text)) node.append('\u25cc');
  for (const match of text.matchAll(STRANGE)) {
    if (match.index > from) node.append(text.slice(from, match.index));
    from = match.index + match[0].length;
    budget.marks -= 1;
    if (budget.marks < 0) {
      node.append('\u2370'); // a quad with a question mark
    } else {
      const [name, title] = nameOf(match[0]);
      node.append(h('span', { class: 'mark-char', title, text: name }));
    }
  }
  if (from < text.length) node.append(text.slice(from));
  return node;
}

/** Up to `limit` code units, never half a character. */
function cut(text, limit) {
  const half = text.charCodeAt(limit - 1);
  return text.slice(0, half >= 0xd800 && half <= 0xdbff ? limit - 1 : limit);
}

/** An element with a model's text. What is longer than `limit` is cut, with a button that shows the rest. */
export function modelText(text, { limit = 3000, tag = 'div' } = {}) {
  const body = h(tag, { class: 'model-text', dir: 'auto' });
  if (text === '') {
    body.append(h('span', { class: 'quiet', text: 'empty' }));
    return body;
  }
  const budget = { marks: MOST_MARKS };
  if (text.length <= limit * 1.2) return appendMarked(body, text, budget);
  const first = cut(text, limit);
  appendMarked(body, first, budget);
  const more = h('button', { type: 'button', class: 'small more', text: `Show all ${count(text.length)} characters` });
  const box = h('div', { class: 'long-text' }, body, more);
  more.addEventListener('click', () => {
    more.remove();
    let at = first.length;
    // A piece a frame: 200 kB laid out at once would hold the page up.
    const next = () => {
      if (at >= text.length || !box.isConnected) return;
      const piece = cut(text.slice(at, at + CHUNK + 1), CHUNK);
      appendMarked(body, piece, budget);
      at += piece.length;
      requestAnimationFrame(next);
    };
    next();
    body.tabIndex = -1;
    body.focus({ preventScroll: true });
  });
  return box;
}

/** One line of a model's text for lists: no line breaks, cut, marked. */
export function modelLine(text, limit = 160) {
  const flat = text.replace(/\s+/g, ' ').trim();
  return appendMarked(h('bdi', { class: 'line-text' }), flat.length > limit ? `${cut(flat, limit)}…` : flat, {
    marks: 20,
  });
}

// Small helpers that make elements. Text only ever arrives as text: there is no way in here for markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'text') node.textContent = value;
    else if (key === 'style') Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element: `h('td', { class: 'n', onclick: f }, 'text', child)`. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const $ = (id) => document.getElementById(id);

/** Sets text only where it differs, so that a second without news changes nothing in the document. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets attributes only where they differ. */
export function setAttrs(node, attrs) {
  for (const [key, value] of Object.entries(attrs)) {
    const text = String(value);
    if (node.getAttribute(key) !== text) node.setAttribute(key, text);
  }
}

/** Placeholder of an empty section: what will appear, and when. */
export const empty = (title, more) =>
  h('div', { class: 'empty' }, h('strong', { text: title }), more && h('span', { text: more }));

/** A button that copies text and reports success or failure. */
export function copyButton(text, what) {
  const button = h('button', { class: 'small', type: 'button', 'aria-label': `Copy ${what}`, text: 'Copy' });
  let back;
  button.addEventListener('click', async () => {
    let said = 'Copied';
    try {
      await navigator.clipboard.writeText(typeof text === 'function' ? text() : text);
    } catch {
      said = 'Not allowed'; // plain http to another machine: browsers lend no clipboard
    }
    button.textContent = said;
    clearTimeout(back);
    back = setTimeout(() => (button.textContent = 'Copy'), 1500);
  });
  return button;
}

/** Remembered across visits, where the browser allows it. */
export const memory = {
  get(key, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`minds-${key}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(key, value) {
    try {
      localStorage.setItem(`minds-${key}`, JSON.stringify(value));
    } catch {
      // storage is forbidden or full; the choice holds until the page is left
    }
  },
};

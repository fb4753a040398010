// Numbers, times and shares as text: three significant digits, thin spaces, units, and a dash where there is none.

export const NONE = '–';
const THIN = '\u202f'; // narrow and unbreakable
const MINUS = '\u2212';
const SUPERS = { '-': '⁻', 0: '⁰', 1: '¹', 2: '²', 3: '³', 4: '⁴', 5: '⁵', 6: '⁶', 7: '⁷', 8: '⁸', 9: '⁹' };

const known = (x) => typeof x === 'number' && Number.isFinite(x);
const grouped = (digits) => digits.replace(/\B(?=(\d{3})+(?!\d))/g, THIN);

/** A count, in whole numbers: `12 345`. */
export const count = (x) => (known(x) ? (x < 0 ? MINUS : '') + grouped(String(Math.abs(Math.round(x)))) : NONE);

/** Any number with three significant digits: `0.530`, `12.3`, `1 234`, `4.2×10⁻⁵`. Whole numbers stay whole. */
export function num(x, digits = 3) {
  if (!known(x)) return NONE;
  const size = Math.abs(x);
  const sign = x < 0 ? MINUS : '';
  if (Number.isInteger(x) && size < 1e12) return sign + grouped(String(size));
  if (size >= 1e12 || size < 1e-3) {
    const [mantissa, power] = size.toExponential(1).split('e');
    return `${sign}${mantissa}×10${String(Number(power)).replace(/./g, (c) => SUPERS[c])}`;
  }
  if (size >= 1000) return sign + grouped(size.toFixed(0));
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return sign + size.toFixed(places);
}

/** Text of a number for an axis: 0.004 and not 0.00400. */
export const trimmed = (text) => text.replace(/(\.\d*?)0+(?!\d)/, '$1').replace(/\.(?!\d)/, '');

/** A number that carries its sign, for advantages. */
export const signed = (x) => (known(x) && x > 0 ? `+${num(x)}` : num(x));

/** A share of one as a percentage. */
export const percent = (x, digits = 0) => (known(x) ? `${(100 * x).toFixed(digits)}${THIN}%` : NONE);

/** Seconds in readable units: `29.4 µs`, `230 ms`, `4.10 s`, `4 min 12 s`, `3 h 05 min`. */
export function seconds(x) {
  if (!known(x)) return NONE;
  if (x < 0) return MINUS + seconds(-x);
  if (x === 0) return `0${THIN}s`;
  if (x < 0.0009995) return `${num(x * 1e6)}${THIN}µs`;
  if (x < 0.9995) return `${num(x * 1000)}${THIN}ms`;
  if (x < 59.95) return `${num(x)}${THIN}s`;
  const whole = Math.round(x);
  const pad = (n) => String(n).padStart(2, '0');
  if (whole < 3600) return `${Math.floor(whole / 60)}${THIN}min ${pad(whole % 60)}${THIN}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}${THIN}h ${pad(Math.floor((whole % 3600) / 60))}${THIN}min`;
  return `${Math.floor(whole / 86400)}${THIN}d ${Math.floor((whole % 86400) / 3600)}${THIN}h`;
}

/** Something per second, per minute or per hour, so that the number is readable. */
export function rate(x) {
  if (!known(x)) return NONE;
  if (x === 0) return `0${THIN}/s`;
  if (x >= 0.1) return `${num(x, 2)}${THIN}/s`;
  if (x * 60 >= 0.1) return `${num(x * 60, 2)}${THIN}/min`;
  return `${num(x * 3600, 2)}${THIN}/h`;
}

const TIME = new Intl.DateTimeFormat(undefined, {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  hourCycle: 'h23',
});
const DAY = new Intl.DateTimeFormat(undefined, { month: 'short', day: 'numeric' });

/** Local time with seconds; the day too, where it is not today. */
export function clock(at) {
  if (!known(at)) return NONE;
  const date = new Date(at * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? TIME.format(date) : `${DAY.format(date)}, ${TIME.format(date)}`;
}

/** `1 group`, `2 groups`. */
export const many = (n, one, more = `${one}s`) => `${count(n)}${THIN}${n === 1 ? one : more}`;

/** Staleness of a group: of its oldest weights, or from its newest to its oldest ones. */
export const stalenessText = ({ staleness, staleness_newest: newest }) =>
  `${newest < staleness ? `${num(newest)}–` : ''}${num(staleness)} stale`;

// From rows to the points of a line: pooling where there are too many, smoothing, and the ends of scales. Pure.

/** The value where it is a number, else null. */
export const finite = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : null);

/** `[from, to)` of the rows that make each point. */
export function spans(length, size) {
  const out = [];
  for (let from = 0; from < length; from += size) out.push([from, Math.min(length, from + size)]);
  return out;
}

/** The mean of what a span's rows say, or their maximum where the number is one. */
export function pooled(rows, [from, to], { value, pool }) {
  if (to - from === 1) return finite(value(rows[from]));
  let [sum, seen, most] = [0, 0, -Infinity];
  for (let i = from; i < to; i++) {
    const one = finite(value(rows[i]));
    if (one === null) continue;
    sum += one;
    seen += 1;
    most = Math.max(most, one);
  }
  return seen ? (pool === 'max' ? most : sum / seen) : null;
}

/** An exponential mean that starts at the first value and passes over gaps. */
export function smooth(values, weight) {
  let mean = 0;
  let seen = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return null;
    seen = seen * weight + 1;
    mean += (value - mean) / seen;
    return mean;
  });
}

/** A scale's ends a little outside of its values. */
export const around = (min, max) => {
  if (min === null || max === null || !Number.isFinite(min)) return [0, 1];
  const pad = (max - min) * 0.08 || Math.abs(max) * 0.1 || 1;
  return [min - pad, max + pad];
};

/** A scale that starts at zero. */
export const fromZero = (min, max) => [Math.min(0, min ?? 0), (max ?? 0) > 0 ? max * 1.08 : 1];

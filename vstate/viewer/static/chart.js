// Charts: a line and bars, as small drawings with their least and greatest numbers.
import { html, useState } from "./preact.js";

const WIDTH = 600;
const HEIGHT = 120;

/** A number in at most seven characters or so. */
function brief(number) {
  if (!Number.isFinite(number)) return String(number);
  if (Number.isInteger(number) && Math.abs(number) < 1e7) return number.toLocaleString("en");
  return Number(number.toPrecision(4)).toString();
}

/** A line through numbers; `labels` are texts for a pointer, `onPick` gets the place of a point. */
export function LineChart({ numbers, labels, caption, onPick }) {
  const [at, setAt] = useState(null);
  const known = numbers.filter((n) => n !== null);
  if (known.length < 2) return null;
  const low = Math.min(...known);
  const high = Math.max(...known);
  const x = (i) => (i / Math.max(numbers.length - 1, 1)) * WIDTH;
  const y = (n) => (high === low ? HEIGHT / 2 : HEIGHT - ((n - low) / (high - low)) * HEIGHT);
  let path = "";
  numbers.forEach((n, i) => {
    if (n !== null) path += `${path && numbers[i - 1] !== null ? "L" : "M"}${x(i).toFixed(1)} ${y(n).toFixed(1)}`;
  });
  const find = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = Math.round(((event.clientX - box.left) / box.width) * (numbers.length - 1));
    setAt(Math.min(Math.max(place, 0), numbers.length - 1));
  };
  return html`<figure class="chart">
    <svg viewBox=${`-4 -6 ${WIDTH + 8} ${HEIGHT + 12}`} preserveAspectRatio="none" role="img" aria-label=${`${caption}: from ${brief(low)} to ${brief(high)}`}
        onMouseMove=${find} onMouseLeave=${() => setAt(null)} onClick=${() => at !== null && onPick?.(at)}>
      <path d=${path} class="chart-line" vector-effect="non-scaling-stroke" />
      ${at !== null && numbers[at] !== null && html`<path class="chart-at" d=${`M${x(at)} -6V${HEIGHT + 6}`} vector-effect="non-scaling-stroke" />`}
    </svg>
    <figcaption><span>${brief(high)} highest</span><span>${brief(low)} lowest</span>
      <span class="chart-label">${at !== null && numbers[at] !== null ? `${brief(numbers[at])}${labels ? ` · ${labels[at]}` : ""}` : caption}</span></figcaption>
  </figure>`;
}

/** Bars for the counts in equal ranges from `low` to `high`. */
export function BarChart({ low, high, counts, caption }) {
  const most = Math.max(...counts, 1);
  const width = WIDTH / counts.length;
  const step = (high - low) / counts.length;
  return html`<figure class="chart">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${`${caption}: from ${brief(low)} to ${brief(high)}`}>
      ${counts.map((count, i) => html`<rect class="chart-bar" x=${i * width + 1} width=${width - 2} y=${HEIGHT - (count / most) * HEIGHT} height=${(count / most) * HEIGHT}>
        <title>${`${brief(low + i * step)} to ${brief(low + (i + 1) * step)}: ${count}`}</title></rect>`)}
    </svg>
    <figcaption><span>${brief(low)}</span><span class="chart-label">${caption}</span><span>${brief(high)}</span></figcaption>
  </figure>`;
}

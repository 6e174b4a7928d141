// Arrays: shape, range, the form of the numbers, and the elements by index.
import { get, grouped, shown } from "./api.js";
import { BarChart, LineChart } from "./chart.js";
import { html, useState } from "./preact.js";
import { Chip, Failure } from "./widgets.js";

const SOME = 200;

function indexOf(place, shape, order) {
  const sizes = order === "F" ? shape : [...shape].reverse();
  let rest = place;
  const index = sizes.map((size) => {
    const step = rest % (size || 1);
    rest = Math.floor(rest / (size || 1));
    return step;
  });
  return (order === "F" ? index : index.reverse()).join(", ");
}

/** An array. Elements are fetched a page at a time, from any place on. */
export function ArrayValue({ answer, rev, name, since }) {
  const { view } = answer;
  const bars = view.histogram;
  const [page, setPage] = useState(null);
  const { first, elements, next } = page?.of === answer ? page : view;
  const load = async (place) => {
    try {
      const found = await get("/value", { rev, key: name, path: answer.path, since, first: place, limit: SOME });
      setPage({ ...found.view, of: answer });
    } catch (error) {
      setPage({ ...view, of: answer, error });
    }
  };
  const jump = (event) => {
    event.preventDefault();
    const place = Number(new FormData(event.target).get("place"));
    if (Number.isInteger(place) && place >= 0 && place < view.count) load(place);
  };
  return html`<div class="array-value">
    <p class="facts">
      <span class="mono">${shown(view.dtype)}</span><span>shape ${view.shape.join(" × ") || "()"}</span>
      ${view.low && html`<span>from ${view.low} to ${view.high}</span>`}
      ${view.nans ? html`<span>${grouped(view.nans)} NaN</span>` : null}
      ${bars?.sampled && html`<span>a sample is drawn, from ${bars.low} to ${bars.high}</span>`}
    </p>
    <div class="charts">
      ${view.line && html`<${LineChart} numbers=${view.line} caption="means, in order" />`}
      ${bars && html`<${BarChart} ...${bars} caption="how often" />`}
    </div>
    <div class="elements mono" tabindex="0" role="region" aria-label="Elements">
      ${elements.map((element, i) => html`<span class="element" key=${first + i}><span class="is-dim">[${indexOf(first + i, view.shape, view.order)}]</span> ${shown(element)}</span>`)}
    </div>
    <form class="pager" onSubmit=${jump}>
      ${first > 0 && html`<${Chip} onClick=${() => load(Math.max(first - SOME, 0))}>before</${Chip}>`}
      ${next !== null && html`<${Chip} onClick=${() => load(next)}>next</${Chip}>`}
      ${view.count > elements.length ? html`<label>from element <input name="place" inputmode="numeric" size="8" placeholder=${first} /></label> <span class="is-dim">of ${grouped(view.count)}</span>` : null}
    </form>
    <${Failure} error=${page?.error} />
  </div>`;
}
